"""``python -m fullgrad diagnose``: what it finds in a model, that the lines it writes mend it, and what its page shows."""

import contextlib
import html.parser
import inspect
import io
import json
import operator
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import fullgrad
from fullgrad._suite.cases import CASES
from fullgrad.cli import _output, main
from fullgrad.diagnosis import _diagnose, _flow, _mend, _page, _transforms

# Each model is in a file of its own: a line that is mended is exchanged there.
HEAD = """
import torch, fullgrad
from torch import nn

class Layer(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        LINE

def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 8), Layer(8, 8), nn.Linear(8, 3))

def batch():
    return torch.randn(16, 5)
"""
STEP = '''
class Step(torch.autograd.Function):
    """A step whose slope is 1."""

    @staticmethod
    def forward(ctx, x):
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        return gradient
'''
# The line of the layer, the kind of its finding, what it says, and the operator in the line that mends it.
LINES = {
    "return torch.round(y * 8) / 8": ("dead gradient", "round passes 0 of the 128 elements", "fullgrad.round(y * 8)"),
    "return y.floor()": ("dead gradient", "floor passes 0 of the 128 elements", "fullgrad.floor(y)"),
    "return torch.sign(y)": ("dead gradient", "sign passes 0 of the 128 elements", "fullgrad.sign_st(y)"),
    "return (y - 8).relu()": ("dead gradient", "relu passes 0 of the 128 elements", "fullgrad.relu_st(y - 8, 8.0)"),
    "return y.clamp(-1e-3, 1e-3)": ("saturated", "clamp passes ", "fullgrad.replace_grad(y.clamp(-0.001, 0.001), y)"),
    "return x * (y > 0)": ("no gradient", "gt has no derivative, and 2 parameters", "fullgrad.greater_st(y, 0)"),
    "return x * (0 < y)": ("no gradient", "gt has no derivative", "fullgrad.greater_st(y, 0)"),
    "return x * (0 == y)": ("no gradient", "eq has no derivative", "fullgrad.eq_st(y, 0)"),
    "return x + y.argmax(-1, keepdim=True)": (
        "no gradient",
        "argmax has no derivative",
        "fullgrad.argmax_st(y, -1, keepdim=True)  # one-hot rows, in place of one_hot: an index has no derivative",
    ),
    "return x * torch.nn.functional.one_hot(y.argmax(-1), 8).float()": (
        "no gradient",
        "argmax has no derivative",
        "return x * fullgrad.argmax_st(y, -1).float()",
    ),
    "return x + torch.sqrt((y - y).sum(-1, keepdim=True))": ("nan gradient", "NaN or infinite after it", "fullgrad.safe.sqrt("),
    "return torch.where(y > 9, 1.0 / (y - y), y)": (
        "nan gradient",
        "NaN or infinite after it",
        "fullgrad.safe.div(torch.as_tensor(1.0), y - y)",
    ),
    "return y + (torch.round(y) - y).detach()": ("detach trick", "breaks float16, inf, -0.0", "fullgrad.round(y)"),
}
SHORT = "return x * (y > 0)"


class Ids(html.parser.HTMLParser):
    """The elements that are open, and all text; elements that are closed in another order raise."""

    def __init__(self, text):
        super().__init__()
        self.open, self.text, self.tags = [], "", []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open += [tag] * (tag not in ("meta", "link"))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def diagnosed(tmp_path, monkeypatch):
    """A function that diagnoses the source of a model: the exit status, the findings, and the page."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    files = []

    def diagnosed(source, *more):
        # The modules stay: a file of the same name would be another's source.
        file = tmp_path / f"{tmp_path.name}_{len(files)}.py"
        files.append(file)
        file.write_text(source)
        more = [a.replace("FILE", str(file)) for a in more]
        arguments = [f"{file}:model", "--batch", f"{file}:batch", *more, "--output", str(tmp_path / "page.html")]
        status = main(["diagnose", *arguments, "--json", str(tmp_path / "found.json")])
        return status, json.loads((tmp_path / "found.json").read_text())["findings"], (tmp_path / "page.html").read_text()

    return diagnosed


@pytest.mark.parametrize("line", [pytest.param(line, marks=() if line == SHORT else pytest.mark.long) for line in LINES])
def test_the_line_of_a_finding_mends_it(line, diagnosed):
    """The line has the full name of an operator; in the place of the line that it names, nothing is found any more."""
    kind, what, written = LINES[line]
    status, findings, page = diagnosed(HEAD.replace("LINE", line))
    (found,) = [f for f in findings if f["kind"] == kind]
    assert status == 1
    assert found["layer"] == "1"
    assert what in f"{found['what']} {found['instead_of']}"
    assert written in found["line"]
    assert found["instead_of"] == line
    text = Ids(page).text
    assert f"{kind} in 1" in text
    assert found["line"] in text
    status, findings, _ = diagnosed(HEAD.replace("LINE", found["line"]))
    assert (status, findings) == (0, [])


def test_the_context_of_a_function_mends_it(diagnosed):
    """The derivatives that fail alone are right inside of the line."""
    source = HEAD.replace("LINE", "return Step.apply(y)").replace("\nclass Layer", f"{STEP}\n\nclass Layer")
    _, (found,), page = diagnosed(source)
    assert found["kind"] == "Function"
    assert "Step, a torch.autograd.Function, runs here" in found["what"]
    assert "by its source it breaks func.grad, vmap, jvp" in found["what"]
    assert {"vmap(grad)", "jvp", "jvp over grad, the product with the Hessian"} <= found["fails"].keys()
    assert found["line"] == "with fullgrad.adopting():"
    assert "vmap(grad)" in Ids(page).text
    names = {}
    exec(source, names)
    model, xs = names["model"](), names["batch"]()
    derivative = "torch.vmap(torch.func.grad(lambda x: model(x).sum()))(xs)"
    with pytest.raises(RuntimeError, match="setup_context"):
        eval(derivative, names | {"model": model, "xs": xs})
    names |= {"model": model, "xs": xs}
    exec(f"{found['line']}\n    found = {derivative}", names)
    ys = xs.requires_grad_()
    assert torch.allclose(names["found"], torch.autograd.grad(model(ys).sum(), ys)[0])


WRONG = """
class Step(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return (x > 0).to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient

    @staticmethod
    def jvp(ctx, t):
        return 0.5 * t
"""


@pytest.mark.long
def test_a_rule_that_disagrees_with_the_backward_is_found(diagnosed):
    """Forward mode of a Function is compared with its reverse mode, and both numbers are told."""
    source = HEAD.replace("LINE", "return Step.apply(y)").replace("\nclass Layer", f"{WRONG}\n\nclass Layer")
    _, (found,), page = diagnosed(source)
    assert found["kind"] == "Function"
    assert found["fails"]["jvp"].startswith("is silently wrong: ")
    assert "reverse mode without torch.func: " in found["fails"]["jvp"]
    wrong, right = [float(t.split()[-1].strip(",")) for t in found["fails"]["jvp"].split(", reverse mode without torch.func: ")]
    assert wrong != right
    # Inside of `adopting` the rule is the same, so the line has the operator with the backward's derivative.
    assert found["line"] == "y = fullgrad.spikes.ste_heaviside(x, None, tie=0.0)"
    mended = source.replace("return Step.apply(y)", found["line"].replace("y =", "return").replace("(x,", "(y,"))
    assert diagnosed(mended)[:2] == (0, [])
    assert "torch.func.grad" not in found["fails"]
    assert "is silently wrong" in Ids(page).text


@pytest.mark.long
@pytest.mark.parametrize(
    ("layer", "name"),
    [
        ("nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)", "flash_attention"),
        ("nn.LayerNorm(8)", "native_layer_norm"),
        ("nn.Hardsigmoid()", "hardsigmoid"),
    ],
)
def test_operators_of_torch_are_told(layer, name, diagnosed):
    """A layer of torch whose higher derivatives raise or are silently wrong is right inside of `completing`."""
    source = (
        f"import torch\nfrom torch import nn\ndef model():\n    return nn.Sequential({layer})\nbatch = torch.randn(4, 6, 8)\n"
    )
    status, findings, _ = diagnosed(source)
    assert status == 1
    assert {f["line"] for f in findings} == {"with fullgrad.completing():"}
    assert any(name in f["what"] for f in findings)
    if layer == "nn.LayerNorm(8)":
        assert all("is silently wrong" in t for f in findings for t in f["fails"].values())


DEEP = """
import torch, fullgrad
from torch import nn

class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(10))
        for layer in self.layers:
            layer.weight.data.mul_(SCALE)

    def forward(self, y):
        for i, layer in enumerate(self.layers):
            y = layer(y).tanh() if SCALE < 1 else layer(y)
            # HERE
        return y

