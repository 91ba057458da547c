"""Quantities computed from the sums of vectors, for all rows of a norm at once.

With s = sum x, q = sum x^2 and d the size: mean m = s/d, |x| = sqrt(q), the angle to a vector v
is acos(x.v / (|x| |v|)), that to the uniform vector 1 acos(s / sqrt(d q)), and the share of the
energy along 1 is d m^2 / q, its cosine squared.  Source: "Geometric interpretation of layer
normalization and a comparative analysis with RMSNorm", arXiv 2409.12951.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxfold.geometry.instrument import MeasuredNorm, control_vectors
from onnxfold.norms import EpsilonMode

Array = npt.NDArray[np.float64]
ANGLES = ("angle_uniform", "angle_a", "angle_b")
SIDE_QUANTITIES = (*ANGLES, "norm", "mean", "uniform_share")


def vector_quantities(table: Array, size: int, seed: int) -> dict[str, Array]:
    """Return the quantities of :data:`SIDE_QUANTITIES` for a table [rows, 4], angles in degrees.

    If a vector is 0, its angles and share are NaN.
    """
    total, along_a, along_b, squares = table.T
    lengths = np.linalg.norm(control_vectors(size, seed), axis=0)
    norm = np.sqrt(squares)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        cosines = (
            total / (np.sqrt(size) * norm),
            along_a / (lengths[0] * norm),
            along_b / (lengths[1] * norm),
        )
        share = np.minimum(total / size * total / squares, 1.0)
    angles = (np.degrees(np.arccos(np.clip(cosine, -1.0, 1.0))) for cosine in cosines)
    values = (*angles, norm, total / size, share)
    return dict(zip(SIDE_QUANTITIES, values, strict=True))


_DENOMINATORS: dict[EpsilonMode, Callable[[Array, float], Any]] = {
    EpsilonMode.INSIDE: lambda v, e: np.sqrt(v + e),
    EpsilonMode.OUTSIDE: lambda v, e: np.sqrt(v) + e,
    EpsilonMode.MAX_INSIDE: lambda v, e: np.sqrt(np.maximum(v, e)),
    EpsilonMode.MAX_OUTSIDE: lambda v, e: np.maximum(np.sqrt(v), e),
}


def error_without_mean(table: Array, norm: MeasuredNorm) -> Array:
    """Return |y' - y| / |y| of a norm's result y and the result y' without mean subtraction.

    Both before gamma and beta: y = (x - m) / D(v), y' = x / D(v + m^2), with v the variance and D
    the norm's denominator. x - m and m 1 are orthogonal, so with t = D(v) / D(v + m^2) the square
    is (t - 1)^2 + t^2 m^2 / v. NaN if the variance is 0.
    """
    mean = table[:, 0] / norm.size
    square = table[:, 3] / norm.size
    variance = np.maximum(square - mean**2, 0.0)
    denominator = _DENOMINATORS[norm.epsilon_mode]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        ratio = denominator(norm.factor * variance, norm.epsilon) / denominator(
            norm.factor * square, norm.epsilon
        )
        error = np.hypot(ratio - 1.0, ratio * mean / np.sqrt(variance))
    return np.where(variance > 0.0, error, np.nan)
