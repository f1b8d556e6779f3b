"""`python -m fullgrad audit`: what it finds in source that is not run, and what it says about each finding."""

import ast
import json

import pytest
import torch

import fullgrad
from fullgrad.audit import audit, audit_source
from fullgrad.audit._probe import PROBES, probe
from fullgrad.audit._torch import _OPERATOR, torch_operators
from fullgrad.cli import main


def function(forward, backward, setup="", extra=""):
    """The source of a Function."""
    return f"""
import torch

class Own(torch.autograd.Function):
    {extra or "pass"}

    @staticmethod
    def forward(ctx, x, alpha=1.0):
        ctx.save_for_backward(x)
        {setup or "pass"}
        return {forward}

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        grad = g.clone()
        {backward.partition(";")[0] if ";" in backward else "pass"}
        return {backward.rpartition(";")[2].strip()}, None
"""


@pytest.mark.short
@pytest.mark.parametrize(
    ("forward", "backward", "write"),
    [
        ("x.round()", "g", "round(x)"),
        ("torch.ceil(x)", "grad", "ceil(x)"),
        ("x.trunc()", "g", "trunc(x)"),
        ("torch.round(x * alpha) / alpha", "g", "step_quantize, k_bit_quantize or replace_grad"),
        ("x.round()", "g * 2", "adopt(Own)"),
        ("x.clamp(-1, 1)", "g", "replace_grad(x.clamp(low, high), x)"),
        ("x.clamp(-1, 1)", "grad[x.abs() > 1] = 0; grad", "clamp(x, low, high)"),
        ("x.clamp(-1, 1)", "g * torch.where(x.abs() > 1, torch.exp(-x.abs()), 1.0)", "adopt(Own)"),
        ("torch.clamp(x - x.max(), min=0)", "g", "adopt(Own)"),
        ("x.sign()", "g", "spikes.ternary_sign(x, 0.0, None)"),
        ("x.sign()", "g * (x.abs() <= 1)", "spikes.ternary_sign(x, 0.0)"),
        ("(x > 0).float()", "g", "spikes.ste_heaviside(x, None, tie=0.0)"),
        ("(x >= 0).to(x)", "g", "spikes.ste_heaviside(x, None)"),
        ("(x > 0).float()", "grad[x < 0] = 0; grad", "spikes.from_slope(slope)"),
        ("(x > 0).float()", "g * (x.abs() < 0.5)", "spikes.ste_heaviside(x, tie=0.0) or spikes.rect"),
        ("(x > 0).float()", "g / (1 + x.abs()) ** 2", "spikes.fast_sigmoid(x, tie=0.0) or spikes.from_slope(slope)"),
        ("(x >= 1.0).to(x)", "g / (1 + x.abs()) ** 2", "spikes.fast_sigmoid(x, threshold=1.0) or spikes.from_slope(slope)"),
        ("x.gt(1).to(x)", "g", "spikes.ste_heaviside(x, None, threshold=1, tie=0.0)"),
        (
            "(x - alpha >= 0).to(x)",
            "g / (1 + x.abs()) ** 2",
            "spikes.fast_sigmoid(x, threshold=alpha) or spikes.from_slope(slope)",
        ),
        (
            "torch.heaviside(x - 0.5, torch.ones(()))",
            "g / (1 + alpha * x.abs()) ** 2",
            "spikes.fast_sigmoid(x, …, threshold=0.5) or spikes.from_slope(slope)",
        ),
        ("(2 * x > 1).to(x)", "g * torch.erf(x)", "spikes.erf(x, threshold=…, tie=0.0) or spikes.from_slope(slope)"),
        ("(x > ctx.alpha).to(x)", "g * torch.erf(x)", "spikes.erf(x, threshold=…, tie=0.0) or spikes.from_slope(slope)"),
        ("x.view_as(x)", "-g", "reverse_grad(x)"),
        ("x.clone()", "g.neg() * ctx.alpha", "reverse_grad(x, scale)"),
        ("x.clone()", "g.clamp(-1, 1)", "clip_grad(x, bound)"),
        ("x * 1", "g * ctx.alpha", "scale_bwd(x, scale)"),
        ("x.clone()", "g * torch.clamp(c / g.norm(), max=1)", "clip_grad_norm(x, bound)"),
        ("x.clone()", "g / g.norm()", "adopt(Own)"),
        ("x.clone()", "g.clamp(min=0)", "adopt(Own)"),
        ("x.clone()", "g * x.clamp(0, 1)", "adopt(Own)"),
        ("x.clone()", "g * torch.max(x, 0)", "adopt(Own)"),
        ("x.clone()", "g / g.abs().max()", "scale_grad(x)"),
        ("x.clone()", "-2 * g + 1", "adopt(Own)"),
        ("torch.round(x, decimals=2)", "g", "adopt(Own)"),
        ("x.clone()", "torch.nan_to_num(g)", "nan_to_num_grad(x)"),
        ("x.exp()", "g * x.exp()", "adopt(Own)"),
        ("x.clone()", "-g * alpha", "reverse_grad(x, scale)"),
        ("x.clone()", "-(alpha * g)", "reverse_grad(x, scale)"),
        ("x.clone()", "-(g + 1)", "adopt(Own)"),
        ("x.round()", "g = g * 2; g", "adopt(Own)"),
    ],
)
def test_a_function_is_replaced_by_its_shape(forward, backward, write):
    """The returns of forward and backward decide the replacement; a class of unknown form is adopted."""
    (finding,) = audit_source(function(forward, backward), "own.py")
    assert (finding.kind, finding.name, finding.line) == ("Function", "Own", 4)
    assert finding.replacement == write


