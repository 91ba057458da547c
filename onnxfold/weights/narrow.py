"""Weights that a model stores in fewer bits than it computes with.

The numbers of a half float cast to float32 are exact, and so are results of the model up to float32
roundings. An edit would round them to half floats again, a thousand times the error, so such a
weight is not edited. The same applies to float32 cast to double. What a norm widens within itself
does not count if its result has the type of its input again, as if it were one operator.
"""

import numpy as np
import onnx_ir as ir

from onnxfold.graph import FLOATS, ModelInfo
from onnxfold.graph.constants import Array, digits
from onnxfold.graph.model_info import Fact
from onnxfold.graph.traversal import reached
from onnxfold.norms import NORMS
from onnxfold.operators import facets
from onnxfold.operators.table import row_of
from onnxfold.refusal import Refusal, RefusalCode

_FOUND: Fact[dict[ir.Value, Refusal | None]] = Fact("weights in fewer bits")
_INSIDE: Fact[frozenset[ir.Value]] = Fact("values that only norms read")


def refuse_narrow(view: ModelInfo, value: ir.Value) -> Refusal | None:
    """Refuse to edit a weight whose numbers are computed with in a wider type."""
    known = _FOUND.of(view)
    if value not in known:
        known[value] = _find(view, value)
    return known[value]


@_FOUND.found_by
def _none_yet(_view: ModelInfo) -> dict[ir.Value, Refusal | None]:
    return {}


def _find(view: ModelInfo, value: ir.Value) -> Refusal | None:
    tensor = view.tensor(value)
    if tensor is None or tensor.dtype not in FLOATS:
        return None
    inside = _INSIDE.of(view)

    def onward(operand: ir.Value) -> list[ir.Value]:
        nodes = [use.node for use in operand.uses() if _rounds_nothing(view, use.node, operand)]
        return [output for node in nodes for output in node.outputs if output not in inside]

    same = reached([value], onward)
    wide = next((each for each in same if digits(each.dtype) > digits(tensor.dtype)), None)
    return None if wide is None else _refusal(value, tensor, wide)


@_INSIDE.found_by
def _inside_norms(view: ModelInfo) -> frozenset[ir.Value]:
    """Return the values that only norms read whose results have the type of their inputs."""
    return frozenset(
        output
        for site in NORMS.of(view)
        if digits(site.output.dtype) == digits(site.input.dtype)
        for node in site.nodes
        for output in node.outputs
        if output is not site.output and output not in site.escaping
    )


def _rounds_nothing(view: ModelInfo, node: ir.Node, operand: ir.Value) -> bool:
    """Whether the results need no more digits than the operand has."""
    row = row_of(node)
    others = [value for value in node.inputs if value is not None and value is not operand]
    if facets.moves_numbers(row) or (facets.adds(row) and not others):
        return True
    arrays = [view.array(value) for value in others]
    if facets.adds(row):
        return all(array is not None and not array.any() for array in arrays)
    return facets.multiplies(row) and all(map(_is_power_of_two, arrays))


def _is_power_of_two(array: Array | None) -> bool:
    if array is None:
        return False
    mantissa, _ = np.frexp(np.abs(array.astype(np.float64)))
    return bool(np.all((mantissa == 0.5) | (mantissa == 0)))


def _refusal(value: ir.Value, tensor: ir.TensorProtocol, wide: ir.Value) -> Refusal:
    name = value.name or ""
    sentence = (
        f"weight '{name}' is stored as {tensor.dtype} and computed with as {wide.dtype}: changed, "
        "it would be rounded again; store it in the wider type"
    )
    return Refusal(RefusalCode.UNSUPPORTED_TYPE, sentence, (name,))
