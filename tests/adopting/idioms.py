"""Functions in the idioms of public packages, written from what the packages are known to do, each with inputs.

A row is the class, its inputs, and which of them are differentiated: every floating tensor. Names say package and idiom.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch.autograd import Function, Variable
from torch.autograd.function import once_differentiable

D = torch.float64
X = torch.tensor([[0.3, -1.2, 2.6], [1.4, 0.05, -0.7]], dtype=D)
Y = torch.tensor([[1.5, 0.4, -0.8], [-0.2, 0.9, 2.2]], dtype=D)
V = torch.tensor([0.3, -1.2, 2.6, 0.7], dtype=D)


class Constant(list):
    """The numbers of a tensor that is not differentiated."""


# --- Activations that save memory: timm, icefall -----------------------------------------------------------------------------


class SwishMe(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.mul(torch.sigmoid(x))

    @staticmethod
    def backward(ctx, grad_output):
        x = ctx.saved_tensors[0]
        s = torch.sigmoid(x)
        return grad_output * (s * (1 + x * (1 - s)))


class DoubleSwish(Function):  # its slope is kept in bytes
    @staticmethod
    def forward(ctx, x):
        dtype, needs = x.dtype, x.requires_grad
        s = torch.sigmoid(x - 1.0)
        y = x * s
        if needs:
            slope = y * (1 - s) + s
            low, high = -0.05, 1.25
            scaled = (slope - low) * (255.0 / (high - low)) + 0.5
            ctx.save_for_backward(scaled.to(torch.uint8))
        return y.to(dtype)

    @staticmethod
    def backward(ctx, g):
        (scaled,) = ctx.saved_tensors
        low, high = -0.05, 1.25
        return g * (scaled * ((high - low) / 255.0) + low)


class Balancer(Function):  # the value is the input; the gradient gets a term of its own
    @staticmethod
    def forward(ctx, x, scale_factor, sign_factor, channel_dim):
        if channel_dim < 0:
            channel_dim += x.ndim
        ctx.channel_dim = channel_dim
        xgt0 = x > 0
        for _ in range(x.ndim - channel_dim - 1):
            scale_factor, sign_factor = scale_factor.unsqueeze(-1), sign_factor.unsqueeze(-1)
        ctx.save_for_backward(xgt0, sign_factor, scale_factor)
        return x

    @staticmethod
    def backward(ctx, x_grad):
        xgt0, sign_factor, scale_factor = ctx.saved_tensors
        factor = sign_factor + scale_factor * (xgt0.to(x_grad.dtype) - 0.5)
        return x_grad - x_grad.abs() * factor, None, None, None


class LimitParamValue(Function):
    @staticmethod
    def forward(ctx, x, low, high):
        ctx.save_for_backward(x)
        ctx.low, ctx.high = low, high
        return x

    @staticmethod
    def backward(ctx, x_grad):
        (x,) = ctx.saved_tensors
        x_grad = x_grad * torch.where(torch.logical_and(x_grad > 0, x < ctx.low), -1.0, 1.0)
        x_grad *= torch.where(torch.logical_and(x_grad < 0, x > ctx.high), -1.0, 1.0)
        return x_grad, None, None


class OwnSoftmax(Function):
    @staticmethod
    def forward(ctx, x, dim):
        ans = x.softmax(dim=dim)
        ctx.save_for_backward(ans)
        ctx.x_dtype, ctx.dim = x.dtype, dim
        return ans

    @staticmethod
    def backward(ctx, ans_grad):
        (ans,) = ctx.saved_tensors
        with torch.amp.autocast("cpu", enabled=False):
            ans_grad, ans = ans_grad.to(D), ans.to(D)
            x_grad = ans_grad * ans
            x_grad = x_grad - ans * x_grad.sum(dim=ctx.dim, keepdim=True)
            return x_grad.to(ctx.x_dtype), None


# --- Functions that make Functions, with double backward: StyleGAN's operators -----------------------------------------------


def bias_act(slope):
    class BiasAct(Function):
        @staticmethod
        def forward(ctx, x, b):
            y = F.leaky_relu(x + b.reshape([-1 if i == 1 else 1 for i in range(x.ndim)]), slope)
            ctx.save_for_backward(x, b, y)
            return y

        @staticmethod
        def backward(ctx, dy):
            x, b, y = ctx.saved_tensors
            dx = db = None
            if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:
                dx = BiasActGrad.apply(dy, x, b, y)
            if ctx.needs_input_grad[1]:
                db = dx.sum([i for i in range(dx.ndim) if i != 1])
            return dx, db

    class BiasActGrad(Function):
        @staticmethod
        def forward(ctx, dy, x, b, y):
            dx = dy * torch.where(y > 0, 1.0, slope)
            ctx.save_for_backward(dy, x, b, y)
            return dx

        @staticmethod
        def backward(ctx, d_dx):
            _, x, b, y = ctx.saved_tensors
            d_dy = BiasActGrad.apply(d_dx, x, b, y) if ctx.needs_input_grad[0] else None
            return d_dy, None, None, None

    return BiasAct


def fir(flip):
    class Fir(Function):
        @staticmethod
        def forward(ctx, x, f):
            w = (f.flip([0]) if flip else f)[None, None]
            y = F.conv1d(F.pad(x[:, None], (2, 2)), w)[:, 0]
            ctx.save_for_backward(f)
            ctx.x_shape = x.shape
            return y

        @staticmethod
        def backward(ctx, dy):
            (f,) = ctx.saved_tensors
            n = dy.shape[1] - ctx.x_shape[1]
            assert not ctx.needs_input_grad[1]
            dx = fir(not flip).apply(dy, f)
            return dx[:, n // 2 : n // 2 + ctx.x_shape[1]] if n else dx[:, : ctx.x_shape[1]], None

    return Fir


# --- Hyperbolic geometry: hgcn, geoopt ---------------------------------------------------------------------------------------


class Artanh(Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clamp(-1 + 1e-15, 1 - 1e-15)
        ctx.save_for_backward(x)
        z = x.double()
        return (torch.log_(1 + z).sub_(torch.log_(1 - z))).mul_(0.5).to(x.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output / (1 - x**2)


class LeakyClamp(Function):
    @staticmethod
    def forward(ctx, x, low, high):
        ctx.save_for_backward(x.ge(low) * x.le(high))
        return torch.clamp(x, min=low, max=high)

    @staticmethod
    def backward(ctx, grad_output):
        (mask,) = ctx.saved_tensors
        mask = mask.type_as(grad_output)
        return grad_output * mask + grad_output * (1 - mask) * 1e-2, None, None


# --- Signals: kymatio, pytorch_wavelets, pywt-like ---------------------------------------------------------------------------


class ModulusStable(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.dim, ctx.p = (-1,), 2
        y = (x * x).sum(-1).sqrt()
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        x, output = ctx.saved_tensors
        output, grad_output = output.unsqueeze(-1), grad_output.unsqueeze(-1)
        grad_input = x.mul(grad_output).div(output)
        grad_input.masked_fill_(output == 0, 0)
        return grad_input


class Afb1D(Function):  # analysis filters by a grouped convolution, with the synthesis as gradient
    @staticmethod
    def forward(ctx, x, h0, h1):
        ctx.save_for_backward(h0, h1)
        ctx.size = x.shape[-1]
        h = torch.stack([h0, h1])[:, None]
        lohi = F.conv1d(x[:, None], h, stride=2)
        return lohi[:, 0].contiguous(), lohi[:, 1].contiguous()

    @staticmethod
    def backward(ctx, d_low, d_high):
        dx = None
        if ctx.needs_input_grad[0]:
            h0, h1 = ctx.saved_tensors
            h = torch.stack([h0, h1])[:, None]
            dx = F.conv_transpose1d(torch.stack([d_low, d_high], 1), h, stride=2)[:, 0]
            dx = F.pad(dx, (0, ctx.size - dx.shape[-1]))
        return dx, None, None


class FftFilter(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.n = x.shape[-1]
        return torch.fft.irfft(torch.fft.rfft(x) * torch.arange(ctx.n // 2 + 1), n=ctx.n)

    @staticmethod
    def backward(ctx, g):
        return torch.fft.irfft(torch.fft.rfft(g) * torch.arange(ctx.n // 2 + 1), n=ctx.n)


# --- Multipliers: fairseq, nerfstudio ----------------------------------------------------------------------------------------


class GradMultiply(Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.new(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.scale, None


class RayScaler(Function):  # several values, with a scale that one of them gives
    @staticmethod
    def forward(ctx, colors, density, distance):
        ctx.save_for_backward(distance)
        return colors, density, distance

    @staticmethod
    def backward(ctx, g_colors, g_density, g_distance):
        (distance,) = ctx.saved_tensors
        scaling = torch.square(distance).clamp(0, 1)
        return g_colors * scaling.unsqueeze(-1), g_density * scaling, g_distance


class TruncExp(Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.exp(x)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        x = ctx.saved_tensors[0]
        return g * torch.exp(torch.clamp(x, min=-15, max=15))


# --- Quantizers: HAWQ, micronet, LSQ, PACT, DoReFa, qtorch -------------------------------------------------------------------


class SymmetricQuant(Function):
    @staticmethod
    def forward(ctx, x, k, specified_scale):
        scale = specified_scale.view(-1, 1) if x.ndim == 2 else specified_scale
        n = 2 ** (k - 1) - 1
        q = torch.clamp(torch.round(1.0 / scale * x), -n, n - 1)
        ctx.scale = scale
        return q

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.clone() / ctx.scale, None, None


class BinaryActivation(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        output = torch.sign(x)
        output[output == 0] = 1
        return output

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        grad_input = grad_output.clone()
        grad_input[x.ge(1.0)] = 0
        grad_input[x.le(-1.0)] = 0
        return grad_input


class TernaryWeights(Function):  # two values, thresholds by row
    @staticmethod
    def forward(ctx, w):
        e = torch.mean(torch.abs(w), 1, keepdim=True)
        threshold = e * 0.7
        output = torch.sign(torch.add(torch.sign(torch.add(w, threshold)), torch.sign(torch.add(w, -threshold))))
        return output, threshold

    @staticmethod
    def backward(ctx, grad_output, grad_threshold):
        return grad_output.clone()


class FunLsq(Function):
    @staticmethod
    def forward(ctx, weight, alpha, g, qn, qp):
        assert alpha.min() > 0
        ctx.save_for_backward(weight, alpha)
        ctx.other = g, qn, qp
        return (weight / alpha).round().clamp(qn, qp) * alpha

    @staticmethod
    def backward(ctx, grad_weight):
        weight, alpha = ctx.saved_tensors
        g, qn, qp = ctx.other
        q = weight / alpha
        small, big = (q < qn).to(D), (q > qp).to(D)
        middle = 1.0 - small - big
        grad_alpha = ((small * qn + big * qp + middle * (-q + q.round())) * grad_weight * g).sum().unsqueeze(dim=0)
        return middle * grad_weight, grad_alpha, None, None, None


class PactClip(Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.save_for_backward(x, alpha)
        return x.clamp(min=0.0).min(alpha)

    @staticmethod
    def backward(ctx, grad_output):
        x, alpha = ctx.saved_tensors
        lower, upper = x < 0, x > alpha
        grad_alpha = torch.sum(grad_output * torch.ge(x, alpha).to(D)).view(-1)
        return grad_output * (~(lower | upper)).to(D), grad_alpha


def dorefa(k):
    class Quantize(Function):
        @staticmethod
        def forward(ctx, x):
            n = float(2**k - 1)
            return torch.round(x * n) / n

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output.clone()

    return Quantize


class FixedPoint(Function):
    @staticmethod
    def forward(ctx, x, lim):
        if lim is not None:
            mask = (x > lim) | (x < -lim)
            ctx.mask = mask
            return (x * 16).round().div(16).clamp(-lim, lim)
        ctx.mask = None
        return (x * 16).round() / 16

    @staticmethod
    def backward(ctx, grad_output):
        if ctx.needs_input_grad[0]:
            grad_input = grad_output.contiguous()
            grad_input = grad_input.masked_fill(ctx.mask, 0) if ctx.mask is not None else grad_input
            return grad_input, None
        return None, None


# --- Codebooks: VQ-VAE -------------------------------------------------------------------------------------------------------


class NearestCode(Function):
    @staticmethod
    def forward(ctx, inputs, codebook):
        with torch.no_grad():
            distances = torch.addmm(
                (codebook**2).sum(1) + (inputs**2).sum(1, keepdim=True), inputs, codebook.t(), alpha=-2.0, beta=1.0
            )
            _, indices = torch.min(distances, dim=1)
            ctx.mark_non_differentiable(indices)
            return indices

    @staticmethod
    def backward(ctx, grad_output):
        raise RuntimeError("Trying to call `.grad()` on graph containing `NearestCode`.")


class CodesStraightThrough(Function):
    @staticmethod
    def forward(ctx, inputs, codebook):
        indices = NearestCode.apply(inputs, codebook).view(-1)
        ctx.save_for_backward(indices, codebook)
        ctx.mark_non_differentiable(indices)
        return torch.index_select(codebook, dim=0, index=indices), indices

    @staticmethod
    def backward(ctx, grad_output, grad_indices):
        grad_inputs = grad_codebook = None
        if ctx.needs_input_grad[0]:
            grad_inputs = grad_output.clone()
        if ctx.needs_input_grad[1]:
            indices, codebook = ctx.saved_tensors
            flat = grad_output.contiguous().view(-1, codebook.shape[1])
            grad_codebook = torch.zeros_like(codebook)
            grad_codebook.index_add_(0, indices, flat)
        return grad_inputs, grad_codebook


# --- Spikes: slayer, rockpool ------------------------------------------------------------------------------------------------


class SlayerSpike(Function):
    @staticmethod
    def forward(ctx, membrane, theta, tau, scale):
        spikes = (membrane >= theta).to(membrane.dtype)
        ctx.save_for_backward(
            membrane,
            Variable(torch.tensor(theta, dtype=membrane.dtype), requires_grad=False),
            Variable(torch.tensor(tau, dtype=membrane.dtype), requires_grad=False),
            Variable(torch.tensor(scale, dtype=membrane.dtype), requires_grad=False),
        )
        return spikes

    @staticmethod
    def backward(ctx, g):
        membrane, theta, tau, scale = ctx.saved_tensors
        slope = scale / tau * torch.exp(-torch.abs(membrane - theta) / tau)
        return g * slope, None, None, None


class StepPwl(Function):
    @staticmethod
    def forward(ctx, x, threshold, window):
        ctx.save_for_backward(x.clone(), threshold)
        ctx.window = window
        return ((x > 0) * torch.floor(x / threshold)).to(x.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        x, threshold = ctx.saved_tensors
        grad_x = grad_threshold = None
        mask = x >= (threshold - ctx.window)
        if ctx.needs_input_grad[0]:
            grad_x = grad_output / threshold * mask
        if ctx.needs_input_grad[1]:
            grad_threshold = -x * grad_output / (threshold**2) * mask
        return grad_x, grad_threshold, None


# --- Numpy and solvers: torchsort-like, cvxpylayers-like, lpc ----------------------------------------------------------------


class NumpyIsotonic(Function):
    @staticmethod
    def forward(ctx, x):
        values = x.detach().cpu().numpy()
        order = np.argsort(-values, axis=-1, kind="stable")
        ctx.inverse = np.argsort(order, axis=-1)
        ctx.order = order
        return torch.from_numpy(np.take_along_axis(values, order, -1)).to(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return torch.from_numpy(np.take_along_axis(g.detach().cpu().numpy(), ctx.inverse, -1)).to(g)


class NumpySolve(Function):
    @staticmethod
    def forward(ctx, a, b):
        x = torch.as_tensor(np.linalg.solve(a.detach().numpy(), b.detach().numpy()))
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    def backward(ctx, g):
        a, x = ctx.saved_tensors
        gb = torch.as_tensor(np.linalg.solve(a.detach().numpy().T, g.detach().numpy()))
        return -torch.outer(gb, x), gb


class Recursion(Function):  # a filter over time, written step by step into a new tensor
    @staticmethod
    def forward(ctx, x, a):
        y = torch.zeros_like(x)
        for t in range(x.shape[-1]):
            y[..., t] = x[..., t] - (a * y[..., t - 1] if t else 0)
        ctx.save_for_backward(a, y)
        return y

    @staticmethod
    def backward(ctx, g):
        a, y = ctx.saved_tensors
        gx = Recursion.apply(g.flip(-1), a).flip(-1)
        before = F.pad(y[..., :-1], (1, 0))
        return gx, -(gx * before).sum()


# --- Memory: revnet, checkpoints, zennit, points -----------------------------------------------------------------------------


class Coupling(Function):  # the input is computed from the output in the backward
    @staticmethod
    def forward(ctx, x, w):
        x1, x2 = x.chunk(2, -1)
        y1 = x1 + torch.tanh(x2 * w)
        y2 = x2 + torch.tanh(y1 * w)
        y = torch.cat([y1, y2], -1)
        ctx.save_for_backward(y, w)
        return y

    @staticmethod
    def backward(ctx, g):
        y, w = ctx.saved_tensors
        y1, y2 = y.chunk(2, -1)
        g1, g2 = g.chunk(2, -1)
        x2 = y2 - torch.tanh(y1 * w)
        s2 = 1 - torch.tanh(y1 * w) ** 2
        s1 = 1 - torch.tanh(x2 * w) ** 2
        g1 = g1 + g2 * s2 * w
        gw = (g2 * s2 * y1).sum() + (g1 * s1 * x2).sum()
        return torch.cat([g1, g2 + g1 * s1 * w], -1), gw


class RunAgain(Function):
    @staticmethod
    def forward(ctx, run, x):
        ctx.run = run
        ctx.save_for_backward(x)
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = ctx.run(x)
        torch.autograd.backward(y, g)
        return None, x.grad


class ManyIdentities(Function):
    @staticmethod
    def forward(ctx, rule, *inputs):
        ctx.rule = rule
        return inputs[0] if len(inputs) == 1 else tuple(x.view_as(x) for x in inputs)

    @staticmethod
    def backward(ctx, *gs):
        return None, *ctx.rule(*gs)


class Gather(Function):
    @staticmethod
    def forward(ctx, features, idx):
        ctx.for_backward = idx, features.shape[-1]
        return features[..., idx]

    @staticmethod
    def backward(ctx, g):
        idx, n = ctx.for_backward
        grad = Variable(torch.zeros(*g.shape[:-1], n, dtype=g.dtype))
        grad.scatter_add_(-1, idx.expand_as(g), g.contiguous())
        return grad, None


class Interpolate(Function):
    @staticmethod
    def forward(ctx, features, idx, weight):
        ctx.saved = idx, weight, features.shape[-1]
        return (features[..., idx] * weight).sum(-1)

    @staticmethod
    def backward(ctx, g):
        idx, weight, n = ctx.saved
        grad = g.new_zeros(*g.shape[:-1], n)
        parts = (g.unsqueeze(-1) * weight).flatten(-2)
        return grad.index_add(-1, idx.flatten(), parts), None, None


class SegmentSum(Function):
    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        return torch.zeros(2, *x.shape[1:], dtype=x.dtype).index_add(0, index, x)

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        return g[index], None


class TopKMask(Function):  # sparse training
    @staticmethod
    def forward(ctx, scores, k):
        out = scores.clone()
        _, idx = scores.flatten().sort()
        j = int((1 - k) * scores.numel())
        flat = out.flatten()
        flat[idx[:j]], flat[idx[j:]] = 0, 1
        return flat.view_as(scores)

    @staticmethod
    def backward(ctx, g):
        return g, None


class StochasticRound(Function):  # by a number of numpy, always the same here
    @staticmethod
    def forward(ctx, x):
        generator = np.random.default_rng(0)
        return torch.floor(x + generator.random())

    @staticmethod
    def backward(ctx, g):
        return g


class ClippedGradient(Function):
    @staticmethod
    def forward(ctx, x, limit):
        ctx.limit = limit
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        norm = g.norm()
        if norm > ctx.limit:
            g = g * ctx.limit / norm
        return g, None


IDX = torch.tensor([2, 0, 2, 1])
IDIOMS = {
    "timm: swish": (SwishMe, (X,)),
    "icefall: slope in bytes": (DoubleSwish, (X,)),
    "icefall: balancer": (Balancer, (X, Constant([0.02] * 3), Constant([0.01] * 3), -1)),
    "icefall: limits": (LimitParamValue, (X, -1.0, 1.0)),
    "icefall: softmax": (OwnSoftmax, (X, -1)),
    "StyleGAN: bias and activation": (bias_act(0.2), (X, Y[0])),
    "StyleGAN: filter": (fir(False), (X, Constant([0.1, 0.4, 0.3, 0.15, 0.05]))),
    "hgcn: artanh": (Artanh, (X / 4,)),
    "geoopt: leaky clamp": (LeakyClamp, (X, -1.0, 1.0)),
    "kymatio: modulus": (ModulusStable, (X,)),
    "wavelets: analysis": (Afb1D, (torch.cat([X, Y], 1), Constant([0.7, 0.7]), Constant([0.7, -0.7]))),
    "filters by FFT": (FftFilter, (torch.cat([X, Y], 1),)),
    "fairseq: multiplier": (GradMultiply, (X, 0.3)),
    "nerfstudio: scaler": (RayScaler, (X, Y[:, 0], Y[:, 1].abs())),
    "ngp: truncated exp": (TruncExp, (X,)),
    "HAWQ: symmetric": (SymmetricQuant, (X, 4, Constant([0.2, 0.3]))),
    "micronet: binary": (BinaryActivation, (X,)),
    "micronet: ternary": (TernaryWeights, (X,)),
    "LSQ": (FunLsq, (X, torch.tensor([0.4], dtype=D), 0.3, -4, 3)),
    "PACT": (PactClip, (X, torch.tensor([1.1], dtype=D))),
    "DoReFa": (dorefa(3), (X,)),
    "qtorch: fixed point": (FixedPoint, (X, 1.0)),
    "VQ-VAE: straight through": (CodesStraightThrough, (X, torch.stack([Y[0], Y[1], X[0] + 0.1]))),
    "slayer: spike": (SlayerSpike, (X, 0.5, 1.0, 1.5)),
    "rockpool: steps": (StepPwl, (X, Y.abs() + 0.3, 0.5)),
    "numpy: sorted": (NumpyIsotonic, (X,)),
    "numpy: solve": (NumpySolve, (torch.eye(2, dtype=D) * 2 + X[:, :2] / 9, Y[:, 0])),
    "lpc: recursion": (Recursion, (X, torch.tensor(0.4, dtype=D))),
    "revnet: coupling": (Coupling, (V, torch.tensor(0.8, dtype=D))),
    "checkpoint: run again": (RunAgain, (torch.sin, X)),
    "zennit: identities": (ManyIdentities, (lambda g, h: (g * 2, h * 3), X, Y)),
    "PointNet: gather": (Gather, (X, IDX)),
    "PointNet: interpolate": (Interpolate, (X, IDX.view(2, 2), Constant([[0.3, 0.7], [0.6, 0.4]]))),
    "segments: sum": (SegmentSum, (X, torch.tensor([1, 1]))),
    "edge-popup: mask": (TopKMask, (X, 0.5)),
    "stochastic rounding": (StochasticRound, (X,)),
    "clipped gradient": (ClippedGradient, (X, 0.5)),
}