@pytest.mark.short
@pytest.mark.parametrize(
    ("expression", "write"),
    [
        ("x + (y - x).detach()", "replace_grad(y, x)"),
        ("(y - x).detach() + x", "replace_grad(y, x)"),
        ("x - (x - y).detach()", "replace_grad(y, x)"),
        ("y.detach() + x - x.detach()", "replace_grad(y, x)"),
        ("y_hard - y_soft.detach() + y_soft", "replace_grad(y_hard, y_hard + y_soft)"),
        ("-(x - y).detach() + x", "replace_grad(y, x)"),
        ("x - (-y + x).detach()", "replace_grad(y, x)"),
        ("x + (-(x - y)).detach()", "replace_grad(y, x)"),
        ("(x + y).detach() - x", "replace_grad(y, -x)"),
        ("-((x - y).detach() - x)", "replace_grad(y, x)"),
        ("(y - x).data + x", "replace_grad(y, x)"),
        ("x + (x.round() - x).detach()", "round(x)"),
        ("x + (torch.floor(x) - x).detach()", "floor(x)"),
        ("x + (torch.round(x / s) * s - x).detach()", "replace_grad(torch.round(x / s) * s, x)"),
        ("x + sg(q(x) - x)", "replace_grad(q(x), x)"),
        ("(x - x * 0.1).detach() + x * 0.1", "scale_bwd(x, 0.1)"),
        ("(x - x * s).detach() + x * s", "replace_grad(x, x * s)"),
        ("x.detach() + v * (x - x.detach())", "scale_bwd(x, v)"),
        ("x + v * (x - x.detach())", "scale_bwd(x, 1 + v)"),
        ("x - (x - x.detach()) * v", "scale_bwd(x, 1 - v)"),
        ("x + (y - z).detach()", None),
        ("x - x.detach()", None),
        ("x.detach() + x", None),
        ("1 + (2 - 1)", None),
    ],
)
def test_a_detach_trick_in_any_order(expression, write):
    """A sum with a term and the same term detached and negated is a detach trick; nothing else is."""
    found = audit_source(f"def f(x, y, z):\n    return {expression}\n", "f.py")
    assert [f.replacement for f in found] == ([] if write is None else [write])
    assert all(f.breaks == ("float16", "inf", "-0.0") and f.line == 2 for f in found)


@pytest.mark.short
@pytest.mark.parametrize(
    ("body", "write"),
    [
        ("return torch.round(x / s) * s - x.detach() + x", "replace_grad(torch.round(x / s) * s, torch.round(x / s) * s + x)"),
        ("return noise * var / var.detach() + mu - mu.detach()", "replace_grad(v, v + mu)"),
        ("return y + z.detach() + x - x.detach()", "replace_grad(y + z, y + x)"),
        ("return torch.round(x / 0.5) * 0.5 - x.detach() + x", "replace_grad(torch.round(x / 0.5) * 0.5, x)"),
        ("return (x > 0).float() - x.detach() + x", "replace_grad((x > 0).float(), x)"),
        ("return torch.where(x > y, torch.ones_like(x), 0.0) - x.detach() + x", "replace_grad(v, x)"),
        ("return torch.where(x > 0, y, 0.0) - x.detach() + x", "replace_grad(v, v + x)"),
        ("h = torch.zeros_like(x).scatter_(1, z, 1.0)\n    return h - x.detach() + x", "replace_grad(h, x)"),
        ("h = torch.zeros_like(x)\n    h.scatter_(1, z, y)\n    return h - x.detach() + x", "replace_grad(h, h + x)"),
        ("h = torch.zeros_like(x)\n    h += y\n    return h - x.detach() + x", "replace_grad(h, h + x)"),
        ("h = F.one_hot(x.argmax(-1), 3).to(x)\n    return h - x.detach() + x", "replace_grad(h, x)"),
        ("h = F.one_hot(x.argmax(-1), 3) * y\n    return h - x.detach() + x", "replace_grad(h, h + x)"),
        ("return soft.round(x) - x.detach() + x", "replace_grad(soft.round(x), soft.round(x) + x)"),
        ("x += (y - x).detach()\n    return x", "replace_grad(y, x)"),
        ("x -= (x - y).detach()\n    return x", "replace_grad(y, x)"),
    ],
)
def test_a_replacement_has_the_gradient_of_every_term(body, write):
    """A term of the value that may have a gradient of its own is in the surrogate, too; `v` stands for the value."""
    (found,) = audit_source(f"def f(x, y, z, s, noise, var, mu):\n    {body}\n", "f.py")
    value = body.partition("return ")[2].partition(" - x.detach()")[0].partition(" + mu - mu")[0]
    assert found.replacement == write.replace("(v, v +", f"({value}, {value} +").replace("(v, x", f"({value}, x")