def model():
    return Deep()

def loss(y):
    return y.mean()

def batch():
    return torch.randn(16, 6)
"""


@pytest.mark.long
@pytest.mark.parametrize(("scale", "kind"), [(0.1, "vanishing gradient"), (30.0, "exploding gradient")])
def test_scales_are_found_and_mended(scale, kind, diagnosed):
    """The layer next to the loss is named, and the line after it changes the gradients of the layers before it."""
    source = DEEP.replace("SCALE", str(scale))
    _, (found,), _ = diagnosed(source, "--loss", "FILE:loss")
    assert found["kind"] == kind
    assert len(found["layers"]) > 1
    assert found["layer"] == found["layers"][-1]
    number = found["layer"].removeprefix("layers.")
    line = found["line"].partition("#")[0].replace("y = ", f"y = y if i != {number} else ")
    _, mended, _ = diagnosed(source.replace("# HERE", line), "--loss", "FILE:loss")
    left = [f for f in mended if f["kind"].endswith("ing gradient")]
    assert sum(len(f["layers"]) for f in left) < len(found["layers"])


@pytest.mark.short
def test_the_operators_of_the_lines_exist():
    """Each name in the tables of operators is one of this package."""
    tables = (_mend.ROUNDINGS, _mend._SOFT, _mend.COMPARISONS, _mend._INDICES, _mend._SINGULAR)
    for name in {name for table in tables for name in table.values()}:
        assert callable(operator.attrgetter(name.removeprefix("fullgrad."))(fullgrad)), name


@pytest.mark.long
def test_layers_of_torch_are_exchanged(diagnosed):
    """The line for a dead layer of torch's runs with the model, and its parameters get a gradient."""
    source = (
        HEAD.replace("LINE", "return y").replace("Layer(8, 8)", "nn.ReLU()").replace("    return nn.Seq", "    model = nn.Seq")
    )
    source = source.replace("\ndef batch", "    nn.init.constant_(model[0].bias, -90.0)\n    MEND\n    return model\n\ndef batch")
    _, (found,), _ = diagnosed(source.replace("MEND", "pass"))
    assert found["kind"] == "dead gradient"
    status, findings, _ = diagnosed(source.replace("MEND", found["line"]))
    assert (status, findings) == (0, [])


@pytest.mark.parametrize(
    "layer",
    [
        pytest.param("nn.Tanh()", marks=pytest.mark.long),
        "nn.ReLU()",
        pytest.param("nn.Sequential(nn.GELU(), nn.Dropout(0.5))", marks=pytest.mark.long),
    ],
)
def test_nothing_is_found_in_a_healthy_model(layer, diagnosed, capsys):
    """The exit status is 0, and the page says so and has the layers."""
    source = HEAD.replace("LINE", "return y").replace("nn.Linear(5, 8),", f"nn.Linear(5, 8), {layer},")
    status, findings, page = diagnosed(source)
    assert (status, findings) == (0, [])
    assert "no findings" in capsys.readouterr().out
    parsed = Ids(page)
    assert not parsed.open
    assert "Nothing found" in parsed.text
    assert "Linear" in parsed.text


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "batch"),
    [
        (
            "nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(), nn.Flatten(), nn.LazyLinear(2))",
            "torch.randn(4, 3, 8, 8)",
        ),
        ("nn.Sequential(nn.Linear(5, 6), nn.Dropout1d(), nn.LSTM(6, 2))", "torch.randn(3, 4, 5)"),
        ("nn.LSTM(5, 6)", "torch.randn(3, 4, 5)"),
        ("nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2))", "torch.arange(6).reshape(2, 3)"),
        ("nn.Linear(5, 2)", "{'input': torch.randn(3, 5)}"),
        ("nn.Bilinear(5, 4, 2)", "torch.randn(3, 5), torch.randn(3, 4)"),
        ("nn.Softmax(-1)", "torch.randn(3, 5)"),
    ],
)
def test_models_and_batches_of_any_form(model, batch, diagnosed):
    """Convolutions, recurrent layers, integer inputs, arguments by name or in order, and models without parameters are fine."""
    _, findings, page = diagnosed(f"import torch\nfrom torch import nn\ndef model():\n    return {model}\nbatch = {batch}\n")
    assert [f for f in findings if f["kind"] != "torch operator"] == []
    assert not Ids(page).open


