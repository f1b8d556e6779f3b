"""Samples that are numbers: with the dimension of the batch torch's rules take them for rows."""

import itertools

import pytest
import torch
from torch.func import grad, jacfwd, vmap

import fullgrad
from tests.completion.test_completing import seeded

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="torch is too old for it"),
]
FIRST = torch.tensor(0)


def tensors_of(y):
    return [y] if isinstance(y, torch.Tensor) else [v for v in y if isinstance(v, torch.Tensor)]


def compared(f, *inputs):
    """The value and the derivatives of a batch are those of its samples."""
    places = tuple([i for i, v in enumerate(inputs) if v.is_floating_point()])
    scalar = lambda *xs: sum(v.sin().sum() for v in tensors_of(f(*xs)) if v.is_floating_point())  # noqa: E731
    values, gradient = (lambda *xs: tuple(tensors_of(f(*xs)))), grad(scalar, places)
    samples = list(zip(*[v.unbind() for v in inputs], strict=True))
    for of_sample, of_batch in ((values, values), (gradient, gradient), (gradient, jacfwd(scalar, places))):
        right = [torch.stack(v) for v in zip(*[of_sample(*s) for s in samples], strict=True)]
        with fullgrad.completing():
            found = vmap(of_batch)(*inputs)
        for a, b in zip(found, right, strict=True):
            torch.testing.assert_close(a, b)


OF_DIMS = {
    "roll": lambda x: x.roll(1),
    "roll, many": lambda x: x.roll(-7),
    "flip": lambda x: x.flip(0),
    "flip of none": lambda x: x.flip(()),
    "flip from behind": lambda x: x.flip(-1),
    "fliplr": lambda x: torch.atleast_2d(x).fliplr(),
    "squeeze": lambda x: x.squeeze(-1),
    "squeeze_copy": lambda x: torch.squeeze_copy(x, -1),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "sum": lambda x: x.sum(-1),
    "sort": lambda x: x.sort(-1),
    "topk": lambda x: x.topk(1, -1),
    "median": lambda x: x.median(-1),
    "kthvalue": lambda x: x.kthvalue(1, -1),
    "cumsum": lambda x: x.cumsum(-1),
    "cumprod": lambda x: x.cumprod(-1),
    "cummax": lambda x: x.cummax(-1),
    "logcumsumexp": lambda x: x.logcumsumexp(-1),
    "softmax": lambda x: x.softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "norm": lambda x: torch.linalg.vector_norm(x, 3, -1),
    "movedim": lambda x: x.movedim(-1, 0),
    "transpose": lambda x: x.transpose(0, -1),
    "unfold": lambda x: x.unfold(-1, 1, 1),
    "flatten": lambda x: x.flatten(),
    "gather": lambda x: x.gather(-1, FIRST),
    "index_select": lambda x: x.index_select(-1, FIRST),
    "scatter": lambda x: x.scatter(-1, FIRST, x.sin()),
    "index_add": lambda x: x.index_add(-1, FIRST, x.sin()),
    "index_fill": lambda x: x.index_fill(-1, FIRST, 0.5) + x,
    "take": lambda x: x.take(FIRST),
}


@pytest.mark.parametrize("name", OF_DIMS)
def test_dimensions_of_a_number(name):
    compared(OF_DIMS[name], seeded(3))


@pytest.mark.parametrize(
    ("f", "words"),
    [
        (lambda x: x.roll(1, 0), "tensor has no dimensions|Dimension out of range"),
        (lambda x: x.roll((1, 1)), "must align"),
        (lambda x: x.flip(1), "Dimension out of range"),
        (lambda x: x.flip((0, 0)), "multiple times"),
        (lambda x: x.squeeze(1), "out of range"),
    ],
)
def test_dimensions_that_a_number_does_not_have(f, words):
    for x in (torch.tensor(1.0), torch.ones(3)):
        with fullgrad.completing(), pytest.raises((RuntimeError, IndexError), match=words):
            f(x) if not x.ndim else vmap(f)(x)


AT = {
    "index_select": lambda x, i: x.index_select(0, i),
    "index_select of columns": lambda x, i: x.index_select(-1, i),
    "index_add": lambda x, i: x.index_add(0, i, x[:1].cos(), alpha=2),
    "index_add_": lambda x, i: x.clone().index_add_(0, i, x[:1].cos()),
    "index_add of a number": lambda x, i: x[:, 0].index_add(0, i, x[0, :1]),
    "index_copy of a number": lambda x, i: x[:, 0].index_copy(0, i.reshape(1), x[0, 1].cos()),
    "index_copy": lambda x, i: x.index_copy(0, i, x[:1].cos()),
    "index_copy_": lambda x, i: x.clone().index_copy_(0, i, x[:1].cos()),
    "index_fill": lambda x, i: x.index_fill(0, i, 0.5),
    "index_reduce": lambda x, i: x.index_reduce(0, i, x[:1].cos(), "prod"),
    "take": lambda x, i: x.take(i),
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x),
}


