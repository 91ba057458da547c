"""Norms that other tools break if they are spelled out, and leave alone as one operator.

Measured (tests/compatibility/test_tools_behind.py), each tool alone on a file of operators:

* onnxscript's optimizer and rewriter treat an addition of 1e-8 or less as an addition of 0: epsilon
  disappears, a row of zeros gives NaN, and no session recognizes the norm;
* onnxslim and onnxsim remove products by ones, without which no session fuses the norm;
* after a table that quantize_dynamic quantizes, sessions give Pow and Div a DequantizeLinear each.
"""

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from onnxfold.graph import ModelInfo, node_label
from onnxfold.graph.operands import producer_of
from onnxfold.norms import NormSite
from onnxfold.norms.site import AffinePart
from onnxfold.operators import facets
from onnxfold.operators.families.uniform import uniform
from onnxfold.operators.table import row_of
from onnxfold.refusal import Refusal, RefusalCode

_TAKEN_FOR_ZERO = 1e-8
_QUANTISED = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


def is_taken_for_zero(epsilon: float) -> bool:
    """Whether onnxscript's optimizer drops the addition of an epsilon."""
    return float(np.float32(epsilon)) <= _TAKEN_FOR_ZERO


def refuse_stripped(
    info: ModelInfo, sites: Iterable[NormSite], *, scaled: bool
) -> dict[ir.Value, Refusal]:
    """Name, by output, the tool that would break norms once they are spelled out.

    ``scaled``: a norm without gamma gets a scale that stays.
    """
    found = ((site.output, _refusal(info, site, scaled=scaled)) for site in sites)
    return {output: refusal for output, refusal in found if refusal is not None}


def _refusal(info: ModelInfo, site: NormSite, *, scaled: bool) -> Refusal | None:
    table = _table(info, site.input)
    if is_taken_for_zero(site.epsilon):
        why = f"onnxscript's optimizer treats an epsilon of {site.epsilon:.3g} as 0"
    elif table is not None:
        why = f"its input is read from table '{table.name}', which quantize_dynamic quantizes"
    elif not scaled and _is_one(info, site.gamma):
        why = "onnxslim and onnxsim remove its product by ones, and no weight can absorb a scale"
    else:
        return None
    sentence = f"norm '{site.name}' stays one operator for other tools: {why}"
    return Refusal(RefusalCode.COMES_APART, sentence, (node_label(site.nodes[-1]),))


def _is_one(info: ModelInfo, gamma: AffinePart) -> bool:
    if isinstance(gamma, np.ndarray):
        return bool(np.all(gamma == 1))
    return gamma is None or uniform(info, gamma) == 1.0


def _table(info: ModelInfo, value: ir.Value) -> ir.Value | None:
    """Return the constant whose row a value is, moved but not computed with, or None."""
    node = producer_of(value)
    while node is not None and node.inputs and facets.moves_numbers(row_of(node)):
        source = node.inputs[0]
        tensor = info.tensor(source) if node.op_type == "Gather" else None
        if tensor is not None and tensor.dtype in _QUANTISED:
            return source
        node = producer_of(source)
    return None
