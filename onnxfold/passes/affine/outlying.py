"""Gammas that would spoil a later quantization to int8 if moved: few elements far from the rest.

Of a product y W with y = n * g, rounded to 8 bits over the range of each tensor, the error relative
to the result is about

    e^2 = c(y)^2 + c(W)^2,        c(t) = max|t| / rms(t), the crest of a tensor

with rms over the elements as they meet in the product. After the move it is c(n)^2 + c(g W)^2. Of n
only the mean square 1 is known: the largest of all channels is assumed to be 4, of one channel 2.5,
as in a hundred rows of normal numbers. The ratio of the errors of ONNX Runtime's quantize_dynamic
after and before a move is 0.81 to 1.02 times the prediction of this formula, in single layers with
one scale per tensor (benchmarks/results/gamma_int8.csv), and larger in whole models. A gamma that
is far from even therefore moves only if the formula predicts an error lower by a fifth, and a less
uneven one if it predicts a growth of less than a half. With one scale per column, the move reduces
the error.
"""

from collections.abc import Iterable

import numpy as np

from onnxfold.graph import ModelInfo
from onnxfold.graph.array_types import Float64
from onnxfold.passes.affine.plan import Absorption
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.weights.affine_parts import Weight
from onnxfold.weights.edited import evaluated

# Ratio of the largest to the root mean square: a few outliers, which normal numbers rarely have, or
# many.
SPREAD, _EVEN = 4.0, 2.5
_FALLS, _GROWS = 0.8, 1.5
_OF_ALL, _OF_ONE = 4.0, 2.5


def refuse_outlying(
    view: ModelInfo, name: str, gamma: Float64, readers: Iterable[Absorption]
) -> Refusal | None:
    """Refuse a gamma that would spoil a later int8 quantization of a layer that absorbs it."""
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
    """Return the ratio of the largest |gamma| to their root mean square, 1 for zeros."""
    largest = float(np.abs(gamma).max(initial=0.0))
    return largest / float(np.sqrt(np.mean(gamma**2))) if largest else 1.0


def growth(gamma: Float64, W: Weight, factor: Float64) -> float:
    """Return the ratio of int8 errors after and before the move of gamma.

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
    placed = reader.placed(gamma, 1.0)
    return growth(placed, evaluated(tensor), reader.weight.channels.spread(placed, shape))
