// A second device for machines that have none: torch's PrivateUse1 on the memory of the CPU, with CUDA's rules.
//
// There are two of it. Fresh memory is full of garbage; each has its generator, and autograd a thread for each; tensors of two
// devices meet in an operation only where CUDA's may; autocast has CUDA's lists. An operation without a kernel of its own here
// (almost every one) is run by the fallback: torch's kernel for the CPU on the same memory. Each launch, wait and upload can be
// logged, and a wait or an upload can be made an error.
#include <torch/extension.h>
#include <torch/library.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <mutex>
#include <unordered_set>

namespace {

using namespace at;
using torch::jit::Stack;

constexpr DeviceIndex COUNT = 2;
constexpr auto TYPE = c10::DeviceType::PrivateUse1;
constexpr int GARBAGE = 0xFB;
const c10::DispatchKeySet KEYS(c10::DispatchKey::PrivateUse1);

thread_local DeviceIndex current = 0;

Device or_current(std::optional<Device> device) {
  return device && device->has_index() ? *device : Device(TYPE, current);
}

// --- The log ----------------------------------------------------------------------------------------------------------

enum class Kind { launch, wait, upload };
const char* const NAMES[] = {"launch", "wait", "upload"};

struct Log {
  std::mutex mutex;
  bool is_on = false;
  bool waiting_is_forbidden = false;
  std::vector<std::tuple<std::string, std::string, int64_t>> entries;  // what, of which operation, of how many elements

  void add(Kind kind, const std::string& operation, int64_t elements) {
    TORCH_CHECK(kind == Kind::launch || !waiting_is_forbidden, "the host waits for the device: ", operation);
    if (!is_on) return;
    std::lock_guard<std::mutex> lock(mutex);
    entries.emplace_back(NAMES[static_cast<int>(kind)], operation, elements);
  }
};
Log events;

// --- Memory -----------------------------------------------------------------------------------------------------------

struct Memory final : c10::Allocator {
  DataPtr allocate(size_t bytes) override {
    auto* on_cpu = new DataPtr(c10::GetCPUAllocator()->allocate(bytes));
    if (bytes) std::memset(on_cpu->get(), GARBAGE, bytes);  // what nobody wrote nobody may read
    return {on_cpu->get(), on_cpu, &release, Device(TYPE, current)};
  }
  static void release(void* context) { delete static_cast<DataPtr*>(context); }
  DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};
Memory memory;
REGISTER_ALLOCATOR(TYPE, &memory)

// --- Devices, each with one stream that is always idle ------------------------------------------------------------------

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return TYPE; }
  DeviceIndex deviceCount() const noexcept override { return COUNT; }
  Device getDevice() const override { return {TYPE, current}; }
  void setDevice(Device device) const override {
    TORCH_CHECK(device.index() < COUNT, "invalid device index ", int(device.index()));
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.index() >= 0) current = device.index();
  }
  Device exchangeDevice(Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }
  Stream getStream(Device device) const override { return Stream(Stream::DEFAULT, or_current(device)); }
  Stream getDefaultStream(Device device) const override { return getStream(device); }
  Stream getStreamFromGlobalPool(Device device, bool) const override { return getStream(device); }
  Stream getNewStream(Device device, int) const override { return getStream(device); }
  Stream exchangeStream(Stream stream) const override { return getStream(stream.device()); }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeDevice(DeviceIndex) const override {}
  void record(void**, const Stream&, DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// --- Random numbers: a generator for each device, with other numbers than the CPU's of the same seed ----------------------

constexpr uint64_t OTHER_NUMBERS = 0x5eed;

struct DeviceGenerator final : c10::GeneratorImpl {
  Generator on_cpu = at::detail::createCPUGenerator();

  explicit DeviceGenerator(DeviceIndex index) : GeneratorImpl({TYPE, index}, KEYS) {}
  void set_current_seed(uint64_t seed) override { on_cpu.set_current_seed(seed ^ OTHER_NUMBERS); }
  uint64_t current_seed() const override { return on_cpu.current_seed() ^ OTHER_NUMBERS; }
  uint64_t seed() override { return on_cpu.seed(); }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  void set_state(const c10::TensorImpl& state) override { on_cpu.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return on_cpu.unsafeGetGeneratorImpl()->get_state(); }
  GeneratorImpl* clone_impl() const override {
    auto* copy = new DeviceGenerator(device().index());
    copy->on_cpu = on_cpu.clone();
    return copy;
  }
};

const Generator& default_generator(DeviceIndex index) {
  static std::vector<Generator> all = [] {
    std::vector<Generator> made;
    for (DeviceIndex i = 0; i < COUNT; ++i) made.push_back(make_generator<DeviceGenerator>(i));
    return made;
  }();
  return all.at(index < 0 ? current : index);
}

Generator on_cpu(const Generator& generator) {
  TORCH_CHECK(generator.device().type() == TYPE, "Expected a generator of the second device but found '", generator.device(), "'");
  return static_cast<DeviceGenerator*>(generator.unsafeGetGeneratorImpl())->on_cpu;
}

struct Hooks final : PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return COUNT; }
  DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(DeviceIndex index) const override { current = index; }
  DeviceIndex exchangeDevice(DeviceIndex index) const override { return std::exchange(current, index); }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override {
    return index < 0 ? current : exchangeDevice(index);
  }
  Device getDeviceFromPtr(void*) const override { return {TYPE, current}; }
  Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  const Generator& getDefaultGenerator(DeviceIndex index) const override { return default_generator(index); }
  Generator getNewGenerator(DeviceIndex index) const override {
    return make_generator<DeviceGenerator>(index < 0 ? current : index);
  }
  void resizePrivateUse1Bytes(const Storage& storage, size_t bytes) const override {
    c10::OptionalDeviceGuard guard(storage.device());
    auto fresh = memory.allocate(bytes);
    std::memcpy(fresh.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.set_data_ptr_noswap(std::move(fresh));
    storage.set_nbytes(bytes);
  }
};

