"""What torch promises to a class, to the letter: requires_grad, its own gradient, zeros for tangents, its name, and numpy."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import fullgrad

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*sample by sample"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated"),  # Dynamo instantiates a class
]
X = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
LOW = torch.tensor(0.5, dtype=torch.float64)
ONE = torch.ones((), dtype=torch.float64)
ALL = {
    "grad": lambda f, x: grad(f)(x),
    "vjp": lambda f, x: vjp(f, x)[1](ONE),
    "jacrev": lambda f, x: jacrev(f)(x),
    "jvp": lambda f, x: jvp(f, (x,), (torch.ones_like(x),))[1],
    "jacfwd": lambda f, x: jacfwd(f)(x),
    "hessian": lambda f, x: hessian(f)(x),
    "reverse over reverse": lambda f, x: jacrev(jacrev(f))(x),
    "vmap of grad": lambda f, x: vmap(grad(f))(torch.stack([x, x + 1])),
    "vmap of jacfwd": lambda f, x: vmap(jacfwd(f))(torch.stack([x, x + 1])),
    "vmap of hessian": lambda f, x: vmap(hessian(f))(torch.stack([x, x + 1])),
}


def close(found, expected):
    found, expected = [torch.utils._pytree.tree_leaves(v) for v in (found, expected)]
    torch.testing.assert_close(found, expected)


class Bounded(torch.autograd.Function):
    """A backward that asks a saved input whether it requires a gradient."""

    @staticmethod
    def forward(ctx, x, low):
        ctx.save_for_backward(x, low)
        return torch.maximum(x, low)

    @staticmethod
    def backward(ctx, g):
        x, low = ctx.saved_tensors
        return g * (x >= low) if x.requires_grad else None, (g * (x < low)).sum() if low.requires_grad else None


class Asking(torch.autograd.Function):
    """A backward that is differentiable only where its gradient requires one."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if g.requires_grad:
            return 2 * x * g
        return 2 * x * g.detach()


class Output(torch.autograd.Function):
    """A backward that asks a saved output."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y if y.requires_grad else None


@pytest.mark.parametrize("way", ALL)
@pytest.mark.parametrize(
    ("f", "plain"),
    [
        (lambda low: (Bounded.apply(X, low) ** 2).sum() * low, lambda low: (torch.maximum(X, low) ** 2).sum() * low),
        (lambda x: Asking.apply(x.sin()), lambda x: x.sin() ** 2),
        (lambda x: Output.apply(x) * x, lambda x: x.exp() * x),
    ],
    ids=["input", "gradient", "output"],
)
def test_a_backward_may_ask_whether_a_tensor_requires_a_gradient(f, plain, way):
    """`requires_grad` in a backward is as in eager autograd under every transform: no part of a derivative is left out."""
    with fullgrad.adopting():
        found = ALL[way](f, LOW)
    close(found, ALL[way](plain, LOW))


def test_an_input_that_needs_no_gradient_says_so():
    """In a backward, `requires_grad` of an input that is constant is False."""
    seen = []

    class Seeing(Bounded):
        @staticmethod
        def backward(ctx, g):
            seen.append([t.requires_grad for t in ctx.saved_tensors])
            return Bounded.backward(ctx, g)

    with fullgrad.adopting():
        vjp(lambda x: Seeing.apply(x, LOW), X)[1](X)
        vjp(lambda low: Seeing.apply(X, low), LOW)[1](X)
    assert seen == [[True, False], [False, True]]


class Writing(torch.autograd.Function):
    """A backward that writes into its gradient."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, g):
        g *= 2 * ctx.saved_tensors[0]
        return g


def test_a_cotangent_of_the_user_is_not_overwritten():
    """A backward that writes into its gradient writes into its own copy, not into the user's tensor."""
    given = torch.ones_like(X)
    with fullgrad.adopting():
        pull = vjp(Writing.apply, X)[1]
        first, second = pull(given), pull(given)
    assert torch.equal(given, torch.ones_like(X))
    close([*first, *second], [2 * X, 2 * X])


@pytest.mark.parametrize("way", ALL)
def test_a_backward_may_write_into_its_gradient(way):
    """Under every transform a backward may write into its gradient."""
    f, plain = (lambda x: (Writing.apply(x) * x).sum()), (lambda x: (x**2 * x).sum())
    with fullgrad.adopting():
        found = ALL[way](f, X)
    close(found, ALL[way](plain, X))