@pytest.mark.short
@pytest.mark.parametrize(
    "trick",
    [
        "torch.round(x / s) * s - x.detach() + x",
        "s * x / x.detach() + s - s.detach()",
        "x + s.detach() + x * s - (x * s).detach()",
        "(x + s).detach() - x",
        "-(x - s).detach() + x",
        "x - (x - s) * 2 - x.detach() + x",
        "(x - x * s).detach() + x * s",
        "x.detach() - s.detach() * (x - x.detach())",
        "x - s * (x - x.detach())",
        "(x > 0).float() - x.detach() + x",
    ],
)
def test_replacements_have_the_value_and_the_gradients_of_the_trick(trick):
    """The code to write is run: its value and its gradients with respect to each tensor are those of the sum."""
    (found,) = audit_source(f"def f(x, s):\n    return {trick}\n", "f.py")
    x, s = torch.tensor([0.3, -1.7]).requires_grad_(), torch.tensor([0.25, 2.0]).requires_grad_()
    results = []
    for code in (trick, found.replacement):
        names = {"torch": torch, "replace_grad": fullgrad.replace_grad, "scale_bwd": fullgrad.scale_bwd, "x": x, "s": s}
        y = eval(code, names)
        results.append((y, *torch.autograd.grad(y.sum(), (x, s), allow_unused=True, materialize_grads=True)))
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.short
@pytest.mark.parametrize(
    ("statement", "kind", "write"),
    [
        ("x.register_hook(lambda g: g.clamp(-1, 1))", "hook", "clip_grad(x, bound)"),
        ("x.register_hook(lambda g: -g)", "hook", "reverse_grad(x)"),
        ("x.register_hook(lambda g: g * 0.5)", "hook", "scale_bwd(x, scale)"),
        (
            "self.weight.data = self.weight.data.sign()",
            "in place",
            "replace_grad(self.weight.data.sign(), self.weight)",
        ),
        ("x.data.copy_(torch.round(x))", "in place", "replace_grad(torch.round(x), x), as a new tensor"),
        ("with torch.no_grad(): x.copy_(x.round())", "in place", "replace_grad(x.round(), x), as a new tensor"),
        ("x.copy_(x.round())", None, ""),
        ("x.data = y", None, ""),
        ("print(x.detach())", None, ""),
    ],
)
def test_hooks_and_code_in_place(statement, kind, write):
    """Hooks and code in place count in a forward; an initialization may change data."""
    found = audit_source(f"def forward(self, x, y):\n    {statement}\n", "f.py")
    assert [f.kind for f in found] == ([kind] if kind else [])
    assert all(f.replacement.startswith(write) for f in found)
    if kind == "in place":
        assert audit_source(f"def reset_parameters(self, x, y):\n    {statement}\n", "f.py") == []


@pytest.mark.short
@pytest.mark.parametrize(
    "text",
    [
        "class Low(Optimizer):\n    def step(self): p.data = self.quantize(p.data)",
        "class Low:\n    def step(self, closure=None): p.data = self.quantize(p.data)",
        "def quantize(p): p.grad.data = p.grad.round()",
        "def quantize(p): p.grad.data.copy_(p.grad.round())",
        "def register(p): p.data = p.round()",
        "def test_system(p): p.data = p.round()",
        "def force_requantize(m): m.weight.data = m.quantize()",
        "def forward(self): self.weight.data = self.dequantize()",
        "def forward(self):\n    other = torch.nn.Linear(1, 1)\n    other.weight.data = self.quantize()",
        "def forward(self, x): x.grad_fn.register_hook(clear_the_cache)",
    ],
)
def test_other_changes_in_place_are_no_findings(text):
    """Optimizers, gradients, new modules, conversions and hooks of the graph are not part of a forward's derivative."""
    assert audit_source(text, "f.py") == []


@pytest.mark.short
@pytest.mark.parametrize("name", ["forward", "quantize", "fake_quant", "binarize", "lif_step", "applySTE", "forward_impl"])
def test_names_of_forwards(name):
    """Words of a function's name say that it is part of a forward, in any style."""
    assert len(audit_source(f"def {name}(w): w.data = w.round()", "f.py")) == 1


