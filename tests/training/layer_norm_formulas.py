"""LayerNorm behind a linear layer, in numpy: outputs and gradients by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

INPUTS, WIDTH, ROWS, EPSILON = 6, 8, 9, 1e-5
# Some hundred additions and divisions by deviations of about 1.
TOLERANCE = 1e-11


def drawn(shift: float = 0.0) -> dict[str, Any]:
    """Return weights, rows and the weights of a sum of the outputs, in float64."""
    rng = np.random.default_rng(0)
    return {
        "x": rng.normal(size=(ROWS, INPUTS)),
        "W": rng.normal(shift, 1, size=(INPUTS, WIDTH)),
        "b": rng.normal(shift, 1, size=WIDTH),
        "gamma": rng.normal(1, 0.5, size=WIDTH),
        "beta": rng.normal(size=WIDTH),
        "c": rng.normal(size=(ROWS, WIDTH)),
    }


def truth(x: Any, W: Any, b: Any, gamma: Any, beta: Any, c: Any) -> tuple[Any, dict[str, Any]]:
    """Return y and the gradients of sum(c y) with respect to W, b, gamma and beta."""
    h = x @ W + b
    centred = h - h.mean(-1, keepdims=True)
    s = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON)
    n = centred * s
    dn = c * gamma
    dh = s * (dn - dn.mean(-1, keepdims=True) - n * (dn * n).mean(-1, keepdims=True))
    grads = {"W": x.T @ dh, "b": dh.sum(0), "gamma": (c * n).sum(0), "beta": c.sum(0)}
    return n * gamma + beta, grads


def assert_near(found: Any, wanted: Any) -> None:
    assert np.abs(np.asarray(found) - wanted).max() <= TOLERANCE * np.abs(wanted).max()