class Surrogate(torch.autograd.Function):
    """A spike that saves its slope's argument alone."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(torch.sigmoid(x))
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (s,) = ctx.saved_tensors
        return g * s * (1 - s)


@pytest.mark.parametrize(
    "second", [hessian, lambda f: jacrev(jacrev(f)), lambda f: jacfwd(jacfwd(f)), lambda f: grad(lambda x: grad(f)(x).sum())]
)
def test_strict_refuses_where_only_an_intermediate_is_saved(second):
    """With `strict`, a second derivative of a class that saves nothing but an intermediate raises; the first one is right."""
    f = lambda x: fullgrad.adopt(Surrogate, strict=True)(x).sum()  # noqa: E731
    close(grad(f)(X), torch.sigmoid(X) * (1 - torch.sigmoid(X)))
    with pytest.raises(NotImplementedError, match=r"Surrogate\.backward was differentiated"):
        second(f)(X)


class Product(torch.autograd.Function):
    """A class with a `jvp` that takes zeros as torch gives them."""

    @staticmethod
    def forward(x, y):
        return x * y, y.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_forward(*inputs)
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g, h):
        x, y = ctx.saved_tensors
        return g * y, g * x + h

    @staticmethod
    def jvp(ctx, tx, ty):
        x, y = ctx.saved_tensors
        return tx * y + x * ty, ty


class ProductOfSome(Product):
    """A class that declines zeros, and leaves out a tangent that an output has not."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        Product.setup_context(ctx, inputs, output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def jvp(ctx, tx, ty):
        x, y = ctx.saved_tensors
        parts = [t for t in (None if tx is None else tx * y, None if ty is None else x * ty) if t is not None]
        return sum(parts), ty


@pytest.mark.parametrize("cls", [Product, ProductOfSome])
@pytest.mark.parametrize("i", [0, 1])
def test_a_jvp_gets_zeros_where_torch_gives_them(cls, i):
    """The tangent of an input without one is zeros, or None if the class has declined them."""
    plain = lambda x, y: (x * y, y.clone())  # noqa: E731

    def of_one(f):
        return lambda v: f(*[v if j == i else X + 2 for j in (0, 1)])

    with fullgrad.adopting():
        f = of_one(cls.apply)
        found = jvp(f, (X,), (X,)), jacfwd(f)(X), jacfwd(jacfwd(f))(X), vmap(jacfwd(f))(torch.stack([X, X]))
    f = of_one(plain)
    close(found, (jvp(f, (X,), (X,)), jacfwd(f)(X), jacfwd(jacfwd(f))(X), vmap(jacfwd(f))(torch.stack([X, X]))))


def test_nodes_and_errors_have_the_name_of_the_class():
    """Nodes of the graph and errors name the class that was adopted."""

    class Cut(Writing):
        @staticmethod
        def backward(ctx, g):
            return g[:2]

    op = fullgrad.adopt(Writing, strict=True)
    assert "WritingBackward" in repr(op(X.clone().requires_grad_()).grad_fn)
    with fullgrad.adopting(), pytest.raises(RuntimeError, match=r"Cut.backward returned a gradient of shape \(2,\)"):
        grad(lambda x: Cut.apply(x).sum())(X)


# --- numpy, and code that breaks a graph ----------------------------------------------------------------------------------------


class Numpy(torch.autograd.Function):
    """Values of numpy, in ctx and in a jvp."""

    @staticmethod
    def forward(x):
        return torch.from_numpy(np.sin(x.detach().numpy()))

    @staticmethod
    def setup_context(ctx, inputs, output):
        (x,) = inputs
        ctx.slope, ctx.two = np.cos(x.detach().numpy()), np.float64(2.0)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx, g):
        return torch.from_numpy(g.detach().numpy() * ctx.slope * ctx.two / 2)

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return torch.from_numpy(np.cos(x.detach().numpy()) * t.detach().numpy())