@pytest.mark.long
def test_the_loss_is_the_user_s(diagnosed):
    """A loss of one output is as good as another; one without a derivative is a finding."""
    source = (
        HEAD.replace("LINE", "return y") + "\ndef loss(y):\n    return y[:, 0].sum()\ndef none(y):\n    return y.detach().sum()\n"
    )
    assert diagnosed(source, "--loss", "FILE:loss")[0] == 0
    status, (found,), _ = diagnosed(source, "--loss", "FILE:none")
    assert (status, found["kind"], found["layer"]) == (1, "no gradient", "(all)")


@pytest.mark.long
def test_what_no_gradient_reaches_is_noted(diagnosed):
    """A rounding before a comparison is found once the comparison is mended."""
    source = HEAD.replace("LINE", "y = torch.round(y); return 1.0 * (y > 0)")
    _, found, _ = diagnosed(source)
    assert [f["kind"] for f in found] == ["no gradient"]
    _, found, _ = diagnosed(source.replace("y > 0", "fullgrad.greater_st(y, 0)"))
    assert [f["kind"] for f in found] == ["dead gradient"]
    source = HEAD.replace("LINE", "return torch.round(y)").replace("nn.Linear(8, 3)", "Layer(8, 3)")
    _, found, page = diagnosed(source)
    assert [f["layer"] for f in found] == ["2"]
    assert "no gradient reaches round in 1: diagnose again" in Ids(page).text


@pytest.mark.long
def test_checkpoints_of_torch_are_adopted(diagnosed):
    """The line says so where a checkpoint, which works with ``backward`` alone, is what fails."""
    line = "return torch.utils.checkpoint.checkpoint(torch.tanh, y, use_reentrant=True)"
    _, found, _ = diagnosed(HEAD.replace("LINE", line).replace("import torch,", "import torch.utils.checkpoint,"))
    assert {f["line"] for f in found} == {"with fullgrad.adopting(checkpoint=True), fullgrad.completing():"}


@pytest.mark.long
def test_values_that_are_not_finite_name_the_call(diagnosed):
    """A logarithm of 0 is told at its place, parameters by name; neither the loss nor the scales are blamed."""
    source = HEAD.replace("LINE", "return torch.log(y.relu())").replace(", nn.Linear(8, 3)", "")
    _, (found,), _ = diagnosed(source)
    assert (found["kind"], found["layer"], found["line"]) == ("nan value", "1", "")
    assert "its output is NaN or infinite, by log" in found["what"]
    place, _, number = found["place"].rpartition(":")
    assert place.endswith(".py")
    assert "torch.log" in source.splitlines()[int(number) - 1]
    source = HEAD.replace("LINE", "return y").replace("    return nn.Seq", "    model = nn.Seq")
    source = source.replace("\ndef batch", "    model[0].weight.data[0, 0] = float('nan')\n    return model\n\ndef batch")
    _, (found,), _ = diagnosed(source)
    assert (found["kind"], found["layer"], found["line"]) == ("nan value", "0", "")
    assert "so are parameters: weight" in found["what"]


@pytest.mark.long
def test_a_wrong_derivative_is_found_along_any_direction():
    """Along some directions the error of torch's layer norm is small, and is found all the same."""
    wrong = {"grad over jvp", "jvp over jvp", "vmap(jvp over jvp)"}
    for seed in range(60):
        torch.manual_seed(seed)
        call = _flow.Call("a", nn.LayerNorm(8), (torch.randn(4, 5, 8),), {})
        assert _transforms.tested(call, False, (), lambda *words: None).fails.keys() == wrong, seed


class Recurrent(nn.Module):
    """A cell in a loop, whose layer norm and detached gate fail in some ways."""

    def __init__(self):
        super().__init__()
        self.cell = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Tanh())
        self.other = nn.Linear(4, 2)
        self.calls = 0

    def forward(self, x):
        """Six steps."""
        self.calls += 1
        for _ in range(6):
            x = x + self.cell(x)
        with torch.no_grad():
            gate = torch.sigmoid(x)
        return self.other(x * gate)


@pytest.mark.parametrize("model", [Recurrent, lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)])
def test_what_fails_in_a_layer_is_not_tried_around_it(model, monkeypatch):
    """The findings are those of all ways in all layers; contexts are tried where a way fails that does in no inner layer."""
    torch.manual_seed(0)
    model, x, steps = model(), torch.randn(2, 3, 4), []
    found = _diagnose.diagnose(model, (x,), {}, step=lambda *words: steps.append(words)).findings
    tested = _diagnose.tested
    with monkeypatch.context() as patch:
        patch.setattr(_diagnose, "tested", lambda call, has, known, step: tested(call, has, (), lambda *words: None))
        assert _diagnose.diagnose(model, (x,), {}).findings == found
    failing = {way for f in found if f.layer != "(all)" for way in f.fails}
    around = [words[1:] for words in steps if words[0].endswith(", (all)")]
    assert failing
    assert around
    own = {way for f in found if f.layer == "(all)" for way in f.fails}
    assert bool([words for words in around if len(words) > 1]) is bool(own)
    assert not failing & {words[0] for words in around if len(words) == 1}


def test_how_often_a_layer_runs():
    """As often as the docstring of `diagnose` says: for the model 2 times, for its derivatives 19."""

    class Smooth(nn.Module):
        calls = 0

        def forward(self, x):
            Smooth.calls += 1
            return x.sin()

    _diagnose.diagnose(Smooth(), (torch.randn(3, 4, requires_grad=True),), {})
    assert Smooth.calls == 2 + 19


class Terminal(io.StringIO):
    """A standard error that is shown."""

    def isatty(self):
        """As of a terminal."""
        return True