@pytest.mark.short
@pytest.mark.parametrize(
    ("line", "reads"),
    [
        ("c = torch.tensor([1.0, 2.0], dtype=x.dtype); y = sum(c.tolist())", False),
        ("y = x * 2; z = y.max(); n = z.item()", True),
        ("if x.abs().max() > 1: y = 1", True),
        ("if x.dim() > 1: y = 1", False),
        ("if any(ctx.needs_input_grad): y = 1", False),
        ("(y,) = ctx.saved_tensors; n = y.numpy()", True),
    ],
)
def test_numbers_that_are_read(line, reads):
    """Constants may be read; numbers of the inputs that are read, or branched on, hold for one sample."""
    text = function("x.exp()", "g", setup="pass\n        " + "\n        ".join(line.split("; ")))
    assert ("one sample at a time" in audit_source(text, "")[0].breaks) is reads


def test_what_breaks_is_what_the_class_lacks():
    """Rules that a class declares do not break; a misused context does."""
    text = function("x.round()", "g", setup="ctx.x = x")
    assert audit_source(text, "")[0].breaks == ("func.grad", "vmap", "jvp", "compiled transforms", "in-place changes unnoticed")
    whole = """
from torch.autograd import Function

class Whole(Function):
    generate_vmap_rule = True
    @staticmethod
    def forward(x): return x.round().item()
    @staticmethod
    def setup_context(ctx, inputs, output): pass
    @staticmethod
    @once_differentiable
    def backward(ctx, g): return g
    @staticmethod
    def jvp(ctx, t): return t

class Derived(Whole):
    @staticmethod
    def forward(x): return x
"""
    found = audit_source(whole, "")
    assert found[0].breaks == ("compiled transforms", "second order", "one sample at a time")
    assert [f.name for f in found] == ["Whole", "Derived"]


LEARNED = """
import torch

class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, low, high):
        ctx.save_for_backward(x, scale)
        SETUP
        return VALUE

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        return GRADIENT, (g * x).sum(), None, None
"""


@pytest.mark.short
@pytest.mark.parametrize(
    ("setup", "value", "gradient", "write"),
    [
        ("q = (x / scale).round().clamp(low, high)", "q * scale", "g * (x.abs() < 1)", "quantizers.lsq(x, scale, low, high)"),
        ("y = torch.round(torch.clamp(x / scale, low, high)) * scale", "y", "g", "quantizers.lsq(x, scale, low, high)"),
        ("pass", "(x / 2).round().clamp(low, high) * 2", "g", "adopt(Own)"),
        ("mask = (x > scale).to(x)", "x * mask", "g * (x > scale)", "spikes.jumprelu(x, scale, bandwidth)"),
        ("pass", "(x > scale) * x", "(x > scale) * g", "spikes.jumprelu(x, scale, bandwidth)"),
        ("pass", "(x > scale).to(x)", "0.0 * g", "adopt(Own)"),
        ("pass", "(x > scale).to(x)", "torch.zeros_like(g)", "adopt(Own)"),
        ("pass", "(x > scale).to(x)", "g / (1 + x**2)", "spikes.from_slope(slope)"),
    ],
)
def test_a_class_with_a_parameter_that_learns(setup, value, gradient, write):
    """LSQ and JumpReLU have operators of their own; a class that gives its input no gradient is no spike of a slope."""
    text = LEARNED.replace("SETUP", setup).replace("VALUE", value).replace("GRADIENT", gradient)
    assert audit_source(text, "")[0].replacement == write


@pytest.mark.short
@pytest.mark.parametrize(
    ("saved", "is_told"),
    [
        ("x", False),
        ("y", False),
        ("x, None, w", False),
        ("torch.sigmoid(x)", True),
        ("s", True),
        ("x.clone()", True),
        ("bytes_", True),
        ("mask", False),
        ("x > 0", False),
        ("(x > 0) & (x < 1)", False),
        ("x.gt(0) * x.lt(1)", False),
        ("x.argmax(-1)", False),
        ("w * 2", False),
        ("torch.tensor(w)", False),
    ],
)
@pytest.mark.parametrize("is_new_style", [False, True])
def test_a_saved_intermediate_is_told(saved, is_told, is_new_style):
    """What is saved and is neither input nor output nor a mask is a constant to a second derivative, which the audit says."""
    made = "s = torch.sigmoid(x); bytes_ = (s * 255).to(torch.uint8); mask = s > 0.5"
    if is_new_style:
        if saved == "w * 2":  # all inputs alike
            return
        forward = "    def forward(x, w): return x.exp()\n    @staticmethod\n    def setup_context(ctx, inputs, output):\n"
        forward += f"        x, w = inputs; y = output; {made}\n        ctx.save_for_backward({saved})"
    else:
        forward = (
            f"    def forward(ctx, x, w):\n        y = x.exp(); {made}\n        ctx.save_for_backward({saved})\n        return y"
        )
    text = f"import torch\nclass Own(torch.autograd.Function):\n    @staticmethod\n{forward}\n"
    assert ("second order (a saved intermediate)" in audit_source(text, "")[0].breaks) is is_told


