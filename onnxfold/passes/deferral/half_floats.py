"""float16: a power of two in the weights behind a norm keeps what is not normalised in range.

A layer that reads x instead of y = s x gives x W.  With finite x, |x| <= M = 65504, every partial
sum of the product, rounded after each of d additions at most, stays within

    |x 2^-k W|  <=  M 2^-k (1 + 2^-11)^d max_j sum_i |W_ij|  <=  M,    2^k >= (1 + 2^-11)^d |W|_1.

2^-k W is exact where it is not subnormal, and else rounded by 2^-25 at most, as x 2^-k W is.
1 / s^2 takes 4^-k, exactly, so that 2^k s is multiplied in place of s, and e / s^2 of a norm behind
takes 4^-k with it: nothing else changes.  Layers behind the first and tables keep their s apart.

Source of the bound: N. Higham, Accuracy and Stability of Numerical Algorithms, section 3.1.
"""

from __future__ import annotations

from math import ceil, log2

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo, node_label
from onnxfold.graph.channels import Channels
from onnxfold.norms import NormSite
from onnxfold.operators.table import row_of
from onnxfold.passes.base import Settings
from onnxfold.passes.deferral.flow import Flow
from onnxfold.passes.deferral.plan import HalvedReader
from onnxfold.passes.deferral.readers import image, layer_weight
from onnxfold.passes.places import ReaderRef
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.weights.edits import Scale

_ROUNDING = 2.0**-11
_MOST = 15  # 2^-25 times 2^15 is a thousandth already


def exponent_of(weight: npt.NDArray[np.generic], axis: int) -> int | None:
    """Return the least k >= 0 with 2^k >= (1 + 2^-11)^d |W|_1, W summed along an axis of size d.

    None where a number of it is not finite.
    """
    sums = np.abs(weight.astype(np.float64)).sum(axis=axis)
    largest = float(sums.max(initial=0.0)) * (1 + _ROUNDING) ** weight.shape[axis]
    return ceil(log2(max(1.0, largest))) if np.isfinite(largest) else None


def halved_readers(
    info: ModelInfo, site: NormSite, flow: Flow, settings: Settings
) -> tuple[HalvedReader, ...] | Refusal:
    """Return the weights of all first layers behind a norm with one power of two, or why not."""
    fibers = {site.output: site.fiber}
    found: list[HalvedReader] = []
    for node, outputs in flow.handed.items():
        source = next((value for value in node.inputs if value in fibers), None)
        if source is None:
            continue
        if row_of(node).layer is not None:
            reader = _reader(info, node, source, fibers[source], settings)
            if isinstance(reader, Refusal):
                return reader
            found.append(reader)
            continue
        behind = image(info, node, source, fibers[source])
        if behind is None:
            return _refusal(site, "what moves its channels is not followed in float16")
        fibers.update(dict.fromkeys(outputs, behind))
    exponent = max((reader.exponent for reader in found), default=0)
    if exponent > _MOST:
        return _refusal(site, f"it would take 2^-{exponent} to keep it in the range of float16")
    readers = (HalvedReader(each.reader, each.fiber, exponent, each.nbytes) for each in found)
    return tuple(readers) if exponent else ()


def halving(halved: HalvedReader) -> Scale:
    """Return the edit of a weight."""
    vector = np.full(halved.fiber.size, 2.0**-halved.exponent)
    return Scale(Channels(halved.fiber.blocks), vector)


def _reader(
    info: ModelInfo, node: ir.Node, source: ir.Value, fiber: Fiber, settings: Settings
) -> HalvedReader | Refusal:
    found = layer_weight(info, node, source, fiber)
    if isinstance(found, Refusal):
        return found
    index, inside = found
    weight = node.inputs[index]
    tensor = info.tensor(weight)
    if weight is None or tensor is None or len(inside.axes) != 1 or len(tensor.shape) != 2:
        label = node_label(node)
        sentence = f"'{label}' is followed in float16 only with a matrix"
        return Refusal(RefusalCode.UNSUPPORTED_TYPE, sentence, (label,))
    shared = len(weight.uses()) > 1 or weight.is_graph_output() or weight.is_graph_input()
    if shared and tensor.nbytes > settings.allow_split_bytes:
        label = node_label(node)
        sentence = f"the weight of '{label}' is read by others as well"
        return Refusal(RefusalCode.SHARED_WEIGHT, sentence, (label,))
    exponent = exponent_of(tensor.numpy(), inside.axes[0])
    alpha = abs(node.attributes.get_float("alpha", 1.0))
    if exponent is None or alpha > 1:
        label = node_label(node)
        sentence = f"no bound holds for '{label}': its weight is not finite, or its alpha above 1"
        return Refusal(RefusalCode.UNSUPPORTED_TYPE, sentence, (label,))
    reader = ReaderRef(info.ref(node.outputs[0]), index)
    return HalvedReader(reader, inside, exponent, tensor.nbytes if shared else 0)


def _refusal(site: NormSite, sentence: str) -> Refusal:
    return Refusal(RefusalCode.UNSUPPORTED_TYPE, sentence, (site.name,))