@pytest.mark.parametrize("has_rich", [True, False])
@pytest.mark.parametrize("is_terminal", [True, False])
def test_long_work_shows_what_it_does(has_rich, is_terminal, monkeypatch):
    """In a terminal alone, and after some seconds alone; without rich in lines of their own."""
    shown = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(_output, "_QUIET", 0.05)
    monkeypatch.setenv("TERM", "xterm")
    if not has_rich:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    with _output.Signs("work") as step:
        step("layer [1]", "first")
        time.sleep(0.6)
        assert ("work: layer [1]: first" in shown.getvalue()) is is_terminal
    monkeypatch.setattr(_output, "_QUIET", 60.0)
    before = shown.getvalue()
    with _output.Signs("work") as step:
        step("short")
    assert shown.getvalue() == before


@pytest.mark.long
def test_gradients_may_be_sparse(diagnosed):
    """An embedding with sparse gradients is diagnosed as any other layer."""
    source = "from torch import nn, arange\ndef model():\n    return nn.Embedding(9, 4, sparse=True)\nbatch = arange(6)\n"
    _, findings, page = diagnosed(source)
    assert {f["kind"] for f in findings} <= {"transform"}
    assert "get no gradient" not in page


@pytest.mark.long
def test_values_used_as_constants_are_compared_with_reverse_mode(diagnosed):
    """A layer that detaches declares another derivative than that of its value; forward mode does not heed `torch.no_grad`."""
    assert diagnosed(HEAD.replace("LINE", "return y / y.square().mean().sqrt().detach()"))[:2] == (0, [])
    _, (found,), _ = diagnosed(HEAD.replace("LINE", "with torch.no_grad(): s = y.norm()\n        return y / s"))
    assert {"jvp", "jvp over jvp"} <= found["fails"].keys()
    assert not {"torch.func.grad", "vmap(grad)", "grad over grad"} & found["fails"].keys()
    assert "uses torch.no_grad, which forward mode ignores" in found["what"]
    assert found["line"] == "y = y.detach()  # in place of torch.no_grad"


@pytest.mark.long
@pytest.mark.parametrize(
    ("context", "line"),
    [
        ("no_grad", "with torch.no_grad(): y = y.exp() + 1\n        return y"),
        ("no_grad", "return torch.no_grad()(torch.exp)(y)"),
        ("inference_mode", "with torch.inference_mode(): y = y.exp() + 1\n        return y.clone()"),
    ],
)
def test_contexts_that_end_the_gradient_are_told_once(context, line, diagnosed):
    """One finding names the context, its place, and all parameters that get no gradient."""
    source = HEAD.replace("LINE", line)
    _, findings, _ = diagnosed(source)
    (found,) = [f for f in findings if f["kind"] == "no gradient"]
    assert found["layer"] == "1"
    assert f"torch.{context} ends the gradient, and 4 parameters before it get no gradient: 0.bias, 0.weight" in found["what"]
    number = int(found["place"].rpartition(":")[2])
    assert f"torch.{context}" in source.splitlines()[number - 1]


@pytest.mark.long
def test_operators_that_change_the_gradient_alone_are_right_as_they_are(diagnosed):
    """Such a gradient is the transpose of no tangent: forward mode differs by design, and reverse mode is still compared."""
    assert diagnosed(HEAD.replace("LINE", "return fullgrad.scale_grad(y)"))[:2] == (0, [])
    source = HEAD.replace("LINE", "return Step.apply(fullgrad.scale_grad(y))").replace("\nclass Layer", f"{STEP}\n\nclass Layer")
    _, (found,), _ = diagnosed(source)
    assert "torch.func.grad" in found["fails"]


QUANTIZED = """
def model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    fullgrad.nn.quantize_(model, 4, 8, [torch.randn(6, 8)], learn=True)
    model[0].weight_quantizer.scale.data[:3] = -1.0
    return model
"""
BOUNDED = """
class Bounded(nn.Linear):
    def forward(self, x):
        return BOUND

model = nn.Sequential(nn.Sequential(nn.Linear(8, 8), Bounded(8, 8)), nn.Linear(8, 8))
"""

OWN = """
class Own(fullgrad.Function):
    is_linear = False
    @staticmethod
    def forward(x):
        return x.clone()
    @staticmethod
    def setup_context(ctx, inputs, output):
        pass
    @staticmethod
    def vjp(ctx, g):
        return g.sign()
    @staticmethod
    def jvp(ctx, t):
        return t
    @classmethod
    def vmap(cls, info, in_dims, x):
        return cls.apply(x), in_dims[0]
"""


@pytest.mark.parametrize(
    ("source", "layer"),
    [
        (QUANTIZED, "0.weight_quantizer and 1 more"),
        (BOUNDED.replace("BOUND", "super().forward(fullgrad.lower_bound(x, 0.2))"), "0.1"),
        (BOUNDED.replace("BOUND", "fullgrad.clip_grad(super().forward(x), 0.01)"), "0.1"),
        (OWN + BOUNDED.replace("BOUND", "Own.apply(super().forward(x))"), "0.1"),
    ],
)
def test_gradients_that_are_the_transpose_of_no_tangent_are_noted(source, layer, diagnosed, capsys):
    """Forward mode of a layer that contains such an operator differs by declaration: a note, and no finding."""
    status, findings, _ = diagnosed(f"{BATCH}import fullgrad\n{source}")
    assert (status, findings) == (0, [])
    assert f"note: forward mode of {layer} differs from reverse mode by design" in capsys.readouterr().out


def test_the_operators_that_are_not_compared_are_those_of_the_kit():
    """An operator whose case says that its map of the gradient is not linear says so itself, and no other one does."""
    apart = [case for case in CASES if not case.linear]
    for case in [case for case in apart if case.has_tangent]:
        inputs = [x.clone().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in case.inputs]
        y = case.operator(*inputs)  # torch 2.11 reads a graph only while its output lives
        classes = [type(node)._forward_cls for node in _flow.reachable([y.grad_fn]) if node.next_functions]
        assert not all(map(_flow.is_linear, classes)), case.name
    named = {
        cls.__name__ for cls in _flow._subclasses(fullgrad.Function) if not cls.is_linear and cls.__module__.startswith("full")
    }
    assert named & {name for case in CASES for name in case.covers} <= {name for case in apart for name in case.covers}


UNMENDED = """
class Wrong(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0].cos()

    @staticmethod
    def jvp(ctx, t):
        return 3 * t

class Inner(nn.Module):
    def forward(self, x):
        return Wrong.apply(x)

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.inner = nn.Linear(8, 24), Inner()
    def forward(self, x):
        q, k, v = self.inner(self.linear(x)).view(2, 3, 3, 2, 4).permute(2, 0, 3, 1, 4)
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

model = Attention()
"""


