"""Layers that center for a LayerNorm whose input keeps its mean: LN(x) W = s (x (P W)).

P = I - 11^T/d is symmetric and P x is the numerator of LN, so P may be in the weight downstream as
well as upstream. x keeps its mean then, in a product with columns of mean 0. With unit roundoff u,

    |s (x W')_computed - s x P W|  <=  (d + 4) u s |x| |P W|  + O(u^2),    W' = P W rounded,

element by element, d roundings for the sum and one each for W', s and the product. The norm has the
same bound with |P x| for |x|, which is smaller by sqrt(1 + mean(x)^2 / var(x)), and the rounding of
its own mean, which is of the order of u s |mean(x)| as well unless the mean is exact. With |x| |P
W| <= sqrt(d (mean^2 + var)) max_j |P W_j| this is the bound of the report
(:class:`onnxfold.passes.deferral.plan.MeanBound`). It is unlimited: for a row of one number c the
norm returns 0, and x P W the roundings of c, times 1 / sqrt(eps).

Source of the bound: N. Higham, Accuracy and Stability of Numerical Algorithms, section 3.1.

float16: a power of two in downstream weights keeps unnormalized values in range.

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

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, log2, sqrt

import numpy as np
import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo, follow_reshape, whole_axes
from onnxfold.graph.channels import Channels
from onnxfold.graph.constants import Array, digits
from onnxfold.graph.operands import known_operand, known_tensor
from onnxfold.norms import NormSite
from onnxfold.operators import facets
from onnxfold.operators.families.absorb import absorbing_layer
from onnxfold.operators.families.transfer import refuse
from onnxfold.operators.table import row_of
from onnxfold.passes.base import DEFERRED_MEANS, Settings
from onnxfold.passes.deferral.flow import Flow
from onnxfold.passes.deferral.plan import CentredReader, HalvedReader, MeanBound
from onnxfold.passes.places import ReaderRef
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.weights.evaluation import Scale
from onnxfold.weights.half_weights import refuse_few_bits

_ROUNDING = 2.0**-11
_MOST = 15  # 2^-25 times 2^15 is a thousandth already


@dataclass(frozen=True, slots=True)
class FirstLayer:
    """A linear layer that reads a norm's result: its weight, and the channels along it.

    ``nbytes``: the size of the weight if others read it too, otherwise 0.
    """

    node: ir.Node
    reader: ReaderRef
    weight: ir.TensorProtocol
    fiber: Fiber
    nbytes: int


def centred_readers(
    info: ModelInfo, site: NormSite, flow: Flow, settings: Settings
) -> tuple[tuple[CentredReader, ...], MeanBound] | Refusal:
    """Return the weights of all first layers of a LayerNorm and the mean's cost, or a refusal.

    A refusal means that one of them cannot be centered.
    """
    if not settings.defer_means:
        sentence = "its mean would stay in the product, whose rounding grows with it"
        return Refusal(RefusalCode.ROUNDS_MORE, sentence, (site.name,))
    if DEFERRED_MEANS in settings.failed:
        sentence = "a product that keeps the mean would err by more than the check allows"
        return Refusal(RefusalCode.NOT_PROVED, sentence, (site.name,))
    fibers = {site.output: site.fiber}
    found = first_layers(info, fibers, flow, settings)
    if isinstance(found, Refusal):
        return found
    seeing = next((other for other in flow.cancelled if other.input in fibers), None)
    if seeing is not None:
        return refuse(RefusalCode.HAS_MEAN, seeing.last, "does not subtract the mean itself")
    ended = fibers.keys() & flow.ended
    if ended:
        sentence = f"'{next(iter(ended)).name}' is read by operators other than linear layers"
        return Refusal(RefusalCode.EXACT_READER, sentence, (site.name,))
    centred = tuple(CentredReader(layer.reader, layer.fiber, layer.nbytes) for layer in found)
    return centred, _bound(site, found)


def _bound(site: NormSite, layers: Iterable[FirstLayer]) -> MeanBound:
    """Return the bound for the columns P W_j of all first layers."""
    longest = max((_longest_column(layer) for layer in layers), default=0.0)
    roundoff = 2.0 ** -digits(site.output.dtype)
    return MeanBound((site.size + 4) * roundoff * sqrt(site.size) * longest, site.epsilon)


def _longest_column(layer: FirstLayer) -> float:
    """Return the largest norm of a column of P W."""
    axes = layer.fiber.axes
    W = layer.weight.numpy().astype(np.float64)
    W -= W.mean(axis=axes, keepdims=True)
    return float(np.sqrt(np.square(W).sum(axis=axes)).max(initial=0.0))


def first_layers(
    info: ModelInfo, fibers: dict[ir.Value, Fiber], flow: Flow, settings: Settings
) -> list[FirstLayer] | Refusal:
    """Return all first layers of a norm, or why one cannot have its own weight.

    ``fibers``: the channels of the norm's result; the channels of downstream values are added.
    """
    found: list[FirstLayer] = []
    for node, outputs in flow.handed.items():
        source = next((value for value in node.inputs if value in fibers), None)
        if source is None:
            continue
        if row_of(node).layer is None:
            behind = image(info, node, source, fibers[source])
            if behind is None:
                return refuse(RefusalCode.EXACT_READER, node, "does not keep the norm's channels")
            fibers.update(dict.fromkeys(outputs, behind))
            continue
        layer = _first_layer(info, node, source, fibers[source], settings)
        if isinstance(layer, Refusal):
            return layer
        found.append(layer)
    return found


def image(info: ModelInfo, node: ir.Node, source: ir.Value, fiber: Fiber) -> Fiber | None:
    """Return where the channels of a value are after a node that reshapes it, or None."""
    old, new = info.shape(source), info.shape(node.outputs[0])
    if not facets.reshapes(row_of(node)) or old is None or new is None:
        return None
    return follow_reshape(fiber, old, new)


def layer_weight(
    info: ModelInfo, node: ir.Node, source: ir.Value, fiber: Fiber
) -> tuple[int, Fiber] | Refusal:
    """Return the weight input of a layer, and the channels of a value along it."""
    layer, index = row_of(node).layer, list(node.inputs).index(source)
    place = None if layer is None else absorbing_layer(info, node, index, Channels(fiber.blocks))
    if place is None or isinstance(place, Refusal):
        return place or refuse(RefusalCode.UNKNOWN_OP, node, "is a layer that cannot be followed")
    tensor = info.tensor(node.inputs[place.weight])
    if tensor is None or not tensor.dtype.is_floating_point():
        sentence = "has a weight that is not a stored floating-point constant"
        return refuse(RefusalCode.DYNAMIC_WEIGHT, node, sentence)
    if tensor.dtype is not source.dtype:
        sentence = f"reads a weight of {tensor.dtype} with activations of {source.dtype}"
        return refuse(RefusalCode.UNSUPPORTED_TYPE, node, sentence)
    inside = whole_axes(tuple(tensor.shape.numpy()), place.channels.axes)
    if inside is None or inside.size != fiber.size:
        return refuse(RefusalCode.FIBER_BROKEN, node, "splits the channels of the norm")
    return place.weight, inside


def _first_layer(
    info: ModelInfo, node: ir.Node, source: ir.Value, fiber: Fiber, settings: Settings
) -> FirstLayer | Refusal:
    found = layer_weight(info, node, source, fiber)
    if isinstance(found, Refusal):
        return found
    index, inside = found
    weight = known_operand(node, index)
    tensor = known_tensor(weight)
    shared = len(weight.uses()) > 1 or weight.is_graph_output() or weight.is_graph_input()
    if shared and tensor.nbytes > settings.allow_split:
        return refuse(RefusalCode.SHARED_WEIGHT, node, "has a weight with other readers")
    reader = ReaderRef(info.node_ref(node), index)
    return FirstLayer(node, reader, tensor, inside, tensor.nbytes if shared else 0)


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
