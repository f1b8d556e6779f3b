"""Recurrent networks, step by step: a step's formulas, and the walk through layers, directions and time."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fullgrad._core.recomputed import pulled_back
from fullgrad._dispatch import innermost
from fullgrad.completion._registry import NO_BATCH, NO_FORWARD, Whole, accumulated, completes, completes_backward

# A step takes the input's part of the gates, the states, and the weights and biases of the states.
State = tuple[Tensor, ...]
Step = Callable[..., State]


def _linear(x: Tensor, parameters: Sequence[Tensor], of: int) -> Tensor:
    """The affine function of the input (0) or of the state (1)."""
    y = x @ parameters[of].mT
    return y + parameters[2 + of] if len(parameters) >= 4 else y


def _lstm_step(given: Tensor, state: State, parameters: Sequence[Tensor]) -> State:
    i, f, g, o = (given + _linear(state[0], parameters, 1)).chunk(4, -1)
    cell = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    hidden = torch.sigmoid(o) * torch.tanh(cell)
    return (hidden @ parameters[-1].mT if len(parameters) % 2 else hidden), cell


def _gru_step(given: Tensor, state: State, parameters: Sequence[Tensor]) -> State:
    (given_r, given_z, given_n), (r, z, n) = given.chunk(3, -1), _linear(state[0], parameters, 1).chunk(3, -1)
    z = torch.sigmoid(given_z + z)
    new = torch.tanh(given_n + torch.sigmoid(given_r + r) * n)
    return ((1 - z) * new + z * state[0],)


def _tanh_step(given: Tensor, state: State, parameters: Sequence[Tensor]) -> State:
    return (torch.tanh(given + _linear(state[0], parameters, 1)),)


def _relu_step(given: Tensor, state: State, parameters: Sequence[Tensor]) -> State:
    return (torch.relu(given + _linear(state[0], parameters, 1)),)


class _Walk(NamedTuple):
    """The layers and directions of a network."""

    step: Step
    parameters: Sequence[Tensor]
    has_biases: bool
    num_layers: int
    dropout: float
    train: bool
    bidirectional: bool

    @property
    def draws(self) -> bool:
        """Whether numbers are dropped between layers."""
        return bool(self.train and self.dropout and self.num_layers > 1)

    def __call__(self, x: Tensor, states: Sequence[Tensor], run: Callable[..., Any]) -> tuple[Tensor, ...]:
        """The outputs of all steps and the last states of each layer and direction; ``run`` takes one of them through time."""
        directions = 2 if self.bidirectional else 1
        has_projection = len(states) == 2 and states[0].shape[-1] != states[1].shape[-1]
        count = (4 if self.has_biases else 2) + has_projection
        last: list[State] = []
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(directions):
                k = layer * directions + direction
                own = self.parameters[k * count : (k + 1) * count]
                step = functools.partial(self.step, parameters=own)
                y, state = run(step, _linear(x, own, 0), tuple([s[k] for s in states]), bool(direction))
                outputs.append(y)
                last.append(state)
            x = torch.cat(outputs, -1)
            if self.draws and layer < self.num_layers - 1:
                x = functional.dropout(x, self.dropout)
        return x, *[torch.stack(parts) for parts in zip(*last, strict=True)]


def _through_time(step: Any, given: Tensor, state: State, is_reversed: bool) -> tuple[Tensor, State]:
    found: list[Tensor] = []
    for part in reversed(given.unbind(0)) if is_reversed else given.unbind(0):
        state = step(part, state)
        found.append(state[0])
    return torch.stack(found[::-1] if is_reversed else found), state


def _of_one_length(step: Step, x: Tensor, states: Sequence[Tensor], *args: Any) -> Any:
    *options, batch_first = args
    walk = _Walk(step, *options)
    y, *last = walk(x.transpose(0, 1) if batch_first else x, states, _through_time)
    found = (y.transpose(0, 1) if batch_first else y), *last
    return Whole(found) if walk.draws else found


def _packed(step: Step, x: Tensor, batch_sizes: Tensor, states: Sequence[Tensor], *args: Any) -> Any:
    """Sequences of several lengths: the longest come first, and each step has those that have not ended."""
    sizes: list[int] = innermost(batch_sizes).tolist()

    def run(step: Any, given: Tensor, first: State, is_reversed: bool) -> tuple[Tensor, State]:
        parts, found, ended = given.split(sizes), [], []
        state = tuple([s[: sizes[-1 if is_reversed else 0]] for s in first])
        for part in reversed(parts) if is_reversed else parts:
            before, now = state[0].shape[0], part.shape[0]
            if now > before:  # sequences that end here are the first to be read from their end
                state = tuple([torch.cat([s, f[before:now]]) for s, f in zip(state, first, strict=True)])
            elif now < before:
                ended.append(tuple([s[now:] for s in state]))
                state = tuple([s[:now] for s in state])
            state = step(part, state)
            found.append(state[0])
        last = tuple([torch.cat(every) for every in zip(state, *reversed(ended), strict=True)])
        return torch.cat(found[::-1] if is_reversed else found), last

    walk = _Walk(step, *args)
    return Whole(walk(x, states, run)) if walk.draws else walk(x, states, run)


@completes_backward("_cudnn_rnn_backward", 3, 6)
def _cudnn_backward(x: Tensor, weights: Sequence[Tensor], count: int, buffer: Tensor, *args: Any) -> Any:
    """The gradients of input, states and weights in eager code on a GPU."""
    hidden, cell, _, *given = args[:6]
    mode, _, _, num_layers, batch_first, dropout, train, bidirectional, sizes, _, _, is_needed = args[6:]
    if dropout and train and num_layers > 1:
        return NotImplemented  # the numbers were drawn
    states = (hidden,) if cell is None else (hidden, cell)
    step = (_relu_step, _tanh_step, _lstm_step, _gru_step)[mode]
    options = count >= 4, num_layers, 0.0, train, bidirectional

    def formula(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        own, parameters = rest[: len(states)], rest[len(states) :]
        if len(sizes):
            found = _packed(step, x, torch.tensor(sizes), own, parameters, *options)
        else:
            found = _of_one_length(step, x, own, parameters, *options, batch_first)
        return tuple([y for y, g in zip(found, given, strict=False) if g is not None])

    inputs = (x, *states, *weights)
    found = pulled_back(formula, inputs, tuple(range(len(inputs))), tuple([g for g in given if g is not None]))
    x_, *states_ = [
        v if needed else None for v, needed in zip(found, (is_needed[0], *is_needed[1 : 1 + len(states)]), strict=False)
    ]
    states_ = [*states_, None] if cell is None else states_
    return x_, *states_, list(found[1 + len(states) :]) if is_needed[3] else []


@completes("lstm.input", NO_BATCH, batched=True)
def _lstm(x: Tensor, states: Sequence[Tensor], *args: Any) -> Any:
    return _of_one_length(_lstm_step, x, states, *args)


@completes("lstm.data", NO_BATCH, batched=True)
def _lstm_packed(x: Tensor, batch_sizes: Tensor, states: Sequence[Tensor], *args: Any) -> Any:
    return _packed(_lstm_step, x, batch_sizes, states, *args)


def _completes_one_state(name: str, step: Step) -> None:
    completes(f"{name}.input", NO_BATCH, batched=True)(lambda x, state, *args: _of_one_length(step, x, (state,), *args))
    completes(f"{name}.data", NO_BATCH, batched=True)(lambda x, sizes, state, *args: _packed(step, x, sizes, (state,), *args))


_completes_one_state("gru", _gru_step)
_completes_one_state("rnn_tanh", _tanh_step)
_completes_one_state("rnn_relu", _relu_step)


# --- Single steps -----------------------------------------------------------------------------------------------------------

# torch adds a part of the gates in place to the other, which only one of them may have of each sample.


@completes("lstm_cell", NO_BATCH, batched=True)
def _lstm_cell(x: Tensor, states: Sequence[Tensor], *parameters: Tensor | None) -> State:
    return _one_step(_lstm_step, x, states, parameters)


def _one_step(step: Step, x: Tensor, state: Sequence[Tensor], parameters: Sequence[Tensor | None]) -> State:
    own = [accumulated(p) for p in parameters if p is not None]
    found = step(_linear(accumulated(x), own, 0), tuple(map(accumulated, state)), own)
    return tuple([y.to(s.dtype) for y, s in zip(found, state, strict=True)])


def _completes_cell(name: str, step: Step) -> None:
    @completes(name, NO_BATCH, batched=True)
    def cell(x: Tensor, state: Tensor, *parameters: Tensor | None) -> Tensor:
        return _one_step(step, x, (state,), parameters)[0]


_completes_cell("gru_cell", _gru_step)
_completes_cell("rnn_tanh_cell", _tanh_step)
_completes_cell("rnn_relu_cell", _relu_step)


# --- Sequences of several lengths -------------------------------------------------------------------------------------------


@completes("_pack_padded_sequence", NO_FORWARD, batched=True)
def _pack(x: Tensor, lengths: Tensor, batch_first: bool) -> Any:
    counts: list[int] = innermost(lengths).tolist()
    if any(a < b for a, b in itertools.pairwise(counts)) or min(counts) <= 0 or len(counts) != x.shape[0 if batch_first else 1]:
        return NotImplemented  # torch has the words
    steps = x.unbind(1 if batch_first else 0)
    sizes = [sum(n > t for n in counts) for t in range(counts[0])]
    # torch's kernel of what comes next reads the sizes, which are to be at no level of transforms.
    return Whole((torch.cat([step[:n] for step, n in zip(steps, sizes, strict=False)]), torch.tensor(sizes)))


@completes("_pad_packed_sequence", NO_BATCH, batched=True)
def _pad(x: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: float, total_length: int) -> Any:
    sizes: list[int] = innermost(batch_sizes).tolist()
    if 0 < total_length < len(sizes):
        return NotImplemented
    steps = [_filled(part, sizes[0], padding_value) for part in x.split(sizes)]
    steps += [torch.full_like(steps[0], padding_value)] * (total_length - len(sizes))
    lengths = torch.tensor([sum(n > i for n in sizes) for i in range(sizes[0])])
    return Whole((torch.stack(steps, 1 if batch_first else 0), lengths))


def _filled(part: Tensor, count: int, value: float) -> Tensor:
    rest = torch.full((count - part.shape[0], *part.shape[1:]), value, dtype=part.dtype, device=part.device)
    return torch.cat([part, rest])