def test_a_context_that_mends_a_layer_is_its_line_though_an_inner_layer_still_fails(diagnosed):
    """A way that no context mends in an inner layer fails around it in each of them, which is not about the layer around."""
    _, findings, _ = diagnosed(BATCH + UNMENDED)
    inner, outer = findings
    assert (inner["layer"], inner["line"], "5 also inside of the contexts" in inner["what"]) == ("inner", "", True)
    assert (outer["layer"], outer["line"]) == ("(all)", "with fullgrad.completing():")
    assert not outer["fails"].keys() & inner["fails"].keys()
    assert outer["what"].endswith("; inside of the context 1 other still fails")


BATCH = "import torch\nfrom torch import nn\ntorch.manual_seed(0)\nbatch = torch.randn(6, 8)\n"

SPIKING = """
import torch, fullgrad
from torch import nn

class Neurons(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.spike = nn.Linear(8, 32), SPIKE
    def forward(self, x):
        v, spikes = torch.zeros_like(x[0, :, :1]), []
        for current in self.fc(x):
            v = 0.9 * v + current
            spikes.append(self.spike(v))
            v = v - spikes[-1].detach()
        return torch.stack(spikes)

torch.manual_seed(0)
model, batch = nn.Sequential(nn.Linear(8, 8), Neurons(), nn.Linear(32, 3)), torch.randn(5, 16, 8)
"""
# The spike, and the kind of the finding, its words, and its line.
SPIKES = {
    "fullgrad.nn.RectSpike(1.0, threshold=100.0)": (
        "dead gradient",
        "fullgrad.spikes.rect passes 0 of the 2,560 elements",
        "a wider surrogate (a smaller alpha) or another threshold passes more",
    ),
    "fullgrad.nn.SigmoidSpike(2000.0, threshold=1.0)": ("saturated", "fullgrad.spikes.sigmoid passes", "a smaller alpha"),
    "lambda v: fullgrad.clamp(v - 100, -1.0, 1.0)": ("dead gradient", "fullgrad.clamp passes 0 of", "other bounds pass more"),
    "lambda v: (v >= 1).float()": ("no gradient", "ge has no derivative, and 4 parameters", "greater_equal_st(v, 1)"),
    "lambda v: torch.heaviside(v - 1, torch.ones(()))": (
        "no gradient",
        "heaviside has no derivative: the backward raises, and 4 parameters",
        "fullgrad.heaviside_st(v - 1)  # or a spike of fullgrad.spikes",
    ),
    "lambda v: torch.igamma(v.square() + 1, v.square())": (
        "no gradient",
        "igamma has no derivative: the backward raises, and 4 parameters",
        "y = fullgrad.replace_grad(igamma(x.detach()), x)",
    ),
}


@pytest.mark.parametrize("spike", SPIKES)
def test_the_finding_of_a_spiking_network_is_at_its_spike(spike, diagnosed, capsys):
    """It is the first, names the operator, its line and what mends it; neither the start of the state nor the reset is found."""
    kind, what, mend = SPIKES[spike]
    source = SPIKING.replace("SPIKE", spike)
    status, (found, *others), _ = diagnosed(source)
    assert (status, found["kind"]) == (1, kind)
    assert what in found["what"]
    assert mend in f"{found['what']} {found['line']}"
    assert "spike" in source.splitlines()[int(found["place"].rpartition(":")[2]) - 1]
    assert not [f for f in others if f["kind"] == "no gradient"]
    told = capsys.readouterr().out
    assert (f"(at {found['place']})" in told) is (not found["line"])
    assert ("note: these parameters get no gradient, or zeros: 0.weight" in told) is (kind == "dead gradient")


@pytest.mark.parametrize("spike", ["fullgrad.nn.SigmoidSpike(2.0, threshold=0.5)", "fullgrad.nn.RectSpike(0.5, threshold=1.0)"])
def test_nothing_is_found_at_a_spike_that_passes_its_gradient(spike, diagnosed):
    """Not even in a step at which it passes none."""
    assert diagnosed(SPIKING.replace("SPIKE", spike))[:2] == (0, [])


@pytest.mark.parametrize(
    ("kind", "is_found"), [("nn.ReLU()", True), ("fullgrad.nn.RectSpike(1.0)", True), ("fullgrad.nn.Round()", False)]
)
def test_units_without_a_gradient_are_found_behind_any_activation(kind, is_found, diagnosed):
    """24 of 32 units far below the threshold are told behind torch's activation and behind a spike of this package alike."""
    source = f"{BATCH}import fullgrad\nmodel = nn.Sequential(nn.Linear(8, 32), {kind}, nn.Linear(32, 2))\n"
    _, findings, _ = diagnosed(source + "with torch.no_grad():\n    model[0].bias[:24] -= 100\n")
    assert [f["kind"] for f in findings if "passes no gradient from any sample at 24 of 32 units; it passes" in f["what"]] == [
        "saturated"
    ] * is_found


@pytest.mark.parametrize(("off", "finding"), [(8, None), (24, "saturated"), (32, "dead gradient")])
def test_features_of_a_sparse_autoencoder_are_few_by_design(off, finding, diagnosed):
    """A JumpReLU passes a twentieth of the gradient, and nothing is found while most features are on for some sample."""
    source = f"""{BATCH}import fullgrad
spike = fullgrad.nn.JumpReLU(threshold=torch.full((32,), 0.9), bandwidth=0.1)
model, batch = nn.Sequential(nn.Linear(8, 32), spike, nn.Linear(32, 8)), torch.randn(256, 8)
with torch.no_grad():
    model[0].bias[:{off}] -= 100
"""
    _, findings, _ = diagnosed(source)
    assert [f["kind"] for f in findings] == [finding] * (finding is not None)
    assert all("a lower threshold passes more; with input_gradient='ste'" in f["what"] for f in findings)


def learned():
    """Modules of this package, fixed and with a parameter that learns, for each; not those that need other arguments."""
    for name in fullgrad.nn.__all__:
        make = getattr(fullgrad.nn, name)
        names = {} if not isinstance(make, type) else dict(inspect.signature(make).parameters)
        given = [1.0] * sum(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in names.values())
        for parameter in names if "learnable" in names else ():
            with contextlib.suppress(TypeError, ValueError):
                yield f"{name} {parameter}", make(*given), make(*given, learnable=parameter)


