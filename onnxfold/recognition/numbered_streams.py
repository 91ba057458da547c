"""The stream that each norm reads: values that differ only by residual additions and layout."""

from collections.abc import Iterable

import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.norms.site import NormSite
from onnxfold.operators import facets
from onnxfold.operators.table import row_of

_SUMS = frozenset({"Add", "Sum"})


def streams(info: ModelInfo, sites: Iterable[NormSite]) -> list[int]:
    """Number the stream that each norm reads, from 0 in the order of their first norms.

    A sum continues the streams of its operands of the same shape; so does an operator that keeps
    all elements. A norm, a linear layer and every other operator start a new one. The numbers are
    only for display: no decision depends on them.
    """
    parents: dict[ir.Value, ir.Value] = {}

    def find(value: ir.Value) -> ir.Value:
        passed = []
        while (parent := parents.get(value)) is not None:
            passed.append(value)
            value = parent
        parents.update(dict.fromkeys(passed, value))  # a stream may be as long as the model
        return value

    for node in info.nodes():
        for operand in _continued(info, node):
            old, new = find(operand), find(node.outputs[0])
            if old is not new:
                parents[old] = new
    numbers: dict[ir.Value, int] = {}
    return [numbers.setdefault(find(site.input), len(numbers)) for site in sites]


def _continued(info: ModelInfo, node: ir.Node) -> list[ir.Value]:
    """Return the operands whose stream continues in the first output."""
    if node.domain:
        return []
    operands = [value for value in node.inputs if value is not None]
    if facets.stands_before_a_weight(row_of(node)):
        return operands[:1]
    if node.op_type not in _SUMS:
        return []
    shape = info.shape(node.outputs[0])
    return [
        value
        for value in operands
        if info.tensor(value) is None and shape is not None and info.shape(value) == shape
    ]
