"""float16: a power of two in downstream weights keeps unnormalized values in range.

A layer that reads x instead of y = s x computes x W. With finite x, |x| <= M = 65504, every partial
sum of the product, rounded after each of d additions at most, stays within

    |x 2^-k W|  <=  M 2^-k (1 + 2^-11)^d max_j sum_i |W_ij|  <=  M,    2^k >= (1 + 2^-11)^d |W|_1.

2^-k W is exact where it is not subnormal, and otherwise rounded by 2^-25 at most, as x 2^-k W is. A
norm stays if a column of the weight would become subnormal (onnxfold/weights/half_weights.py). 1 /
s^2 is multiplied by 4^-k, exactly, so that 2^k s is multiplied instead of s, and e / s^2 of a
downstream norm is multiplied by 4^-k as well: nothing more changes. Layers after the first, and
tables, have their own s.

Source of the bound: N. Higham, Accuracy and Stability of Numerical Algorithms, section 3.1.
"""

from math import ceil, log2

import numpy as np

from onnxfold.graph import ModelInfo
from onnxfold.graph.array_types import Array
from onnxfold.graph.channels import Channels
from onnxfold.norms import NormSite
from onnxfold.operators.families.transfer import refuse
from onnxfold.passes.base import Settings
from onnxfold.passes.deferral.flow import Flow
from onnxfold.passes.deferral.plan import HalvedReader
from onnxfold.passes.deferral.readers import FirstLayer, first_layers
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.weights.edits import Scale
from onnxfold.weights.half_weights import refuse_few_bits

_ROUNDING = 2.0**-11
_MOST = 15  # 2^-25 times 2^15 is a thousandth already


def exponent_of(weight: Array, axis: int) -> int | None:
    """Return the smallest k >= 0 with 2^k >= (1 + 2^-11)^d |W|_1, W summed along an axis of size d.

    None if a number of it is not finite.
    """
    sums = np.abs(weight.astype(np.float64)).sum(axis=axis)
    largest = float(sums.max(initial=0.0)) * (1 + _ROUNDING) ** weight.shape[axis]
    return ceil(log2(max(1.0, largest))) if np.isfinite(largest) else None


def halved_readers(
    info: ModelInfo, site: NormSite, flow: Flow, settings: Settings
) -> tuple[HalvedReader, ...] | Refusal:
    """Return the weights of all first layers of a norm with one power of two, or why not."""
    layers = first_layers(info, {site.output: site.fiber}, flow, settings)
    if isinstance(layers, Refusal):
        return layers
    exponent = 0
    for layer in layers:
        needed = _exponent(layer)
        if isinstance(needed, Refusal):
            return needed
        exponent = max(exponent, needed)
    if exponent > _MOST:
        sentence = f"it would take 2^-{exponent} to keep it in the range of float16"
        return Refusal(RefusalCode.UNSUPPORTED_TYPE, sentence, (site.name,))
    if exponent == 0:
        return ()
    halved = [HalvedReader(each.reader, each.fiber, exponent, each.nbytes) for each in layers]
    for each, layer in zip(halved, layers, strict=True):
        columns = [axis for axis in range(2) if axis not in layer.fiber.axes]
        few = refuse_few_bits(layer.weight, halving(each), columns, layer.weight.name or "")
        if few is not None:
            return few
    return tuple(halved)


def halving(halved: HalvedReader) -> Scale:
    """Return the edit of a weight."""
    vector = np.full(halved.fiber.size, 2.0**-halved.exponent)
    return Scale(Channels(halved.fiber.blocks), vector)


def _exponent(layer: FirstLayer) -> int | Refusal:
    """Return the power that a layer's weight needs, or why its product has no bound."""
    if len(layer.fiber.axes) != 1 or len(layer.weight.shape) != 2:
        sentence = "is followed in float16 only with a matrix"
        return refuse(RefusalCode.UNSUPPORTED_TYPE, layer.node, sentence)
    exponent = exponent_of(layer.weight.numpy(), layer.fiber.axes[0])
    if exponent is None or abs(layer.node.attributes.get_float("alpha", 1.0)) > 1:
        sentence = "has no bound: its weight is not finite, or its alpha above 1"
        return refuse(RefusalCode.UNSUPPORTED_TYPE, layer.node, sentence)
    return exponent