def test_parameters_that_learn_hide_no_dead_units():
    """Elements and units are counted as with the parameter fixed."""
    x, counted = torch.randn(16, 6, generator=torch.Generator().manual_seed(0)), set()
    for name, *layers in learned():
        found = []
        for layer in layers:
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(6, 48), layer, nn.Linear(48, 3))
            model[0].bias.data[:30] -= 30
            try:
                flow = _flow.flow(model, (x,), {}, _flow.squares)
            except (RuntimeError, TypeError, ValueError, AttributeError):  # arguments or shapes of another kind
                break
            node = next(n for n in flow.nodes if n.layer == "1" and (n.is_own or n.elements))
            found.append((node.elements, node.passed, _flow.units_without(node), _flow.is_dead(node), _flow.is_saturated(node)))
        assert len(found) < 2 or found[0] == found[1], name
        counted |= {name} if len(found) == 2 else set()
    expected = {"RectSpike alpha", "ATanSpike threshold", "ClampST softness", "PACT alpha", "LSQ scale", "TQT log2_threshold"}
    assert expected <= counted
    assert len(counted) > 90


STATES = """
import torch, fullgrad
from torch import nn

class Neurons(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 48), nn.Linear(48, 32)])
        self.spikes = SPIKES
        self.layers[0].bias.data[:30] -= 30
    def forward(self, x):
        states = [0.0, 0.0]
        for y in x:
            for i, (layer, spike) in enumerate(zip(self.layers, self.spikes)):
                v = 0.9 * states[i] + layer(y)
                y = spike(v)
                states[i] = v - y.detach()
        return y

torch.manual_seed(0)
model, batch = Neurons(), 3 * torch.randn(5, 16, 8)
"""


@pytest.mark.parametrize(
    "spikes",
    [
        "nn.ModuleList([fullgrad.nn.RectSpike(torch.ones(n), learnable='alpha') for n in (48, 32)])",
        "nn.ModuleList([fullgrad.nn.RectSpike(1.0, torch.zeros(n), learnable='threshold') for n in (48, 32)])",
        "[lambda v: fullgrad.spikes.rect(v, 1.0)] * 2",
    ],
)
def test_dead_units_of_a_layer_in_a_loop_are_told(spikes, diagnosed):
    """As many as the bias has gradients that are 0, whether the surrogate learns, and whether one line calls both layers."""
    source = STATES.replace("SPIKES", spikes)
    _, findings, _ = diagnosed(source)
    names = {}
    exec(source, names)
    _flow.squares(names["model"](names["batch"])).backward()
    dead = int(names["model"].layers[0].bias.grad.eq(0).sum())
    assert dead >= 30
    assert any(
        f["kind"] == "saturated" and f"passes no gradient from any sample at {dead} of 48 units" in f["what"] for f in findings
    )


@pytest.mark.parametrize("kind", ["nn.ReLU()", "fullgrad.nn.ATanSpike(2.0)", "fullgrad.nn.FakeQuantize(0.1)", "Tailed()"])
def test_a_few_dead_units_are_a_note(kind, diagnosed, capsys, tmp_path):
    """The exit status is 0; the JSON has their indices, the table of the page how many, and a note says it in the terminal."""
    function = STEP.replace("return gradient", "return gradient / (1 + 10 * ctx.saved_tensors[0].abs()) ** 2")
    function = function.replace("return (x > 0)", "ctx.save_for_backward(x)\n        return (x > 0)")
    tailed = "class Tailed(nn.Module):\n    def forward(self, x):\n        return Step.apply(x)\n"
    source = f"{BATCH}import fullgrad\n{function}\n{tailed}\nmodel = nn.Sequential(nn.Linear(8, 32), {kind}, nn.Linear(32, 2))\n"
    status, findings, page = diagnosed(
        source + "with torch.no_grad():\n    model[0].bias[3:8] -= 100\nbatch = torch.randn(64, 8)\n"
    )
    assert status == (kind == "Tailed()")
    assert [f for f in findings if f["kind"] != "Function"] == []
    report = json.loads((tmp_path / "found.json").read_text())
    rows = {row["name"]: (row["units"], row["units_without"]) for row in report["layers"]}
    assert rows == {"(all)": (None, []), "0": (None, []), "1": (32, [*range(3, 8)]), "2": (None, [])}
    assert "5 of 32" in Ids(page).text.partition("units without")[2]
    told = capsys.readouterr().out
    assert "note: units without a gradient from any sample: 5 of 32 of " in told
    assert " in 1; more samples may reach them" in told


STEPS = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(LAYERS)])
    def forward(self, x):
        y = x
        for layer in self.layers:
            for t in range(STEPS):
                y = layer(y if t == 0 else x + y)
                y = (y + (100 if t == 2 else -100) * dead).RELU
        return y