// --- The fallback: an operation of the CPU on the device's memory -------------------------------------------------------

// Operations whose kernels may meet tensors of two devices; CUDA's generated code checks the others itself.
std::unordered_set<std::string> unchecked;

bool is_ours(const Tensor& tensor) { return tensor.defined() && tensor.device().type() == TYPE; }

// The same memory as a tensor of the CPU.
Tensor as_cpu(const Tensor& tensor) {
  DataPtr data(tensor.storage().mutable_data(), Device(kCPU));
  Storage storage(Storage::use_byte_size_t(), tensor.storage().nbytes(), std::move(data), nullptr, false);
  auto result = at::detail::make_tensor<TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  auto* impl = result.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return result;
}

// A tensor of the device in a storage of it, laid out as a tensor of the CPU.
Tensor as_ours(const Storage& storage, const Tensor& like) {
  auto result = at::detail::make_tensor<TensorImpl>(Storage(storage), KEYS, like.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return result;
}

// Maps every tensor of an argument or a result, lists included.
template <class F>
c10::IValue map_tensors(const c10::IValue& value, F f) {
  if (value.isTensor()) return f(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& tensor : value.toTensorList()) list.push_back(f(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const std::optional<Tensor>& tensor : value.toOptionalTensorList())
      list.push_back(tensor ? std::optional<Tensor>(f(*tensor)) : tensor);
    return list;
  }
  return value;
}

// One call of an operation.
struct Call {
  const c10::OperatorHandle& operation;
  Stack* stack;
  std::string name;
  std::optional<Device> device;
  int64_t elements = 0;
  bool has_mask = false;

  struct Argument {
    Tensor ours, cpu;
    bool is_written;
  };
  std::vector<Argument> arguments;
  std::vector<std::pair<const void*, Storage>> fresh;  // storages of the CPU and what holds them on the device

  Call(const c10::OperatorHandle& operation, Stack* stack) : operation(operation), stack(stack) {
    const auto full = operation.schema().operator_name();
    name = full.overload_name.empty() ? full.name : full.name + "." + full.overload_name;
  }

  c10::IValue& argument(size_t i) { return (*stack)[stack->size() - operation.schema().arguments().size() + i]; }

  // The one device of all tensors, where the operation is checked; a number of the CPU may meet every device.
  void find_device() {
    const bool is_checked = !unchecked.count(name);
    const bool takes_indices = name.find("index") != std::string::npos;
    std::optional<Device> wanted;
    for (size_t i = 0; i < operation.schema().arguments().size(); ++i) {
      if (argument(i).isDevice()) wanted = argument(i).toDevice();
      map_tensors(argument(i), [&](const Tensor& tensor) {
        if (!tensor.defined()) return tensor;
        const bool is_foreign = !is_ours(tensor);
        const bool is_number = is_checked ? tensor.unsafeGetTensorImpl()->is_wrapped_number() : tensor.dim() == 0 || takes_indices;
        if (is_foreign && is_number) return tensor;
        TORCH_CHECK(!is_foreign && (!device || *device == tensor.device()),
                    "Expected all tensors to be on the same device, but found at least two devices, ",
                    device ? device->str() : "the second device", " and ", tensor.device(), "! (", name, ", shape ", tensor.sizes(), ")");
        device = tensor.device();
        return tensor;
      });
    }
    if (wanted && wanted->type() == TYPE) device = or_current(wanted);
    device = or_current(device);
  }

  Tensor lower(const Tensor& tensor, bool is_written) {
    if (!is_ours(tensor)) return tensor;
    elements = std::max(elements, tensor.numel());
    for (auto& known : arguments) {
      if (!known.ours.is_same(tensor)) continue;
      known.is_written |= is_written;
      return known.cpu;
    }
    // Memory of the device cannot grow on the CPU.
    Tensor cpu = is_written && tensor.numel() == 0 ? at::detail::empty_cpu(tensor.sizes(), tensor.scalar_type()) : as_cpu(tensor);
    arguments.push_back({tensor, cpu, is_written});
    return cpu;
  }

  void lower_arguments() {
    const auto& schema = operation.schema().arguments();
    for (size_t i = 0; i < schema.size(); ++i) {
      auto& value = argument(i);
      const bool is_written = schema[i].alias_info() && schema[i].alias_info()->isWrite();
      if (value.isDevice()) value = Device(kCPU);
      else if (value.isGenerator()) value = on_cpu(value.toGenerator());
      else if (value.isNone() && schema[i].type()->str() == "Generator?") value = on_cpu(default_generator(device->index()));
      else value = map_tensors(value, [&](const Tensor& tensor) {
        // A mask among indices is turned into indices, whose number the host must know.
        has_mask |= schema[i].name() == "indices" && tensor.defined() && (tensor.scalar_type() == kBool || tensor.scalar_type() == kByte);
        return lower(tensor, is_written);
      });
    }
  }

  // What an operation wrote to may have another shape now.
  void write_back() {
    for (auto& [ours, cpu, is_written] : arguments) {
      if (!is_written || (ours.sizes() == cpu.sizes() && ours.strides() == cpu.strides() && ours.numel())) continue;
      at::native::resize_(ours, cpu.sizes());
      ours.unsafeGetTensorImpl()->set_sizes_and_strides(cpu.sizes(), cpu.strides());
      as_cpu(ours).copy_(cpu);
    }
  }

  // A result on the device: what was passed in, a view of it, or new memory, which keeps the CPU's alive.
  Tensor raise(const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    elements = std::max(elements, tensor.numel());
    for (auto& known : arguments)
      if (known.cpu.is_same(tensor)) return known.ours;
    TORCH_CHECK(tensor.layout() == kStrided, name, ": the second device has strided tensors only");
    for (auto& known : arguments)
      if (tensor.numel() && tensor.storage().data() == known.cpu.storage().data()) return as_ours(known.ours.storage(), tensor);
    const auto* key = tensor.storage().unsafeGetStorageImpl();
    for (auto& [known, storage] : fresh)
      if (known == key) return as_ours(storage, tensor);
    auto release = [](void* context) { delete static_cast<Storage*>(context); };
    DataPtr data(tensor.storage().mutable_data(), new Storage(tensor.storage()), release, *device);
    fresh.emplace_back(key, Storage(Storage::use_byte_size_t(), tensor.storage().nbytes(), std::move(data), &memory, true));
    return as_ours(fresh.back().second, tensor);
  }

  // The results on the device; whether one of them is a number, for which the host waits.
  bool raise_results() {
    bool is_number = false;
    const size_t count = operation.schema().returns().size();
    for (size_t i = stack->size() - count; i < stack->size(); ++i) {
      auto& value = (*stack)[i];
      is_number |= !value.isTensor() && !value.isTensorList() && !value.isNone();
      value = map_tensors(value, [&](const Tensor& tensor) { return raise(tensor); });
    }
    return is_number;
  }

  void run() {
    find_device();
    c10::OptionalDeviceGuard guard(*device);
    lower_arguments();
    operation.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    write_back();
    bool waits = raise_results() || has_mask;
    for (const auto& tag : operation.getTags()) waits |= tag == at::Tag::data_dependent_output || tag == at::Tag::dynamic_output_shape;
    events.add(waits ? Kind::wait : Kind::launch, name, elements);
  }
};

void fallback(const c10::OperatorHandle& operation, Stack* stack) { Call(operation, stack).run(); }

// --- Kernels of its own: memory, views, copies ----------------------------------------------------------------------------

Tensor empty(IntArrayRef size, std::optional<ScalarType> dtype, std::optional<Layout>, std::optional<Device> device,
             std::optional<bool>, std::optional<MemoryFormat> format) {
  c10::DeviceGuard guard(or_current(device));
  return at::detail::empty_generic(size, &memory, KEYS, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, std::optional<ScalarType> dtype, std::optional<Layout>,
                     std::optional<Device> device, std::optional<bool>) {
  c10::DeviceGuard guard(or_current(device));
  return at::detail::empty_strided_generic(size, stride, &memory, KEYS, c10::dtype_or_default(dtype));
}

Tensor zero_tensor(IntArrayRef size, std::optional<ScalarType> dtype, std::optional<Layout>, std::optional<Device> device,
                   std::optional<bool>) {
  at::native::ZeroTensorAllocator none(or_current(device));
  return at::detail::empty_generic(size, &none, KEYS | c10::DispatchKeySet(c10::DispatchKey::ZeroTensor),
                                   c10::dtype_or_default(dtype), std::nullopt);
}

Tensor as_strided(const Tensor& tensor, SymIntArrayRef size, SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(tensor, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                           offset ? std::optional<int64_t>(offset->expect_int()) : std::nullopt);
}

Tensor reshape_alias(const Tensor& tensor, SymIntArrayRef size, SymIntArrayRef stride) {
  return at::native::_reshape_alias(tensor, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

Tensor view(const Tensor& tensor, SymIntArrayRef size) { return at::native::view(tensor, C10_AS_INTARRAYREF_SLOW(size)); }

const Tensor& resize(const Tensor& tensor, SymIntArrayRef size, std::optional<MemoryFormat> format) {
  return at::native::resize_(tensor, C10_AS_INTARRAYREF_SLOW(size), format);
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  if (!is_ours(to)) events.add(Kind::wait, "aten::copy_ to the CPU", to.numel());
  else events.add(is_ours(from) ? Kind::launch : Kind::upload, "aten::copy_", to.numel());
  auto lowered = [](const Tensor& tensor) {
    Tensor cpu = is_ours(tensor) ? as_cpu(tensor) : tensor;
    if (tensor.is_conj()) cpu = cpu.conj();
    return tensor.is_neg() ? cpu._neg_view() : cpu;
  };
  lowered(to).copy_(lowered(from));
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

Scalar local_scalar(const Tensor& tensor) {
  events.add(Kind::wait, "aten::_local_scalar_dense", 1);
  return at::native::_local_scalar_dense_cpu(as_cpu(tensor));
}

Tensor& set_tensor(Tensor& tensor, const Tensor& source) { return at::native::set_tensor_(tensor, source); }

Tensor& set_storage(Tensor& tensor, Storage source) {
  const int64_t elements = source.nbytes() / tensor.dtype().itemsize();
  return at::native::set_storage_cpu_(tensor, source, 0, {elements}, {});
}

Tensor& set_strided(Tensor& tensor, Storage source, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  return at::native::set_storage_cpu_(tensor, source, offset, size, stride);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_efficientzerotensor", zero_tensor);
  m.impl("as_strided", as_strided);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("view", view);
  m.impl("resize_", resize);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_.source_Storage_storage_offset", set_strided);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

// --- Autocast: CUDA's lists -------------------------------------------------------------------------------------------------

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  using namespace at::autocast;
#define TO_HALF(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define TO_FLOAT(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define TO_FLOAT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define TO_WIDEST(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(TO_HALF)
  AT_FORALL_FP32(TO_FLOAT)
  AT_FORALL_FP32_SET_OPT_DTYPE(TO_FLOAT_DTYPE)
  AT_FORALL_PROMOTE(TO_WIDEST)
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  // `several` are operations that meet tensors of two devices; `single`, one kernel on CUDA that other devices get in steps.
  m.def("register", [](std::vector<std::string> several, std::vector<std::string> single) {
    unchecked.insert(several.begin(), several.end());
    static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
    for (auto& name : single) library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&fallback>());
    at::RegisterPrivateUse1HooksInterface(new Hooks());
  });
  m.def("start_log", [] {
    std::lock_guard<std::mutex> lock(events.mutex);
    TORCH_CHECK(!events.is_on, "there is one log at a time");
    events.entries.clear();
    events.is_on = true;
  });
  m.def("end_log", [] {
    std::lock_guard<std::mutex> lock(events.mutex);
    events.is_on = false;
    return std::move(events.entries);
  });
  m.def("forbid_waiting", [](bool on) { return std::exchange(events.waiting_is_forbidden, on); });
  m.def("current_device", [] { return int(current); });
  m.def("set_device", [](int index) {
    TORCH_CHECK(0 <= index && index < COUNT, "invalid device index ", index);
    current = index;
  });
  m.def("default_generator", [](int index) { return default_generator(index); });
}