@pytest.mark.short
@pytest.mark.parametrize(
    ("line", "keeps"),
    [
        ("ctx.x, ctx.w = x, w", True),
        ("ctx.w, ctx.x = w, x", True),
        ("ctx.w = ctx.x = x", True),
        ("ctx.both = (x, w)", True),
        ("ctx.w, ctx.shape = w, x.shape", False),
        ("ctx.save_for_backward(x, w)", False),
    ],
)
@pytest.mark.parametrize("is_new_style", [False, True])
def test_a_tensor_kept_in_any_assignment(line, keeps, is_new_style):
    """An input that is kept by itself is found in tuples and chains, in a forward and in a setup_context."""
    before, inside = "ctx, x, w", line
    if is_new_style:
        before, inside = "x, w", "pass"
    text = f"""
class Own(torch.autograd.Function):
    def forward({before}):
        {inside}
        return x * w
    def backward(ctx, g): return g, g
"""
    if is_new_style:
        text += f"    def setup_context(ctx, inputs, output):\n        x, w = inputs\n        {line}\n"
    (found,) = audit_source(text, "")
    assert ("in-place changes unnoticed" in found.breaks) is keeps


@pytest.mark.short
@pytest.mark.parametrize("line", ["ctx.x, ctx.w = inputs", "ctx.inputs = inputs", "ctx.x = inputs[0]"])
def test_inputs_kept_by_setup_context(line):
    """The inputs of setup_context may be kept without names of their own."""
    whole = f"def setup_context(ctx, inputs, output):\n        {line}"
    text = function("x", "g").replace("ctx, x, alpha=1.0", "x, alpha=1.0").replace("ctx.save_for_backward(x)", "pass")
    (found,) = audit_source(text.replace("    @staticmethod\n    def backward", f"    {whole}\n\n    def backward"), "")
    assert "in-place changes unnoticed" in found.breaks


def test_an_inherited_backward():
    """A class with the backward of its base is replaced by its shape, breaks where both do, and stands for the base."""
    text = """
class Straight(torch.autograd.Function):
    generate_vmap_rule = True
    @staticmethod
    @once_differentiable
    def backward(ctx, g): return g

class RoundSTE(Straight):
    @staticmethod
    def forward(ctx, x): return x.round()

class Sharp(RoundSTE):
    @staticmethod
    def backward(ctx, g): return g * 2

class Alone(torch.autograd.Function):
    @staticmethod
    def backward(ctx, g): return g
"""
    found = {f.name: f for f in audit_source(text, "")}
    assert [*found] == ["RoundSTE", "Sharp", "Alone"]
    assert found["RoundSTE"].replacement == "round(x)"
    assert found["RoundSTE"].breaks == ("func.grad", "jvp", "compiled transforms", "second order")
    assert found["Sharp"].replacement == "adopt(Sharp)"
    assert found["Sharp"].breaks == ("func.grad", "jvp", "compiled transforms")


@pytest.mark.short
@pytest.mark.parametrize(
    ("backward", "write"),
    [
        ("grad = None; if ctx.needs_input_grad[0]: grad = -g * ctx.alpha; return grad, None", "reverse_grad(x, scale)"),
        ("grad = other = None; if ctx.needs_input_grad[0]: grad = -g; return grad, other", "reverse_grad(x)"),
        ("grad, other = None, None; if ctx.needs_input_grad[0]: grad = -g; return grad, other", "reverse_grad(x)"),
        ("if not ctx.needs_input_grad[0]: return None, None; return -g, None", "reverse_grad(x)"),
        ("if ctx.needs_input_grad[0]: return -g, None; return None, None", "reverse_grad(x)"),
        ("if ctx.needs_input_grad[0]: return -g, None; return g, None", "adopt(Own)"),
        ("grad = g; grad, other = f(g); return grad, other", "adopt(Own)"),
        ("return None, -g", "adopt(Own)"),
    ],
)
def test_gradients_that_nobody_asks_for(backward, write):
    """A None where no gradient is needed says nothing about the derivative; two different returns have no one shape."""
    lines = "\n        ".join(backward.split("; "))
    text = f"""
class Own(torch.autograd.Function):
    def forward(ctx, x, alpha): return x.view_as(x)
    def backward(ctx, g):
        {lines}
"""
    (found,) = audit_source(text, "")
    assert found.replacement == write


SOURCE = function("x.round()", "g")