dead, batch, model = torch.arange(8) < 5, torch.randn(16, 8), Model()
"""


@pytest.mark.parametrize("relu", ["relu()", "clamp(0.0, 1000.0)"])
@pytest.mark.parametrize(("layers", "steps", "is_found"), [(1, 2, True), (1, 4, False), (3, 1, True)])
def test_steps_of_a_loop_count_together_and_its_layers_apart(relu, layers, steps, is_found, diagnosed):
    """Units that get a gradient in one of the steps are alive; those of one layer are dead whatever the next one has."""
    source = STEPS.replace("LAYERS", str(layers)).replace("STEPS", str(steps)).replace("RELU", relu)
    if layers > 1:
        source = source.replace("-100) * dead", "-100 * (layer is self.layers[1])) * dead")
    _, findings, _ = diagnosed(f"{BATCH}{source}")
    assert [f["kind"] for f in findings if "5 of 8 units" in f["what"]] == ["saturated"] * is_found


def test_parameters_alone_are_no_saturation(diagnosed):
    """Data needs no gradient: that of the scale alone, one number, is not a small share of it."""
    source = f"{BATCH}import fullgrad\nmodel = nn.Sequential(fullgrad.nn.LSQ(0.1, bits=8), nn.Linear(8, 2))\n"
    assert diagnosed(source)[:2] == (0, [])


@pytest.mark.parametrize(
    ("spike", "bias", "kind"),
    [
        ("fullgrad.nn.ATanSpike(2.0, threshold=50.0)", 0.0, "dead gradient"),
        ("fullgrad.nn.FastSigmoidSpike(25.0, threshold=5.0, learnable='threshold')", 0.0, "dead gradient"),
        ("fullgrad.nn.ATanSpike(2.0, learnable='alpha')", -30.0, "saturated"),
        ("fullgrad.nn.ReLUST(softness=1.0)", -12.0, "saturated"),
        ("fullgrad.nn.ATanSpike(2.0)", 0.0, ""),
        ("fullgrad.nn.FastSigmoidSpike(25.0, threshold=1.0)", 0.0, ""),
        ("fullgrad.nn.FastSigmoidSpike(100.0, threshold=0.5, learnable='slope')", 0.0, ""),
        ("fullgrad.nn.SigmoidSpike(25.0, threshold=0.5)", 0.0, ""),
        ("fullgrad.nn.ScaleBwd(1e-4)", -30.0, ""),
    ],
)
def test_long_tails_pass_no_gradient_where_the_value_never_changes(spike, bias, kind, diagnosed):
    """The size of the gradient counts at units that never fire or always do, and not at those that fire, nor at a scale."""
    source = f"{BATCH}import fullgrad\nmodel = nn.Sequential(nn.Linear(8, 32), {spike}, nn.Linear(32, 2))\nbatch = 3 * batch\n"
    _, findings, _ = diagnosed(source + f"with torch.no_grad():\n    model[0].bias[:24] += {bias}\n")
    assert [f["kind"] for f in findings] == [kind] * bool(kind)
    told = {
        "dead gradient": "less than a hundredth of the gradient",
        "saturated": "at 24 of 32 units, or less than a hundredth of it, with the same value for all samples: ",
    }
    assert not kind or told[kind] in findings[0]["what"]


def test_a_function_with_long_tails_that_never_fires_is_told(diagnosed):
    """A surrogate of another package far above all values passes next to nothing; a Function that scales the gradient is fine."""
    function = STEP.replace("return gradient", "return gradient / (1 + (10 * (ctx.saved_tensors[0] - LEVEL)).abs()) ** 2")
    function = function.replace("return (x > 0)", "ctx.save_for_backward(x)\n        return (x > LEVEL)")
    source = HEAD.replace("LINE", "return Step.apply(y)").replace("\nclass Layer", f"{function}\n\nclass Layer")
    for level, kinds in (("50", ["dead gradient"]), ("0.1", [])):
        _, findings, _ = diagnosed(source.replace("LEVEL", level))
        assert [f["kind"] for f in findings if f["kind"] not in ("Function", "vanishing gradient")] == kinds
    source = source.replace("return (x > LEVEL).to(x.dtype)", "return 1e-4 * x").replace(
        "gradient / (1 + (10 * (ctx.saved_tensors[0] - LEVEL)).abs()) ** 2", "1e-4 * gradient"
    )
    assert {f["kind"] for f in diagnosed(source)[1]} <= {"Function"}


TRANSFORMED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
    def forward(self, x):
        def layer(row):
            return self.linear(row).relu()
        return RESULT
model = Model()
"""


@pytest.mark.parametrize(
    "result",
    [
        "torch.func.vmap(layer)(x)",
        "torch.func.grad(lambda x: layer(x).sum())(x)",
        "torch.func.vmap(torch.func.grad(lambda x: layer(x).sum()))(x)",
        "torch.func.jvp(lambda x: self.linear(x).tanh(), (x,), (torch.ones_like(x),))[1]",
    ],
)
def test_models_that_transform_their_layers(result, diagnosed):
    """No number is read inside of a model's own transforms; a second derivative that is 0 is no dead gradient, a first one is."""
    source = BATCH + TRANSFORMED.replace("RESULT", result)
    assert diagnosed(source)[:2] == (0, [])
    if "grad" not in result and "jvp" not in result:
        _, findings, _ = diagnosed(f"{source}model.linear.bias.data -= 100\n")
        assert [f["kind"] for f in findings] == ["dead gradient"]


ESTIMATOR = """
import torch
from torch import nn

class Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, threshold):
        ctx.save_for_backward(x, threshold)
        return (x > threshold).to(x)
    @staticmethod
    def backward(ctx, g):
        x, threshold = ctx.saved_tensors
        return torch.zeros_like(g), (-g * ((x - threshold).abs() < WIDTH)).sum(0)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.threshold = nn.Linear(6, 12), nn.Parameter(torch.full((12,), 0.1))
    def forward(self, x):
        h = self.encoder(x)
        return h * Step.apply(h, self.threshold)

torch.manual_seed(0)
model, batch = Model(), torch.randn(8, 6)
"""


@pytest.mark.parametrize(("width", "is_dead"), [("0.1", False), ("1e-9", True)])
def test_a_function_may_give_the_gradient_to_another_input(width, is_dead, diagnosed):
    """A step whose threshold learns is no dead gradient; where nothing gets one, no line takes the estimator away."""
    _, findings, _ = diagnosed(ESTIMATOR.replace("WIDTH", width))
    found = [f for f in findings if f["kind"] in ("dead gradient", "saturated")]
    assert [(f["kind"], f["line"], "none of its 2 inputs" in f["what"]) for f in found] == [("dead gradient", "", True)] * is_dead


@pytest.mark.long(but=1)
@pytest.mark.parametrize("layer", [f"nn.{name}(inplace=True)" for name in ("ReLU", "LeakyReLU", "ELU", "Hardtanh")])
def test_a_layer_that_begins_in_place_behind_another(layer, diagnosed):
    """It writes into the output of the layer before it, its nodes are its own, and nothing is found."""
    status, findings, _ = diagnosed(f"{BATCH}model = nn.Sequential(nn.Linear(8, 8), nn.Sequential({layer}, nn.Linear(8, 2)))\n")
    assert (status, findings) == (0, [])


def test_an_operator_that_begins_in_place_is_told_by_its_layer(diagnosed):
    """The layer is named whose operator lacks a derivative, though its input has that operator's node."""
    _, findings, _ = diagnosed(f"{BATCH}model = nn.Sequential(nn.Linear(8, 8), nn.Hardsigmoid(True), nn.Linear(8, 2))\n")
    assert [(f["layer"], "hardsigmoid" in f["what"]) for f in findings] == [("1", True)]


