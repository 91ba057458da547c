"""RNN, GRU and LSTM."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from onnxfold.check.reference.kernel import Array, Call, kernel
from onnxfold.check.reference.kernels.elementwise import expit

_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "sigmoid": expit,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, np.zeros((), x.dtype)),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "softplus": lambda x: np.logaddexp(x, np.zeros((), x.dtype)),
}


@dataclass(frozen=True, slots=True)
class _Cell:
    """Weights of one direction: w [gates*H, I], r [gates*H, H], biases [gates*H], p [3H]."""

    w: Array
    r: Array
    input_bias: Array
    state_bias: Array
    peepholes: Array | None
    activations: tuple[Callable[[Array], Array], ...]
    clip: float | None
    linear_before_reset: bool
    couple: bool

    def clipped(self, x: Array) -> Array:
        if self.clip is None:
            return x
        limit = np.asarray(self.clip, x.dtype)
        return np.clip(x, -limit, limit)


State = tuple[Array, Array]
Step = Callable[[_Cell, Array, State], State]


def _rnn_step(cell: _Cell, x: Array, state: State) -> State:
    h, c = state
    total = x @ cell.w.T + h @ cell.r.T + cell.input_bias + cell.state_bias
    return cell.activations[0](cell.clipped(total)), c


def _gru_step(cell: _Cell, x: Array, state: State) -> State:
    h, c = state
    f, g = cell.activations[:2]
    wz, wr, wh = np.split(x @ cell.w.T + cell.input_bias, 3, axis=-1)
    rz, rr, rh = np.split(cell.r, 3, axis=0)
    bz, br, bh = np.split(cell.state_bias, 3)
    z = f(cell.clipped(wz + h @ rz.T + bz))
    r = f(cell.clipped(wr + h @ rr.T + br))
    if cell.linear_before_reset:
        n = g(cell.clipped(wh + r * (h @ rh.T + bh)))
    else:
        n = g(cell.clipped(wh + (r * h) @ rh.T + bh))
    return (1 - z) * n + z * h, c


def _lstm_step(cell: _Cell, x: Array, state: State) -> State:
    h, c = state
    f, g, k = cell.activations[:3]
    total = x @ cell.w.T + h @ cell.r.T + cell.input_bias + cell.state_bias
    i, o, forget, candidate = np.split(total, 4, axis=-1)
    pi, po, pf = (0, 0, 0) if cell.peepholes is None else np.split(cell.peepholes, 3)
    i = f(cell.clipped(i + pi * c))
    forget = 1 - i if cell.couple else f(cell.clipped(forget + pf * c))
    c = forget * c + i * g(cell.clipped(candidate))
    o = f(cell.clipped(o + po * c))
    return o * k(c), c


def _scan(
    cell: _Cell, step: Step, x: Array, lengths: Array | None, state: State, *, reverse: bool
) -> tuple[Array, State]:
    """Run one direction over x: [T, B, I]; steps beyond a row's length do not change its state."""
    steps = x.shape[0]
    out = np.zeros((steps, *state[0].shape), dtype=x.dtype)
    for t in reversed(range(steps)) if reverse else range(steps):
        h, c = step(cell, x[t], state)
        if lengths is None:
            out[t], state = h, (h, c)
        else:
            live = (t < lengths)[:, None]
            state = (np.where(live, h, state[0]), np.where(live, c, state[1]))
            out[t] = np.where(live, h, np.zeros_like(h))
    return out, state


def _activations(call: Call, default: tuple[str, ...], directions: int) -> list[str]:
    names = list(default) * directions
    if call.has("activations"):
        names = [str(n).lower() for n in call.attributes["activations"].as_strings()]
    unknown = [n for n in names if n not in _ACTIVATIONS]
    if unknown:
        raise call.unsupported(f"activation {unknown[0]!r}")
    return names


def _recurrent(
    call: Call, step: Step, default: tuple[str, ...], inputs: tuple[Array | None, ...]
) -> tuple[Array, Array, Array]:
    padded: list[Array | None] = [*inputs, *(None for _ in range(8 - len(inputs)))]
    x, w, r, b, lengths, h0, c0, p = padded
    if x is None or w is None or r is None:
        raise call.unsupported("a missing input")
    batch_first = bool(call.integer("layout", 0))
    if batch_first:
        x = x.swapaxes(0, 1)
        h0, c0 = (None if v is None else v.swapaxes(0, 1) for v in (h0, c0))
    directions, size = w.shape[0], r.shape[-1]
    zeros = np.zeros((directions, x.shape[1], size), dtype=x.dtype)
    h0, c0 = zeros if h0 is None else h0, zeros if c0 is None else c0
    names = _activations(call, default, directions)
    runs = []
    for d in range(directions):
        halves = np.split(b[d], 2) if b is not None else [np.zeros(w.shape[1], x.dtype)] * 2
        each = names[d * len(default) : (d + 1) * len(default)]
        cell = _Cell(
            w[d],
            r[d],
            halves[0],
            halves[1],
            None if p is None else p[d],
            tuple(_ACTIVATIONS[n] for n in each),
            call.real("clip", 0.0) if call.has("clip") else None,
            bool(call.integer("linear_before_reset", 0)),
            bool(call.integer("input_forget", 0)),
        )
        reverse = d == 1 or call.text("direction", "forward") == "reverse"
        runs.append(_scan(cell, step, x, lengths, (h0[d], c0[d]), reverse=reverse))
    y = np.stack([out for out, _ in runs], axis=1)
    h = np.stack([state[0] for _, state in runs])
    c = np.stack([state[1] for _, state in runs])
    if batch_first:
        return y.transpose(2, 0, 1, 3), h.swapaxes(0, 1), c.swapaxes(0, 1)
    return y, h, c


@kernel("RNN")
def rnn(call: Call, *inputs: Array | None) -> tuple[Array, ...]:
    return _recurrent(call, _rnn_step, ("tanh",), inputs)[:2]


@kernel("GRU")
def gru(call: Call, *inputs: Array | None) -> tuple[Array, ...]:
    return _recurrent(call, _gru_step, ("sigmoid", "tanh"), inputs)[:2]


@kernel("LSTM")
def lstm(call: Call, *inputs: Array | None) -> tuple[Array, ...]:
    return _recurrent(call, _lstm_step, ("sigmoid", "tanh", "tanh"), inputs)
