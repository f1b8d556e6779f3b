"""Functions as people write them, each with inputs at which eager autograd differentiates it twice."""

import torch
from torch.autograd import Function

DOUBLE = torch.float64
X = torch.tensor([0.3, -1.2, 2.6, 0.7], dtype=DOUBLE)
Y = torch.tensor([1.5, 0.4, -0.8, -2.0], dtype=DOUBLE)


class SavesInput(Function):
    """Old style, its input saved only where that is worth it."""

    @staticmethod
    def forward(ctx, x):
        if x.requires_grad:
            ctx.save_for_backward(x)
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / (1 + x * x)


class SavesOutput(Function):
    """The derivative is a function of the output."""

    @staticmethod
    def forward(ctx, x):
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * (1 - y * y)


class SavesIntermediate(Function):
    """Saves a computed tensor, which is a constant to double backward."""

    @staticmethod
    def forward(ctx, x):
        s = torch.sigmoid(x)
        ctx.save_for_backward(s, x)
        return x * s

    @staticmethod
    def backward(ctx, g):
        s, x = ctx.saved_tensors
        return g * (s + x * x)


class NewStyle(Function):
    """The new style, with `setup_context` and keywords."""

    @staticmethod
    def forward(x, scale=2.0):
        return torch.round(x * scale)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.scale = inputs
        ctx.save_for_backward(x, output)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * ctx.scale * (x.cos() + y * x), None


class SavesInSetup(Function):
    """An intermediate that `setup_context` computes."""

    @staticmethod
    def forward(x):
        return x.sign()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0].detach().cosh())

    @staticmethod
    def backward(ctx, g):
        return g / ctx.saved_tensors[0]


class Attributes(Function):
    """Keeps tensors, numbers and containers of tensors on ctx."""

    @staticmethod
    def forward(ctx, x, power):
        ctx.x, ctx.power, ctx.both = x, power, {"pair": [x, (2.0, x * 2)]}
        return x.abs()

    @staticmethod
    def backward(ctx, g):
        first, (number, constant) = ctx.both["pair"]
        return g * ctx.x**ctx.power + number * g * first * constant, None


class TwoInputs(Function):
    """Two inputs, one of which may broadcast."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return torch.round(x) * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return (g * y if ctx.needs_input_grad[0] else None), (g * x * y if ctx.needs_input_grad[1] else None)


class SeveralOutputs(Function):
    """Returns a number, a floating mask without a derivative, whose gradient is then 0, and a second output."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        mask, count = (x > 0).to(x.dtype), 3
        ctx.mark_non_differentiable(mask)
        return x.floor(), count, mask, x * x

    @staticmethod
    def backward(ctx, g, _number, of_mask, h):
        (x,) = ctx.saved_tensors
        return g * x.sin() + 2 * x * h + of_mask


class NotMaterialized(Function):
    """Gets None for missing gradients."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x.ceil(), x.exp()

    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        total = torch.zeros_like(x)
        if g is not None:
            total = total + g * x
        if h is not None:
            total = total + h * x.exp()
        return total


class Surplus(Function):
    """Returns more gradients than inputs."""

    @staticmethod
    def forward(ctx, x, mode="same"):
        ctx.save_for_backward(x)
        return x.trunc()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0] ** 2, None, None


class InContainer(Function):
    """Saves tensors inside a list: constants to autograd."""

    @staticmethod
    def forward(ctx, x, pair):
        ctx.save_for_backward(x, pair[0])
        return x.sign() * pair[0]

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        return g * scale * x, None


class WithJvp(Function):
    """Declares its own forward mode, on purpose not the transpose of the backward."""

    @staticmethod
    def forward(x):
        return x.floor()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]

    @staticmethod
    def jvp(ctx, t):
        return t * ctx.saved_tensors[0]


class WithVmap(Function):
    """Declares its own batching."""

    @staticmethod
    def forward(x):
        return x.floor()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0] ** 2

    @staticmethod
    def vmap(info, in_dims, x):
        return WithVmap.apply(x), in_dims[0]


class GeneratedVmap(NewStyle):
    """A subclass that asks torch for its vmap rule."""

    generate_vmap_rule = True


class Nested(Function):
    """Calls another Function in its forward and in its backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return SavesInput.apply(x) + x

    @staticmethod
    def backward(ctx, g):
        return g * SavesOutput.apply(ctx.saved_tensors[0])


class ReturnsInput(Function):
    """Returns the input itself."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


class ChangesTheGradient(Function):
    """Changes its gradient in place."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g.clone().mul_(x.cos())


class Reduces(Function):
    """Reduces to another shape."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.max(-1).values.round()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g[..., None] * torch.softmax(x, -1)


class LooksAtNumbers(Function):
    """Branches on data, and takes a number out of a tensor."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.largest = x.abs().max().item()
        return x.round() if x.sum() > 0 else x.floor()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x * ctx.largest if ctx.largest > 1 else g * x


class LooksInBackward(Function):
    """Branches on data in the backward only."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x * x if float(x.detach().sum()) > 0 else g * x


class AddsBias(Function):
    """Leaves it to autograd to sum the gradient of what was broadcast."""

    @staticmethod
    def forward(ctx, x, bias):
        return x * 2 + bias

    @staticmethod
    def backward(ctx, g):
        return g * 2, g


# name: (class, inputs); differentiated with respect to every floating tensor that is an argument of its own.
CASES = {
    "SavesInput": (SavesInput, (X,)),
    "SavesOutput": (SavesOutput, (X,)),
    "SavesIntermediate": (SavesIntermediate, (X,)),
    "NewStyle": (NewStyle, (X, 3.0)),
    "SavesInSetup": (SavesInSetup, (X,)),
    "Attributes": (Attributes, (X, 3)),
    "TwoInputs": (TwoInputs, (X, Y)),
    "SeveralOutputs": (SeveralOutputs, (X,)),
    "NotMaterialized": (NotMaterialized, (X,)),
    "Surplus": (Surplus, (X,)),
    "InContainer": (InContainer, (X, [Y])),
    "WithJvp": (WithJvp, (X,)),
    "WithVmap": (WithVmap, (X,)),
    "GeneratedVmap": (GeneratedVmap, (X, 3.0)),
    "Nested": (Nested, (X,)),
    "ReturnsInput": (ReturnsInput, (X,)),
    "ChangesTheGradient": (ChangesTheGradient, (X,)),
    "Reduces": (Reduces, (X,)),
    "LooksAtNumbers": (LooksAtNumbers, (X,)),
    "LooksInBackward": (LooksInBackward, (X,)),
    "AddsBias": (AddsBias, (torch.stack((X, X.sin())), Y)),
}
