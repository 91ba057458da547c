"""Gammas that spoil a later quantisation to int8 when they move: few elements far from the rest.

Of a product y W with y = n * g, rounded to 8 bits over the range of each tensor, the error relative
to the result is about

    e^2 = c(y)^2 + c(W)^2,        c(t) = max|t| / rms(t), the crest of a tensor

with rms over the elements as they meet in the product.  After the move it is c(n)^2 + c(g W)^2.  Of
n nothing is known but that it has mean square 1: the largest of all channels is taken as 4, of one
channel as 2.5, as in a hundred rows of normal numbers.  The ratio of the errors of ONNX Runtime's
quantize_dynamic after and before a move is 0.81 to 1.02 times that of this formula, in single
layers with one scale for each tensor (benchmarks/results/gamma_int8.csv), and larger in whole
models.  So a gamma that is far from even moves only where the formula says that the error falls by
a fifth, and one that is less so where it grows by less than a half.  Where each column has a scale
of its own, the move makes the error smaller.
"""

from collections.abc import Iterable

import numpy as np

from onnxfold.graph import ModelInfo
from onnxfold.graph.array_types import Float64
from onnxfold.passes.affine.plan import Absorption
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.weights.affine_parts import Weight
from onnxfold.weights.edited import evaluated

# Of the largest over the root mean square: a few outliers, as normal numbers hardly are, or many.
SPREAD, _EVEN = 4.0, 2.5
_FALLS, _GROWS = 0.8, 1.5
_OF_ALL, _OF_ONE = 4.0, 2.5


def refuse_outlying(
    view: ModelInfo, name: str, gamma: Float64, readers: Iterable[Absorption]
) -> Refusal | None:
    """Say how much the gamma of a norm would spoil a later int8 of a layer that takes it."""
    spread = spread_of(gamma)
    if spread <= _EVEN:
        return None
    grown = {reader.weight.value: _of_reader(view, gamma, reader) for reader in readers}
    weight = max(grown, key=lambda each: grown[each], default="")
    if not weight or grown[weight] < (_FALLS if spread > SPREAD else _GROWS):
        return None
    sentence = (
        f"gamma of '{name}' has elements of {spread:.3g} times its root mean square, which a later "
        f"int8 of weight '{weight}' may suffer from (error times about {grown[weight]:.2f}), "
        "and the norm multiplies by gamma for free"
    )
    return Refusal(RefusalCode.OUTLYING_GAMMA, sentence, (name,))


def spread_of(gamma: Float64) -> float:
    """Return the largest of |gamma| over their root mean square, 1 for zeros."""
    largest = float(np.abs(gamma).max(initial=0.0))
    return largest / float(np.sqrt(np.mean(gamma**2))) if largest else 1.0


def growth(gamma: Float64, W: Weight, factor: Float64) -> float:
    """Return the error of int8 after the move of gamma over that before.

    ``factor`` is gamma as it broadcasts against W.
    """
    largest = scaled = power = together = factors = 0.0

    def sums(start: int, chunk: Float64) -> tuple[float, ...]:
        rows = slice(start, start + chunk.shape[0])
        g = factor[rows] if factor.shape[0] > 1 else factor
        product, squares = chunk * g, float(np.broadcast_to(g * g, chunk.shape).sum())
        maxima = float(np.abs(chunk).max(initial=0.0)), float(np.abs(product).max(initial=0.0))
        return (*maxima, float(np.vdot(chunk, chunk)), float(np.vdot(product, product)), squares)

    for part in W.mapped(sums):
        largest, scaled = max(largest, part[0]), max(scaled, part[1])
        power, together, factors = power + part[2], together + part[3], factors + part[4]
    if not together:
        return 1.0
    mean_square = float(np.mean(gamma**2))
    count = factors / mean_square
    sizes = max(_OF_ONE * float(np.abs(gamma).max()), _OF_ALL * float(np.sqrt(mean_square)))
    before = sizes**2 * power / together + largest**2 * factors / together
    after = _OF_ALL**2 + scaled**2 * count / together
    return float(np.sqrt(after / before))


def _of_reader(view: ModelInfo, gamma: Float64, reader: Absorption) -> float:
    tensor = view.tensor(view.by_ref()[reader.weight.value])
    if tensor is None:
        return 1.0
    shape = tuple(tensor.shape.numpy())
    return growth(gamma, evaluated(tensor), reader.weight.channels.spread(gamma, shape))