def test_the_command(tmp_path, capsys):
    """The command prints a table or JSON, and exits with 1 if it found something, 0 if not, 2 for paths that do not exist."""
    (tmp_path / "inner").mkdir()
    file = tmp_path / "inner" / "own.py"
    file.write_text(SOURCE + "raise RuntimeError('this runs')\n")
    (tmp_path / "broken.py").write_text("def (:\n")
    assert main(["audit", str(tmp_path), "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["file"], found["line"], found["replacement"]) == (str(file), 4, "round(x)")
    assert main(["audit", str(file)]) == 1
    shown = capsys.readouterr().out
    assert "round(x)" in shown
    assert "Function: 1" in shown
    file.write_text("x = 1\n")
    assert main(["audit", str(file)]) == 0
    assert main(["audit", "no_such_package_at_all"]) == 2
    assert main(["audit", str(tmp_path / "broken.py")]) == 2


def test_a_package_is_read_and_not_imported():
    """A package is found by its name, and a module in it by its dotted name."""
    found = audit(["torch.utils.checkpoint"])
    assert {f.file for f in found} == {"torch/utils/checkpoint.py"}
    assert "CheckpointFunction" in [f.name for f in found if f.kind == "Function"]


@pytest.mark.long
def test_probes_run_what_was_found(tmp_path):
    """Probes run each class as it is and adopted; a class that cannot be imported or called says so."""
    file = tmp_path / "audited_own.py"
    file.write_text(SOURCE)
    (finding,) = audit([str(file)])
    found = probe(finding)
    assert {*found} == {*PROBES}
    assert found["func.grad"] == "fails -> passes"
    assert found["backward"] == "passes -> passes"
    file.write_text(function("(x + torch.randn_like(x) > 0).float()", "g / (1 + torch.rand_like(x))"))
    assert probe(finding) == {"not run": "it draws random numbers"}
    file.write_text(SOURCE + "raise RuntimeError('this runs')\n")
    assert "RuntimeError: this runs" in probe(finding)["not run"]


@pytest.mark.long(but=1)
@pytest.mark.parametrize(
    ("forward", "backward"),
    [
        ("(x / s.view(-1, 1)).round().clamp(low, high) * s.view(-1, 1)", "g, g.sum(1), None, None"),
        ("(x / s.reshape(1, -1, 1, 1)).round() * s.reshape(1, -1, 1, 1) * low / high", "g, g.sum((0, 2, 3)), None, None"),
        ("x * s.item() * low * high", "g, None, None, None"),
    ],
)
def test_probes_guess_parameters_by_row_and_channel(forward, backward, tmp_path):
    """A scale may be one number, or one for each row or channel; other arguments are numbers by their names."""
    file = tmp_path / f"audited_{abs(hash(forward))}.py"
    file.write_text(
        "import torch\nclass Own(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x, s, low, high):\n"
        f"        assert low < high and x.shape[0] > 1\n        return {forward}\n"
        f"    @staticmethod\n    def backward(ctx, g):\n        return {backward}\n"
    )
    (finding,) = audit([str(file)])
    assert {*probe(finding)} == {*PROBES}


def test_operators_of_torch(tmp_path, capsys):
    """Calls of torch's operators that lack derivatives are named, by what torch lacks; other code with such names is not."""
    code = """
from torch.nn import LayerNorm as Norm, functional as F
import torch, torch.nn as nn
norm, other = Norm(3), nn.LayerNorm(3)
y = F.grid_sample(x, g) + torch.linalg.det(a) + sympy.det(a) + F.relu(x)
"""
    (tmp_path / "model.py").write_text(code)
    (tmp_path / "broken.py").write_text("def")
    found = torch_operators([str(tmp_path)])
    assert {name: [p.rpartition(":")[2] for p in places] for name, (_, places) in found.items()} == {
        "LayerNorm": ["4", "4"],
        "grid_sample": ["5"],
        "det": ["5"],
    }
    assert main(["audit", str(tmp_path / "model.py")]) == 0
    told = capsys.readouterr().out
    assert "forward mode, differentiated again, is wrong" in told
    assert "LayerNorm (" in told


def test_operators_of_torch_have_names():
    """Those of the table are completed ones."""
    assert {f"aten::{name}" for name in _OPERATOR.values()} <= set(fullgrad.completion.operators())


def test_a_file_is_parsed_once(tmp_path, monkeypatch):
    """The command takes the findings and torch's operators from one syntax tree of each file."""
    (tmp_path / "one.py").write_text(SOURCE)
    (tmp_path / "two.py").write_text("import torch\ny = torch.linalg.det(x)\n")
    texts, parse = [], ast.parse
    monkeypatch.setattr(ast, "parse", lambda text, *rest, **options: texts.append(text) or parse(text, *rest, **options))
    assert main(["audit", str(tmp_path)]) == 1
    assert len(texts) == 2


def test_a_package_by_its_name_on_the_index(tmp_path, monkeypatch):
    """A distribution stands for its modules, in any spelling of its name; a name of nothing says so."""
    (tmp_path / "own_module").mkdir()
    (tmp_path / "own_module" / "__init__.py").write_text(SOURCE)
    (tmp_path / "alone.py").write_text(SOURCE)
    info = tmp_path / "a_python_own-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: a-python-own\nVersion: 1.0\n")
    (info / "RECORD").write_text("own_module/__init__.py,,\nalone.py,,\n../../bin/own.py,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("a-python-own", "a_python_own", "A-Python-Own"):
        assert [f.file for f in audit([name])] == ["own_module/__init__.py", "alone.py"]
    with pytest.raises(FileNotFoundError, match="no-such-own: no such file or folder, and no package"):
        audit(["no-such-own"])


OPERATORS = """
import torch

@torch.library.custom_op("space::with_rule", mutates_args=())
def with_rule(x: torch.Tensor) -> torch.Tensor:
    return x.clone()

with_rule.register_autograd(lambda ctx, g: g)
with_rule.register_vmap(lambda info, in_dims, x: (x, in_dims[0]))
triton = torch.library.triton_op("space::without_rule", kernel, mutates_args=())
lib = torch.library.Library("space", "FRAGMENT")
lib.define("of_library(Tensor x) -> Tensor")
lib.define("composite(Tensor x) -> Tensor")
lib.impl("composite", lambda x: x.sin(), "CompositeImplicitAutograd")
sympy.define("no operator")
"""


def test_operators_of_torch_library_are_listed():
    """Each operator of torch.library is listed by its line and name, with what a transform loses; composite ones lose nothing."""
    found = {f.name: f for f in audit_source(OPERATORS, "ops.py") if f.kind == "operator"}
    assert {name: (f.line, f.breaks) for name, f in found.items()} == {
        "space::with_rule": (5, ("func.grad", "jvp (silently 0)")),
        "space::without_rule": (10, ("gradient", "jvp (silently 0)", "one sample at a time")),
        "of_library": (12, ("func.grad", "jvp (silently 0)", "one sample at a time")),
    }
    assert found["space::with_rule"].replacement == "adopt(op), or adopting()"
    assert "reference" in found["space::without_rule"].replacement


def test_folders_of_builds_and_environments_are_left_out(tmp_path):
    """A copy that a build has made is not read again; a package of such a name is."""
    source = function("x.round()", "g")
    left_out = ("build/lib/mine", "dist", "venv", ".venv/lib", ".hidden", "mine.egg-info", "node_modules")
    for folder in ("mine", "mine/build", *left_out):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "own.py").write_text(source)
    (tmp_path / "mine" / "build" / "__init__.py").write_text("")
    assert {f.file for f in audit([str(tmp_path)])} == {f"{tmp_path.as_posix()}/mine{inner}/own.py" for inner in ("", "/build")}


COMMENTED = """
import torch
from torch import nn

class One(torch.autograd.Function):  # fullgrad: ignore
    @staticmethod
    def forward(ctx, x): return x.round()

class Two(torch.autograd.Function):  # fullgrad: ignore[detach trick]
    @staticmethod
    def forward(ctx, x): return x.round()

@torch.library.custom_op("space::name", mutates_args=())
def operator(x: torch.Tensor) -> torch.Tensor:  # fullgrad: ignore[operator]
    return x.clone()

a = x + (q - x).detach()  # why  # fullgrad:ignore[hook, Detach-trick]
b = "# fullgrad: ignore" + x + (q - x).detach()
c = (
    x + (
        q - x
    ).detach()  # fullgrad: ignore
)
d = x + (q - x).detach()  # fullgrad: ignore[hook]
h.register_hook(f)  # fullgrad: ignored
h.register_hook(f)  # fullgrad: ignore[hook]
def forward(w): w.data = w.round()  # fullgrad: ignore[in place]
norm = nn.LayerNorm(3)  # fullgrad: ignore[torch operator]
norm = nn.LayerNorm(3)
"""


def test_a_comment_silences_its_line(tmp_path, capsys):
    """A comment silences all kinds, or those that it names; not those of other lines, nor by words in a string."""
    found = audit_source(COMMENTED, "f.py")
    assert [(f.line, f.kind) for f in found] == [(9, "Function"), (18, "detach trick"), (24, "detach trick"), (25, "hook")]
    file = tmp_path / "f.py"
    file.write_text(COMMENTED)
    assert {name: len(places) for name, (_, places) in torch_operators([str(file)]).items()} == {"LayerNorm": 1}
    file.write_text("a = x + (q - x).detach()  # fullgrad: ignore\n")
    assert main(["audit", str(file)]) == 0
    with pytest.raises(SystemExit):
        main(["audit", "--help"])
    assert "# fullgrad: ignore" in capsys.readouterr().out


OF_VALUES = """
import fullgrad, torch
from fullgrad import blackbox, implicit
from torch.nn import functional as F

def hard(x): return F.layer_norm(x, (3,))
def used(x): return F.group_norm(x, 1)  # told
op = fullgrad.straight_through(hard, lambda x: F.layer_norm(x, (3,)))  # told
op = fullgrad.custom_vjp(used)
op.defvjp(lambda x: (op(x), used(x)), lambda r, g: (g * r,))
op = fullgrad.custom_jvp(lambda x: F.layer_norm(x, (3,)))
op.defjvp(lambda p, t: (op(p[0]), F.layer_norm(t[0], (3,))))  # told
op = fullgrad.with_reference(
    lambda x: F.layer_norm(x, (3,)),
    lambda x: F.layer_norm(x, (3,)),  # told
    backward=lambda x, y, g: F.layer_norm(g, (3,)),
)

@fullgrad.custom_vjp(nondiff_argnums=0)
def decorated(n, x):
    y = torch.empty_like(x)
    y.data.copy_(F.glu(x).round())
    return y

decorated.defvjp(lambda n, x: (decorated(n, x), F.glu(x)), lambda n, r, g: (g * F.glu(r),))  # told

@implicit.root(lambda z, x: torch.linalg.solve(z, x))  # told
def solver(z, x):
    return torch.linalg.solve(z, x)

solver = implicit.root(f)(lambda z, x: torch.linalg.solve(z, x))
y = blackbox.smoothed(lambda x: torch.linalg.det(x), torch.linalg.det(x))  # told
argmin = torch.argmin(torch.linalg.det(x))  # told

@torch.library.custom_op("space::name", mutates_args=())
def operator(x: torch.Tensor) -> torch.Tensor:  # told
    return F.layer_norm(x, (3,))

class Own(fullgrad.Elementwise):
    @staticmethod
    def forward(x, w):
        y = torch.empty_like(x)
        with torch.no_grad():
            y.copy_(x.round())
            w.copy_(x.round())  # told
        return F.layer_norm(y, (3,))

    @staticmethod
    def vjp_term(i, v, x, w):
        return F.layer_norm(v, (3,))  # told

class Layer(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        with torch.no_grad():
            y.copy_(x.round())  # told
        return F.layer_norm(y, (3,))  # told
"""


def test_code_of_values_loses_no_derivative(tmp_path):
    """Torch's operators and tensors filled in place count where a derivative goes through them: in rules, and not in what has
    rules.
    """
    file = tmp_path / "f.py"
    file.write_text(OF_VALUES)
    found = audit_source(OF_VALUES, "f.py")
    lines = {f.line for f in found} | {
        int(place.rpartition(":")[2]) for _, places in torch_operators([str(file)]).values() for place in places
    }
    assert sorted(lines) == [i + 1 for i, line in enumerate(OF_VALUES.splitlines()) if "# told" in line]
    assert [f.breaks for f in found if f.kind == "in place"] == [("in-place input",), ("jvp (silently 0)", "in-place input")]


@pytest.mark.short
@pytest.mark.parametrize("place", ["f", "fwd", "bwd", "hard", "soft", "kernel", "reference", "backward", "jvp", "solver"])
def test_derivatives_go_through_rules_and_not_through_values(place):
    """Torch's layer norm, whose forward mode is wrong when differentiated again, makes a derivative wrong in the code of rules
    alone, which is why the audit reads these and not the code of values.
    """
    norm = lambda x: torch.nn.functional.layer_norm(x, (3,))  # noqa: E731
    at = lambda name: norm if name == place else torch.sin  # noqa: E731
    if place in ("f", "fwd", "bwd"):
        f = fullgrad.custom_vjp(at("f"))
        f.defvjp(lambda x: (at("f")(x), at("fwd")(x)), lambda r, g: (g * at("bwd")(r),))
    elif place in ("hard", "soft"):
        f = fullgrad.straight_through(at("hard"), at("soft"))
    elif place == "solver":
        solve = fullgrad.implicit.root(lambda z, x: z - x.sin(), tol=None)(lambda z, x: at("solver")(x))
        f = lambda x: solve(torch.zeros_like(x), x)  # noqa: E731
    else:
        kernels = {"backward": lambda x, y, g: (g[0] * at("backward")(x[0]),), "jvp": lambda x, y, t: t[0] * at("jvp")(x[0])}
        given = {place: kernels[place]} if place in kernels else {}
        f = fullgrad.with_reference(at("kernel"), at("reference"), **given)
    torch.manual_seed(0)
    x, u, v, w = torch.randn(4, 2, 3, dtype=torch.float64)

    def derivatives(f):
        """The second and the third derivative of a sum, by reverse over forward mode, and over reverse mode in that."""
        first = torch.func.grad(lambda x: (w * f(x)).sum())
        functions = (
            lambda x: (u * torch.func.jvp(f, (x,), (v,))[1]).sum(),
            lambda x: (u * torch.func.jvp(first, (x,), (v,))[1]).sum(),
        )
        return torch.stack([torch.func.grad(function)(x) for function in functions])

    plain = derivatives(f)
    with fullgrad.completing():
        right = derivatives(f)
    assert torch.allclose(plain, right) is (place not in ("fwd", "bwd", "soft", "reference"))