@pytest.mark.parametrize("name", AT)
@pytest.mark.parametrize("of_sample", [True, False], ids=["an index of each sample", "one index"])
def test_an_index_that_is_a_number(name, of_sample):
    f, x = AT[name], torch.stack([seeded(2, 2), seeded(2, 2).cos(), seeded(2, 2).sin()])
    if of_sample:
        compared(f, x, torch.tensor([1, 0, 1]))
    else:
        compared(lambda x: f(x, torch.tensor(1)), x)


KINDS = (torch.float16, torch.float32, torch.complex64, torch.int32, torch.int64)
OF_DTYPES = {  # functions of three tensors
    "where": lambda x, y, z: torch.where(x.real > 0.5, y, z),
    "where, a number": lambda x, y, z: torch.where(x.real > 0.5, y, 1.5),
    "addcmul": lambda x, y, z: torch.addcmul(x, y, z, value=2),
    "addcdiv": torch.addcdiv,
    "clamp": torch.clamp,
    "clamp, one bound": lambda x, y, z: torch.clamp(x, max=y) * z,
    "lerp": torch.lerp,
    "addr": lambda x, y, z: torch.addr(x, y, z) if y.ndim else torch.add(x, y),
    "bitwise_and_": lambda x, y, z: x.clone().bitwise_and_(y) | z,
    "bitwise_or_": lambda x, y, z: x.clone().bitwise_or_(y) | z,
    "bitwise_xor_": lambda x, y, z: x.clone().bitwise_xor_(y) | z,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OF_DTYPES)
def test_dtypes_of_numbers_and_rows(name):
    """A number of each sample widens none of a row."""
    f, count = OF_DTYPES[name], 0
    for dtypes in itertools.product(KINDS, repeat=3):
        for ranks in itertools.product((0, 1), repeat=3):
            batches = [(True, False, False), (False, True, False), (False, False, True), (True, True, True)]
            for batched in batches[count % 2 :: 2]:
                count += 1
                xs = [torch.tensor([[1.0, 6.0], [3.0, 4.0]]).to(d) + k for k, d in enumerate(dtypes)]
                xs = [x.to(d)[:, : r or None] if r else x.to(d)[:, 0] for x, d, r in zip(xs, dtypes, ranks, strict=True)]
                xs = [x if is_batched else x[0] for x, is_batched in zip(xs, batched, strict=True)]
                try:
                    samples = [[x[i] if b else x for x, b in zip(xs, batched, strict=True)] for i in range(2)]
                    right = torch.stack([f(*s) for s in samples])
                except Exception:
                    continue  # torch refuses these dtypes
                with fullgrad.completing():
                    found = vmap(f, in_dims=tuple(0 if b else None for b in batched))(*xs)
                assert found.dtype == right.dtype, (dtypes, ranks, batched)
                torch.testing.assert_close(found, right)


@pytest.mark.parametrize("options", [(), (5,), (4, True), (1,), (0,)])
def test_powers_of_each_sample(options):
    """torch.vander: torch's values, and its gradients, which it lacks in a batch and in eager code."""
    x = torch.stack([seeded(3), seeded(3).cos()])
    f = lambda x: torch.vander(x, *options).sin().sum()  # noqa: E731
    count, increasing = (*options, 3)[0], options[1:] == (True,)
    powers = lambda x: torch.stack([x**k for k in (range(count) if increasing else reversed(range(count)))] or [0 * x])  # noqa: E731
    right = torch.stack([grad(lambda x: powers(x).sin().sum())(v) for v in x])
    values = torch.stack([torch.vander(v, *options) for v in x])
    with fullgrad.completing():
        assert torch.equal(vmap(lambda x: torch.vander(x, *options))(x), values)
        torch.testing.assert_close(vmap(grad(f))(x), right)
        torch.testing.assert_close(vmap(jacfwd(f))(x), right)
        own = x.clone().requires_grad_()
        torch.testing.assert_close(torch.autograd.grad(sum(f(v) for v in own.unbind()), own)[0], right)