def test_numpy_in_ctx_and_in_a_jvp():
    """Arrays in ctx are those of each sample, and a `jvp` may compute with numpy."""
    batch = torch.stack([X, X + 1])
    with fullgrad.adopting():
        close(vmap(grad(lambda x: Numpy.apply(x).sum()))(batch), batch.cos())
        close(jvp(Numpy.apply, (X,), (X,))[1], X.cos() * X)
        close(vmap(lambda x: jvp(Numpy.apply, (x,), (x,))[1])(batch), batch.cos() * batch)
        close(jacfwd(Numpy.apply)(X), X.cos().diag())


def test_the_memory_of_a_tracer_is_not_read():
    """Code that hands a tensor to numpy, where a tracer's tensors have no numbers, is refused; it would end the process."""
    with fullgrad.adopting(), pytest.raises(NotImplementedError, match=r"Numpy hands a tensor to numpy.*reference="):
        torch.func.linearize(lambda x: grad(lambda x: Numpy.apply(x).sum())(x), X)


@pytest.mark.long
def test_compiled_batches_of_numpy_do_not_end_the_process():
    """`torch.compile(vmap(f))` of a class that calls numpy is right, or raises: in a process of its own."""
    code = """
        import numpy as np, torch, fullgrad, warnings
        warnings.simplefilter("ignore")
        class Sine(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return torch.from_numpy(np.sin(x.detach().numpy()))
            @staticmethod
            def backward(ctx, g):
                return g * ctx.saved_tensors[0].cos()
        x = torch.randn(4, 3)
        with fullgrad.adopting():
            y = torch.compile(torch.vmap(lambda x: Sine.apply(x)), backend="aot_eager")(x)
        assert torch.allclose(y, x.sin())
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=300)


class Printing(torch.autograd.Function):
    """A forward and a backward that break a graph."""

    @staticmethod
    def forward(ctx, x):
        print(end="")
        ctx.save_for_backward(x)
        ctx.sum = x.sum().item()
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        print(end="")
        return g * ctx.saved_tensors[0].cos()


@pytest.mark.long(but=1)
@pytest.mark.filterwarnings("ignore")  # Dynamo raises warnings as errors of its own
@pytest.mark.parametrize("with_gradient", [True, False])
def test_a_class_that_breaks_the_graph_is_compiled(with_gradient):
    """Inside the context, compiled code calls a class whose code breaks the graph, forward and backward."""
    torch._dynamo.reset()
    x = X.clone().requires_grad_(with_gradient)
    with fullgrad.adopting():
        y = torch.compile(lambda x: Printing.apply(x) * 2, backend="eager")(x)
        if with_gradient:
            y.sum().backward()
            close(x.grad, 2 * X.cos())
    close(y.detach(), 2 * X.sin())


class Looking(torch.autograd.Function):
    """A backward that breaks a graph."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        _ = float(g.sum())
        return g * ctx.saved_tensors[0].cos()


@pytest.mark.long(but=1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("cls", [Looking, Printing])
def test_a_compiled_transform_of_a_class_that_breaks_the_graph(cls, backend):
    """The gradient is right, or fails with the error of torch's own code that breaks a graph in this backend."""

    def breaks(x):
        y = x.sin()
        print(end="")
        return y.sum()

    def outcome(f):
        torch._dynamo.reset()
        try:
            return torch.compile(grad(f), backend=backend)(X).tolist()
        except Exception as error:
            return type(error)

    with fullgrad.adopting():
        assert outcome(lambda x: cls.apply(x).sum()) == outcome(breaks)


def test_no_trial_draws_inside_of_a_legacy_vmap():
    """The first call of a class may be in `torch.autograd.functional.jacobian` with a batch of tangents."""

    class Sine(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0].cos()

    with fullgrad.adopting():
        found = torch.autograd.functional.jacobian(Sine.apply, X, vectorize=True, strategy="forward-mode")
    close(found, X.cos().diag())


def test_a_rule_that_calls_another_class_is_made_functional_once():
    """A graph of forward mode has the backward of a class whose backward calls another class."""

    class Inner(Writing):
        pass

    class Outer(Writing):
        @staticmethod
        def backward(ctx, g):
            return g * Inner.apply(ctx.saved_tensors[0])

    from torch.fx.experimental.proxy_tensor import make_fx

    with fullgrad.adopting():
        push = lambda x: jvp(Outer.apply, (x,), (x,))[1]  # noqa: E731
        close(make_fx(push)(X)(X), X**2 * X)
