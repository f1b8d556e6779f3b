"""Written by docs/stubs.py."""

import collections.abc
import typing
from typing import Literal, Union

import torch

from fullgrad.nn._function_module import FunctionModule as FunctionModule
from fullgrad.nn import soft as soft
from fullgrad.nn._quantize import quantize_ as quantize_, unquantize_ as unquantize_
from fullgrad.quantizers import FloatFormat

class ATanSpike(FunctionModule):
    alpha: torch.Tensor | float
    threshold: torch.Tensor | float
    grad_scale: torch.Tensor | float
    tie: float
    def __init__(self, alpha: torch.Tensor | float = ..., threshold: torch.Tensor | float = ..., grad_scale: torch.Tensor | float = ..., tie: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, v: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class AbsBinarySignGrad(FunctionModule):
    tie: float
    def __init__(self, tie: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class AbsST(FunctionModule):
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    def __init__(self, softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class AffineKBitQuantize(FunctionModule):
    k: int
    w: torch.Tensor | float
    b: torch.Tensor | float
    def __init__(self, k: int, w: torch.Tensor | float, b: torch.Tensor | float, *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class ApproxSign(FunctionModule):
    tie: float
    def __init__(self, tie: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class ArgmaxST(FunctionModule):
    dim: int | None
    keepdim: bool
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network']
    standardize: bool
    def __init__(self, dim: int | None = ..., keepdim: bool = ..., softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network'] = ..., standardize: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class ArgmedianST(FunctionModule):
    dim: int | None
    keepdim: bool
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network']
    standardize: bool
    def __init__(self, dim: int | None = ..., keepdim: bool = ..., softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network'] = ..., standardize: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class ArgminST(FunctionModule):
    dim: int | None
    keepdim: bool
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network']
    standardize: bool
    def __init__(self, dim: int | None = ..., keepdim: bool = ..., softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network'] = ..., standardize: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class ArgquantileST(FunctionModule):
    q: float | collections.abc.Sequence[float] | torch.Tensor
    dim: int | None
    keepdim: bool
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network']
    interpolation: Literal['linear', 'lower', 'higher', 'nearest', 'midpoint']
    standardize: bool
    def __init__(self, q: float | collections.abc.Sequence[float] | torch.Tensor, dim: int | None = ..., keepdim: bool = ..., softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network'] = ..., interpolation: Literal['linear', 'lower', 'higher', 'nearest', 'midpoint'] = ..., standardize: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class ArgsortST(FunctionModule):
    dim: int | None
    descending: bool
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network']
    standardize: bool
    def __init__(self, dim: int | None = ..., descending: bool = ..., softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network'] = ..., standardize: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class BSQ(FunctionModule):
    scale: float
    def __init__(self, scale: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class BernoulliLogitsST(FunctionModule):
    tau: torch.Tensor | float
    gradient: Literal['sigmoid', 'relaxed', 'identity']
    def __init__(self, tau: torch.Tensor | float = ..., gradient: Literal['sigmoid', 'relaxed', 'identity'] = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, logits: torch.Tensor, *, noise: torch.Tensor | None = ..., generator: torch.Generator | None = ..., **others: typing.Any) -> torch.Tensor: ...

class Binarize(FunctionModule):
    scale: torch.Tensor | float
    window: torch.Tensor | float | None
    at_zero: float
    def __init__(self, scale: torch.Tensor | float = ..., *, window: torch.Tensor | float | None = ..., at_zero: float = ..., learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class CategoricalST(FunctionModule):
    tau: torch.Tensor | float
    dim: int
    sample_tau: torch.Tensor | float
    gradient: Literal['softmax', 'identity']
    def __init__(self, tau: torch.Tensor | float = ..., dim: int = ..., sample_tau: torch.Tensor | float = ..., gradient: Literal['softmax', 'identity'] = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, logits: torch.Tensor, *, noise: torch.Tensor | None = ..., generator: torch.Generator | None = ..., **others: typing.Any) -> torch.Tensor: ...

class CircSpike(FunctionModule):
    alpha: torch.Tensor | float
    threshold: torch.Tensor | float
    grad_scale: torch.Tensor | float
    tie: float
    def __init__(self, alpha: torch.Tensor | float = ..., threshold: torch.Tensor | float = ..., grad_scale: torch.Tensor | float = ..., tie: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, v: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class Clamp(FunctionModule):
    min_value: torch.Tensor | float | None
    max_value: torch.Tensor | float | None
    def __init__(self, min_value: torch.Tensor | float | None = ..., max_value: torch.Tensor | float | None = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class ClampByLinear(FunctionModule):
    eps: float
    def __init__(self, eps: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class ClampST(FunctionModule):
    min_value: torch.Tensor | float
    max_value: torch.Tensor | float
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    gated: bool
    def __init__(self, min_value: torch.Tensor | float, max_value: torch.Tensor | float, softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., gated: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class ClipGrad(FunctionModule):
    max_value: torch.Tensor | float
    def __init__(self, max_value: torch.Tensor | float, *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class ClipGradNorm(FunctionModule):
    max_norm: torch.Tensor | float
    dim: int | collections.abc.Sequence[int] | None
    norm_type: float
    def __init__(self, max_norm: torch.Tensor | float, dim: int | collections.abc.Sequence[int] | None = ..., norm_type: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class CodebookQuantize(FunctionModule):
    codebook: torch.Tensor
    scale: torch.Tensor | float | None
    inside: str
    def __init__(self, codebook: torch.Tensor, scale: torch.Tensor | float | None = ..., *, inside: str = ..., learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class DoReFaActivation(FunctionModule):
    bits: int
    def __init__(self, bits: int, *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class DoReFaGradient(FunctionModule):
    bits: int
    dim: int | collections.abc.Sequence[int] | None
    def __init__(self, bits: int, *, dim: int | collections.abc.Sequence[int] | None = ..., learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, *, noise: torch.Tensor | None = ..., generator: torch.Generator | None = ..., **others: typing.Any) -> torch.Tensor: ...

class DoReFaWeight(FunctionModule):
    bits: int
    max_gradient: bool
    def __init__(self, bits: int, *, max_gradient: bool = ..., learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, w: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class Dspike(FunctionModule):
    alpha: torch.Tensor | float
    threshold: torch.Tensor | float
    grad_scale: torch.Tensor | float
    tie: float
    def __init__(self, alpha: torch.Tensor | float = ..., threshold: torch.Tensor | float = ..., grad_scale: torch.Tensor | float = ..., tie: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, v: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class EqST(FunctionModule):
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    epsilon: float
    def __init__(self, softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., epsilon: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, y: torch.Tensor | float, **others: typing.Any) -> torch.Tensor: ...

class ErfSpike(FunctionModule):
    alpha: torch.Tensor | float
    threshold: torch.Tensor | float
    grad_scale: torch.Tensor | float
    tie: float
    def __init__(self, alpha: torch.Tensor | float = ..., threshold: torch.Tensor | float = ..., grad_scale: torch.Tensor | float = ..., tie: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, v: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class FSQ(FunctionModule):
    levels: collections.abc.Sequence[int]
    bound: str
    symmetric: bool
    eps: float
    def __init__(self, levels: collections.abc.Sequence[int], *, bound: str = ..., symmetric: bool = ..., eps: float = ..., learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class FakeNumericalGradientSpike(FunctionModule):
    alpha: torch.Tensor | float
    threshold: torch.Tensor | float
    grad_scale: torch.Tensor | float
    tie: float
    def __init__(self, alpha: torch.Tensor | float = ..., threshold: torch.Tensor | float = ..., grad_scale: torch.Tensor | float = ..., tie: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, v: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class FakeQuantize(FunctionModule):
    scale: torch.Tensor | float
    zero_point: torch.Tensor | float
    quant_min: int
    quant_max: int
    dim: int | None
    inside: Literal['rounded', 'exact', 'all']
    rounding: str
    reciprocal: bool
    round_zero_point: bool
    def __init__(self, scale: torch.Tensor | float, zero_point: torch.Tensor | float = ..., quant_min: int = ..., quant_max: int = ..., *, dim: int | None = ..., inside: Literal['rounded', 'exact', 'all'] = ..., rounding: str = ..., reciprocal: bool = ..., round_zero_point: bool = ..., learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, *, noise: torch.Tensor | None = ..., generator: torch.Generator | None = ..., **others: typing.Any) -> torch.Tensor: ...

class FastSigmoidSpike(FunctionModule):
    slope: torch.Tensor | float
    threshold: torch.Tensor | float
    grad_scale: torch.Tensor | float
    tie: float
    def __init__(self, slope: torch.Tensor | float = ..., threshold: torch.Tensor | float = ..., grad_scale: torch.Tensor | float = ..., tie: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, v: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class FloatQuantize(FunctionModule):
    format: FloatFormat | str | torch.dtype
    scale: torch.Tensor | float | None
    saturate: bool
    inside: Literal['rounded', 'exact', 'all']
    rounding: str
    def __init__(self, format: FloatFormat | str | torch.dtype, scale: torch.Tensor | float | None = ..., *, saturate: bool = ..., inside: Literal['rounded', 'exact', 'all'] = ..., rounding: str = ..., learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, *, noise: torch.Tensor | None = ..., generator: torch.Generator | None = ..., **others: typing.Any) -> torch.Tensor: ...

class FloatQuantizeBwd(FunctionModule):
    format: FloatFormat | str | torch.dtype
    rounding: str
    def __init__(self, format: FloatFormat | str | torch.dtype, *, rounding: str = ..., learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, *, noise: torch.Tensor | None = ..., generator: torch.Generator | None = ..., **others: typing.Any) -> torch.Tensor: ...

class GappedST(FunctionModule):
    tau: torch.Tensor | float
    gap: Union[float, Literal['probs']]
    dim: int
    def __init__(self, tau: torch.Tensor | float = ..., gap: Union[float, Literal['probs']] = ..., dim: int = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, logits: torch.Tensor, *, noise: torch.Tensor | None = ..., generator: torch.Generator | None = ..., **others: typing.Any) -> torch.Tensor: ...

class GreaterEqualST(FunctionModule):
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2', 'laplace']
    epsilon: float
    def __init__(self, softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2', 'laplace'] = ..., epsilon: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, y: torch.Tensor | float, **others: typing.Any) -> torch.Tensor: ...

class GreaterST(FunctionModule):
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2', 'laplace']
    epsilon: float
    def __init__(self, softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2', 'laplace'] = ..., epsilon: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, y: torch.Tensor | float, **others: typing.Any) -> torch.Tensor: ...

class GumbelRao(FunctionModule):
    tau: torch.Tensor | float
    samples: int
    dim: int
    def __init__(self, tau: torch.Tensor | float = ..., samples: int = ..., dim: int = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, logits: torch.Tensor, *, noise: torch.Tensor | None = ..., generator: torch.Generator | None = ..., **others: typing.Any) -> torch.Tensor: ...

class GumbelSinkhorn(FunctionModule):
    tau: torch.Tensor | float
    def __init__(self, tau: torch.Tensor | float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, scores: torch.Tensor, *, noise: torch.Tensor | None = ..., generator: torch.Generator | None = ..., **others: typing.Any) -> torch.Tensor: ...

class GumbelSoftmax(FunctionModule):
    tau: torch.Tensor | float
    hard: bool
    dim: int
    def __init__(self, tau: torch.Tensor | float = ..., hard: bool = ..., dim: int = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, logits: torch.Tensor, *, noise: torch.Tensor | None = ..., generator: torch.Generator | None = ..., **others: typing.Any) -> torch.Tensor: ...

class GumbelTopk(FunctionModule):
    k: int
    tau: torch.Tensor | float
    hard: bool
    dim: int
    def __init__(self, k: int, tau: torch.Tensor | float = ..., hard: bool = ..., dim: int = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, logits: torch.Tensor, *, noise: torch.Tensor | None = ..., generator: torch.Generator | None = ..., **others: typing.Any) -> torch.Tensor: ...

class HardConcrete(FunctionModule):
    tau: torch.Tensor | float
    gamma: float
    zeta: float
    def __init__(self, tau: torch.Tensor | float = ..., gamma: float = ..., zeta: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, log_alpha: torch.Tensor, *, noise: torch.Tensor | None = ..., generator: torch.Generator | None = ..., **others: typing.Any) -> torch.Tensor: ...

class HardConcreteL0(FunctionModule):
    tau: torch.Tensor | float
    gamma: float
    zeta: float
    def __init__(self, tau: torch.Tensor | float = ..., gamma: float = ..., zeta: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, log_alpha: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class HeavisideST(FunctionModule):
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2', 'laplace']
    def __init__(self, softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2', 'laplace'] = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class IMLETopk(FunctionModule):
    k: int
    lam: float
    noise_scale: float
    dim: int
    def __init__(self, k: int, lam: float = ..., noise_scale: float = ..., dim: int = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, logits: torch.Tensor, *, noise: torch.Tensor | None = ..., generator: torch.Generator | None = ..., **others: typing.Any) -> torch.Tensor: ...

class IscloseST(FunctionModule):
    softness: torch.Tensor | float
    rtol: float
    atol: float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    epsilon: float
    def __init__(self, softness: torch.Tensor | float = ..., rtol: float = ..., atol: float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., epsilon: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, y: torch.Tensor | float, **others: typing.Any) -> torch.Tensor: ...

class JumpReLU(FunctionModule):
    threshold: torch.Tensor | float
    bandwidth: torch.Tensor | float
    input_gradient: Literal['mask', 'ste']
    def __init__(self, threshold: torch.Tensor | float, bandwidth: torch.Tensor | float, input_gradient: Literal['mask', 'ste'] = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class KBitQuantize(FunctionModule):
    k: int
    def __init__(self, k: int, *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class KSubsetST(FunctionModule):
    k: int
    dim: int
    def __init__(self, k: int, dim: int = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, logits: torch.Tensor, *, noise: torch.Tensor | None = ..., generator: torch.Generator | None = ..., **others: typing.Any) -> torch.Tensor: ...

class LSQ(FunctionModule):
    scale: torch.Tensor | float
    quant_min: int | None
    quant_max: int | None
    offset: torch.Tensor | float | None
    grad_scale: float | None
    bits: int | None
    def __init__(self, scale: torch.Tensor | float, quant_min: int | None = ..., quant_max: int | None = ..., *, offset: torch.Tensor | float | None = ..., grad_scale: float | None = ..., bits: int | None = ..., learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class LeakyKReLUSpike(FunctionModule):
    leak: torch.Tensor | float
    k: torch.Tensor | float
    threshold: torch.Tensor | float
    grad_scale: torch.Tensor | float
    tie: float
    def __init__(self, leak: torch.Tensor | float = ..., k: torch.Tensor | float = ..., threshold: torch.Tensor | float = ..., grad_scale: torch.Tensor | float = ..., tie: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, v: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class LearnedRound(FunctionModule):
    v: torch.Tensor
    hard: bool
    zeta: float
    gamma: float
    temperature: float
    def __init__(self, v: torch.Tensor, *, hard: bool = ..., zeta: float = ..., gamma: float = ..., temperature: float = ..., learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class LessEqualST(FunctionModule):
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2', 'laplace']
    epsilon: float
    def __init__(self, softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2', 'laplace'] = ..., epsilon: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, y: torch.Tensor | float, **others: typing.Any) -> torch.Tensor: ...

class LessST(FunctionModule):
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2', 'laplace']
    epsilon: float
    def __init__(self, softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2', 'laplace'] = ..., epsilon: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, y: torch.Tensor | float, **others: typing.Any) -> torch.Tensor: ...

class LogTailedReLUSpike(FunctionModule):
    alpha: torch.Tensor | float
    threshold: torch.Tensor | float
    grad_scale: torch.Tensor | float
    tie: float
    def __init__(self, alpha: torch.Tensor | float = ..., threshold: torch.Tensor | float = ..., grad_scale: torch.Tensor | float = ..., tie: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, v: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class LowerBound(FunctionModule):
    bound: torch.Tensor | float
    gradient: Literal['toward', 'inside', 'identity']
    def __init__(self, bound: torch.Tensor | float, gradient: Literal['toward', 'inside', 'identity'] = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class MXQuantize(FunctionModule):
    element: str
    block_size: int
    dim: int
    scale_rounding: str
    rounding: str
    def __init__(self, element: str = ..., *, block_size: int = ..., dim: int = ..., scale_rounding: str = ..., rounding: str = ..., learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, *, noise: torch.Tensor | None = ..., generator: torch.Generator | None = ..., **others: typing.Any) -> torch.Tensor: ...

class MapGrad(FunctionModule):
    f: collections.abc.Callable[..., torch.Tensor]
    def __init__(self, f: collections.abc.Callable[..., torch.Tensor], *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class MaskGrad(FunctionModule):
    mask: torch.Tensor
    def __init__(self, mask: torch.Tensor, *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class MaxST(FunctionModule):
    dim: int | None
    keepdim: bool
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network', 'fast_soft_sort']
    standardize: bool
    gated_grad: bool
    def __init__(self, dim: int | None = ..., keepdim: bool = ..., softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network', 'fast_soft_sort'] = ..., standardize: bool = ..., gated_grad: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> typing.Any: ...

class MedianST(FunctionModule):
    dim: int | None
    keepdim: bool
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network', 'fast_soft_sort']
    standardize: bool
    gated_grad: bool
    def __init__(self, dim: int | None = ..., keepdim: bool = ..., softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network', 'fast_soft_sort'] = ..., standardize: bool = ..., gated_grad: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> typing.Any: ...

class MinST(FunctionModule):
    dim: int | None
    keepdim: bool
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network', 'fast_soft_sort']
    standardize: bool
    gated_grad: bool
    def __init__(self, dim: int | None = ..., keepdim: bool = ..., softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network', 'fast_soft_sort'] = ..., standardize: bool = ..., gated_grad: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> typing.Any: ...

class MultiGaussianSpike(FunctionModule):
    sigma: torch.Tensor | float
    mu: torch.Tensor | float
    h: torch.Tensor | float
    s: torch.Tensor | float
    threshold: torch.Tensor | float
    grad_scale: torch.Tensor | float
    tie: float
    def __init__(self, sigma: torch.Tensor | float = ..., mu: torch.Tensor | float = ..., h: torch.Tensor | float = ..., s: torch.Tensor | float = ..., threshold: torch.Tensor | float = ..., grad_scale: torch.Tensor | float = ..., tie: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, v: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class MultiSpike(FunctionModule):
    threshold: torch.Tensor | float
    max_spikes: int | None
    window: torch.Tensor | float
    grad_scale: torch.Tensor | float
    def __init__(self, threshold: torch.Tensor | float = ..., max_spikes: int | None = ..., window: torch.Tensor | float = ..., grad_scale: torch.Tensor | float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, v: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class NVFP4Quantize(FunctionModule):
    tensor_scale: torch.Tensor | float | None
    dim: int
    def __init__(self, tensor_scale: torch.Tensor | float | None = ..., *, dim: int = ..., learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class NanToNumGrad(FunctionModule):
    nan: float
    posinf: float | None
    neginf: float | None
    def __init__(self, nan: float = ..., posinf: float | None = ..., neginf: float | None = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class NonzeroSignLogAbsSpike(FunctionModule):
    alpha: torch.Tensor | float
    threshold: torch.Tensor | float
    grad_scale: torch.Tensor | float
    tie: float
    def __init__(self, alpha: torch.Tensor | float = ..., threshold: torch.Tensor | float = ..., grad_scale: torch.Tensor | float = ..., tie: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, v: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class NotEqualST(FunctionModule):
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    epsilon: float
    def __init__(self, softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., epsilon: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, y: torch.Tensor | float, **others: typing.Any) -> torch.Tensor: ...

class PACT(FunctionModule):
    alpha: torch.Tensor | float
    bits: int
    def __init__(self, alpha: torch.Tensor | float, bits: int = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class PeriodicExponentialSpike(FunctionModule):
    threshold: torch.Tensor | float
    width: torch.Tensor | float
    max_spikes: int | None
    grad_scale: torch.Tensor | float
    def __init__(self, threshold: torch.Tensor | float = ..., width: torch.Tensor | float = ..., max_spikes: int | None = ..., grad_scale: torch.Tensor | float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, v: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class PiecewiseExpSpike(FunctionModule):
    alpha: torch.Tensor | float
    threshold: torch.Tensor | float
    grad_scale: torch.Tensor | float
    tie: float
    def __init__(self, alpha: torch.Tensor | float = ..., threshold: torch.Tensor | float = ..., grad_scale: torch.Tensor | float = ..., tie: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, v: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class PiecewiseLeakyReLUSpike(FunctionModule):
    w: torch.Tensor | float
    c: torch.Tensor | float
    threshold: torch.Tensor | float
    grad_scale: torch.Tensor | float
    tie: float
    def __init__(self, w: torch.Tensor | float = ..., c: torch.Tensor | float = ..., threshold: torch.Tensor | float = ..., grad_scale: torch.Tensor | float = ..., tie: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, v: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class PiecewiseQuadraticSpike(FunctionModule):
    alpha: torch.Tensor | float
    threshold: torch.Tensor | float
    grad_scale: torch.Tensor | float
    tie: float
    def __init__(self, alpha: torch.Tensor | float = ..., threshold: torch.Tensor | float = ..., grad_scale: torch.Tensor | float = ..., tie: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, v: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class PlackettLuceST(FunctionModule):
    tau: torch.Tensor | float
    dim: int
    method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network']
    def __init__(self, tau: torch.Tensor | float = ..., dim: int = ..., method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network'] = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, scores: torch.Tensor, *, noise: torch.Tensor | None = ..., generator: torch.Generator | None = ..., **others: typing.Any) -> torch.Tensor: ...

class PowerOfTwo(FunctionModule):
    min_exponent: int | None
    max_exponent: int | None
    rounding: str
    gradient: str
    def __init__(self, min_exponent: int | None = ..., max_exponent: int | None = ..., *, rounding: str = ..., gradient: str = ..., learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class QPseudoSpike(FunctionModule):
    alpha: torch.Tensor | float
    threshold: torch.Tensor | float
    grad_scale: torch.Tensor | float
    tie: float
    def __init__(self, alpha: torch.Tensor | float = ..., threshold: torch.Tensor | float = ..., grad_scale: torch.Tensor | float = ..., tie: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, v: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class QuantileST(FunctionModule):
    q: float | collections.abc.Sequence[float] | torch.Tensor
    dim: int | None
    keepdim: bool
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network', 'fast_soft_sort']
    interpolation: Literal['linear', 'lower', 'higher', 'nearest', 'midpoint']
    standardize: bool
    return_argquantile: bool
    gated_grad: bool
    def __init__(self, q: float | collections.abc.Sequence[float] | torch.Tensor, dim: int | None = ..., keepdim: bool = ..., softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network', 'fast_soft_sort'] = ..., interpolation: Literal['linear', 'lower', 'higher', 'nearest', 'midpoint'] = ..., standardize: bool = ..., return_argquantile: bool = ..., gated_grad: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> typing.Any: ...

class RankST(FunctionModule):
    dim: int | None
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2', 'laplace']
    method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network', 'fast_soft_sort', 'sigmoid', 'lapsum']
    descending: bool
    standardize: bool
    def __init__(self, dim: int | None = ..., softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2', 'laplace'] = ..., method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network', 'fast_soft_sort', 'sigmoid', 'lapsum'] = ..., descending: bool = ..., standardize: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class ReLUST(FunctionModule):
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    gated: bool
    def __init__(self, softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., gated: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class RectSpike(FunctionModule):
    alpha: torch.Tensor | float
    threshold: torch.Tensor | float
    grad_scale: torch.Tensor | float
    tie: float
    def __init__(self, alpha: torch.Tensor | float = ..., threshold: torch.Tensor | float = ..., grad_scale: torch.Tensor | float = ..., tie: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, v: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class ReinMax(FunctionModule):
    tau: float
    dim: int
    def __init__(self, tau: float = ..., dim: int = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, logits: torch.Tensor, *, noise: torch.Tensor | None = ..., generator: torch.Generator | None = ..., **others: typing.Any) -> torch.Tensor: ...

class RelaxedBernoulli(FunctionModule):
    tau: torch.Tensor | float
    def __init__(self, tau: torch.Tensor | float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, logits: torch.Tensor, *, noise: torch.Tensor | None = ..., generator: torch.Generator | None = ..., **others: typing.Any) -> torch.Tensor: ...

class ReverseGrad(FunctionModule):
    scale: torch.Tensor | float
    def __init__(self, scale: torch.Tensor | float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class Round(FunctionModule):
    mode: str
    def __init__(self, mode: str = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class RoundST(FunctionModule):
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    neighbor_radius: int
    def __init__(self, softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., neighbor_radius: int = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class S2NNSpike(FunctionModule):
    alpha: torch.Tensor | float
    beta: torch.Tensor | float
    threshold: torch.Tensor | float
    grad_scale: torch.Tensor | float
    tie: float
    def __init__(self, alpha: torch.Tensor | float = ..., beta: torch.Tensor | float = ..., threshold: torch.Tensor | float = ..., grad_scale: torch.Tensor | float = ..., tie: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, v: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class SSOSpike(FunctionModule):
    mean: torch.Tensor | float
    variance: torch.Tensor | float
    threshold: torch.Tensor | float
    grad_scale: torch.Tensor | float
    tie: float
    def __init__(self, mean: torch.Tensor | float = ..., variance: torch.Tensor | float = ..., threshold: torch.Tensor | float = ..., grad_scale: torch.Tensor | float = ..., tie: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, v: torch.Tensor, noise: torch.Tensor | None = ..., **others: typing.Any) -> torch.Tensor: ...

class STEHeavisideSpike(FunctionModule):
    clip_value: torch.Tensor | float | None
    threshold: torch.Tensor | float
    grad_scale: torch.Tensor | float
    tie: float
    def __init__(self, clip_value: torch.Tensor | float | None = ..., threshold: torch.Tensor | float = ..., grad_scale: torch.Tensor | float = ..., tie: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, v: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class STESign(FunctionModule):
    clip_value: torch.Tensor | float | None
    tie: float
    def __init__(self, clip_value: torch.Tensor | float | None = ..., tie: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class ScaleBwd(FunctionModule):
    scale: torch.Tensor | float
    def __init__(self, scale: torch.Tensor | float, *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, input: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class ScaleFwd(FunctionModule):
    scale: torch.Tensor | float
    def __init__(self, scale: torch.Tensor | float, *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, input: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class ScaleGrad(FunctionModule):
    dim: int | collections.abc.Sequence[int] | None
    def __init__(self, dim: int | collections.abc.Sequence[int] | None = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class SigmoidSpike(FunctionModule):
    alpha: torch.Tensor | float
    threshold: torch.Tensor | float
    grad_scale: torch.Tensor | float
    tie: float
    def __init__(self, alpha: torch.Tensor | float = ..., threshold: torch.Tensor | float = ..., grad_scale: torch.Tensor | float = ..., tie: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, v: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class SignST(FunctionModule):
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    def __init__(self, softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class SoftSignSpike(FunctionModule):
    alpha: torch.Tensor | float
    threshold: torch.Tensor | float
    grad_scale: torch.Tensor | float
    tie: float
    def __init__(self, alpha: torch.Tensor | float = ..., threshold: torch.Tensor | float = ..., grad_scale: torch.Tensor | float = ..., tie: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, v: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class SortST(FunctionModule):
    dim: int | None
    descending: bool
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2', 'laplace']
    method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network', 'fast_soft_sort', 'lapsum']
    standardize: bool
    gated_grad: bool
    return_indices: bool
    def __init__(self, dim: int | None = ..., descending: bool = ..., softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2', 'laplace'] = ..., method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network', 'fast_soft_sort', 'lapsum'] = ..., standardize: bool = ..., gated_grad: bool = ..., return_indices: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.return_types.sort: ...

class SparseFastSigmoidSpike(FunctionModule):
    slope: torch.Tensor | float
    low: float
    high: float
    threshold: torch.Tensor | float
    grad_scale: torch.Tensor | float
    tie: float
    def __init__(self, slope: torch.Tensor | float = ..., low: float = ..., high: float = ..., threshold: torch.Tensor | float = ..., grad_scale: torch.Tensor | float = ..., tie: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, v: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class SpikeCount(FunctionModule):
    max_spikes: int
    window: tuple[float, float] | None
    def __init__(self, max_spikes: int = ..., window: tuple[float, float] | None = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, v: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class SpikeRateEscape(FunctionModule):
    beta: torch.Tensor | float
    slope: torch.Tensor | float
    threshold: torch.Tensor | float
    grad_scale: torch.Tensor | float
    tie: float
    def __init__(self, beta: torch.Tensor | float = ..., slope: torch.Tensor | float = ..., threshold: torch.Tensor | float = ..., grad_scale: torch.Tensor | float = ..., tie: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, v: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class SquarewaveFourierSeriesSpike(FunctionModule):
    terms: int
    period: torch.Tensor | float
    threshold: torch.Tensor | float
    grad_scale: torch.Tensor | float
    tie: float
    def __init__(self, terms: int = ..., period: torch.Tensor | float = ..., threshold: torch.Tensor | float = ..., grad_scale: torch.Tensor | float = ..., tie: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, v: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class StepQuantize(FunctionModule):
    step: torch.Tensor | float
    def __init__(self, step: torch.Tensor | float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class StretchedElastic(FunctionModule):
    scale: torch.Tensor | float
    levels: int
    grad_scale: float | None
    def __init__(self, scale: torch.Tensor | float, levels: int = ..., *, grad_scale: float | None = ..., learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class SwishSign(FunctionModule):
    beta: torch.Tensor | float
    tie: float
    def __init__(self, beta: torch.Tensor | float = ..., tie: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class TQT(FunctionModule):
    log2_threshold: torch.Tensor | float
    bits: int
    signed: bool
    def __init__(self, log2_threshold: torch.Tensor | float, bits: int = ..., signed: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class TWN(FunctionModule):
    dim: int | collections.abc.Sequence[int] | None
    def __init__(self, dim: int | collections.abc.Sequence[int] | None = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, w: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class Ternarize(FunctionModule):
    threshold: torch.Tensor | float
    scale: torch.Tensor | float
    negative_scale: torch.Tensor | float | None
    window: torch.Tensor | float | None
    scale_gradient: bool
    def __init__(self, threshold: torch.Tensor | float, scale: torch.Tensor | float = ..., negative_scale: torch.Tensor | float | None = ..., *, window: torch.Tensor | float | None = ..., scale_gradient: bool = ..., learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class TernarySign(FunctionModule):
    threshold: torch.Tensor | float
    clip_value: torch.Tensor | float | None
    tie: float
    def __init__(self, threshold: torch.Tensor | float = ..., clip_value: torch.Tensor | float | None = ..., tie: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class TopkMaskST(FunctionModule):
    k: int
    dim: int
    softness: torch.Tensor | float
    mode: Literal['smooth', 'c0', 'c1', 'c2', 'laplace']
    def __init__(self, k: int, dim: int = ..., softness: torch.Tensor | float = ..., mode: Literal['smooth', 'c0', 'c1', 'c2', 'laplace'] = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class TopkST(FunctionModule):
    k: int
    dim: int | None
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network', 'fast_soft_sort']
    standardize: bool
    gated_grad: bool
    return_indices: bool
    def __init__(self, k: int, dim: int | None = ..., softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network', 'fast_soft_sort'] = ..., standardize: bool = ..., gated_grad: bool = ..., return_indices: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.return_types.topk: ...

class UpperBound(FunctionModule):
    bound: torch.Tensor | float
    gradient: Literal['toward', 'inside', 'identity']
    def __init__(self, bound: torch.Tensor | float, gradient: Literal['toward', 'inside', 'identity'] = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class VectorQuantize(FunctionModule):
    codebook: torch.Tensor
    gradient: str
    indices: torch.Tensor | None
    def __init__(self, codebook: torch.Tensor, *, gradient: str = ..., indices: torch.Tensor | None = ..., learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> typing.Any: ...

class XNOR(FunctionModule):
    dim: int | collections.abc.Sequence[int] | None
    scale_gradient: bool
    def __init__(self, dim: int | collections.abc.Sequence[int] | None = ..., *, scale_gradient: bool = ..., learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, w: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...