@pytest.mark.parametrize(("norm", "told"), [("weight_norm", "aten::_weight_norm_interface"), ("spectral_norm", "div_out")])
def test_parametrized_layers_name_the_operator_of_torch(norm, told, diagnosed):
    """A parametrization whose derivatives fail says by which operator of torch."""
    _, findings, _ = diagnosed(f"{BATCH}model = nn.Sequential(nn.utils.parametrizations.{norm}(nn.Linear(8, 8)), nn.Tanh())\n")
    assert [(f["layer"], f"by torch's {told}" in f["what"]) for f in findings] == [("0.parametrizations.weight.0", True)]


@pytest.mark.parametrize(
    ("layer", "batch"),
    [
        ("nn.Sequential(nn.Linear(8, 2))", "(torch.randn(6, 8), torch.arange(6))"),
        ("nn.Linear(8, 2)", "[{'input': torch.randn(6, 8)}, torch.arange(6)]"),
        ("nn.Bilinear(8, 4, 2)", "(torch.randn(6, 8), torch.randn(6, 4), torch.arange(6))"),
    ],
)
def test_a_batch_may_have_labels(layer, batch, diagnosed):
    """Inputs and labels are read as `quantize_` reads them: forward gets what it needs."""
    source = f"import torch\nfrom torch import nn\ntorch.manual_seed(0)\nbatch = {batch}\nmodel = {layer}\n"
    assert diagnosed(source)[:2] == (0, [])


@pytest.mark.long
def test_the_json_is_standard(diagnosed, tmp_path):
    """Infinite losses and gradients are strings there."""
    diagnosed(HEAD.replace("LINE", "return y * float('inf')"))
    text = (tmp_path / "found.json").read_text()
    assert "Infinity" in text or "NaN" in text
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_the_model_stays_as_it_is(tmp_path, monkeypatch):
    """Parameters, gradients, buffers, hooks, the training mode, the batch, and the state of the random numbers."""
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 3)).train()
    model[4].eval()
    calls = []
    model[0].register_forward_hook(lambda *a: calls.append(a) and None)
    model[0].weight.grad = torch.ones(8, 5)
    batch = torch.randn(6, 5)
    monkeypatch.setattr(sys.modules[__name__], "model", model, raising=False)
    monkeypatch.setattr(sys.modules[__name__], "batch", batch, raising=False)
    before, was, state = {n: v.clone() for n, v in model.state_dict().items()}, batch.clone(), torch.get_rng_state()
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks), m.training) for m in model.modules()]
    assert main(["diagnose", f"{__name__}:model", "--batch", f"{__name__}:batch", "--output", str(tmp_path / "page.html")]) in (
        0,
        1,
    )
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())
    assert [(len(m._forward_hooks), len(m._forward_pre_hooks), m.training) for m in model.modules()] == hooks
    assert model[0].weight.grad.eq(1).all()
    assert model[4].weight.grad is None
    assert torch.equal(batch, was)
    assert batch.grad is None
    assert torch.equal(torch.get_rng_state(), state)


def test_the_page_is_one_file_and_escapes_names():
    """Nothing is loaded from elsewhere, dark colors are there, and names cannot become elements."""
    evil = '<script>alert(1)</script>&"'
    found = _diagnose.Found(evil, evil, evil, evil, evil, evil, evil, {evil: evil}, [evil, "b"])
    text = _page.page(evil, _diagnose.Diagnosis([found], [evil], [_diagnose.Layer(evil, evil, float("nan"), 0.0)], float("inf")))
    parsed = Ids(text)
    assert not parsed.open
    assert "script" not in {tag for tag, _ in parsed.tags}
    assert not [attrs for _, attrs in parsed.tags if attrs.keys() & {"src", "href"}]
    assert "http" not in text
    assert "prefers-color-scheme: dark" in text
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in parsed.tags


SOURCE = """
import torch
model, batch, wrong, number = torch.nn.Linear(5, 2), torch.randn(3, 5), torch.randn(3, 4), 3
def in_place(y):
    y = y.exp()
    z = y * y
    y += 1
    return z.sum()
"""


@pytest.mark.short
@pytest.mark.parametrize(
    ("model", "batch", "more", "told"),
    [
        ("FILE:modle", "FILE:batch", (), "has no modle: did you mean model?"),
        ("FILE:model", "FILE:btch", (), "did you mean batch?"),
        ("FILE", "FILE:batch", (), "must be MODULE:NAME or FILE.py:NAME"),
        ("no_such_module_:model", "FILE:batch", (), "no_such_module_ cannot be imported"),
        ("nowhere.py:model", "FILE:batch", (), "there is no file nowhere.py"),
        ("FILE:batch", "FILE:batch", (), "must be a torch.nn.Module or a function that returns one"),
        ("FILE:model", "FILE:number", (), "must be a tensor, or a tuple or dict of arguments"),
        ("FILE:model", "FILE:wrong", (), "raises with"),
        ("FILE:model", "FILE:batch", ("--loss", "FILE:number"), "must be a function of the output"),
        ("FILE:model", "FILE:batch", ("--loss", "torch:sign"), "must return one floating number"),
        ("FILE:model", "FILE:batch", ("--loss", "FILE:in_place"), "the backward of"),
        ("FILE:model", "FILE:batch", ("--output", "no_such_folder/page.html"), "there is no folder no_such_folder"),
    ],
)
def test_wrong_use_is_told_in_one_line(model, batch, more, told, tmp_path, capsys, monkeypatch):
    """The exit status is 2, and the error names the argument and what it must be."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    file = tmp_path / f"wrong_{tmp_path.name}.py"
    file.write_text(SOURCE)
    arguments = [a.replace("FILE", file.name) for a in (model, "--batch", batch, *more)]
    assert main(["diagnose", *arguments]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert not (tmp_path / "diagnose.html").exists()


@pytest.mark.long
def test_the_example_of_the_page_is_what_is_printed(tmp_path, monkeypatch, capsys):
    """The file and the lines in `docs/audit.md`."""
    section = (Path(__file__).parents[2] / "docs" / "audit.md").read_text().partition("\n## Diagnose a model\n")[2]
    source, printed = section.partition("```python\n")[2].partition("```")[0], section.partition("\n$ ")[2].partition("\n```")[0]
    command, _, lines = printed.partition("\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(source)
    assert main(command.removeprefix("python -m fullgrad ").split()) == 1
    assert capsys.readouterr().out.splitlines() == lines.splitlines()
