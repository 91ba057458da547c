"""Reasons why a value cannot be centered, and why a reader needs the original value."""

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxfold.graph import ModelInfo, node_label, operator
from onnxfold.graph.model_info import Fact
from onnxfold.operators import facets
from onnxfold.operators.families.rules import refuse_opaque
from onnxfold.operators.families.transfer import refuse
from onnxfold.operators.row import Family
from onnxfold.operators.table import row_of
from onnxfold.refusal import Refusal, RefusalCode

_SCALES_BACK = (Family.CAST, Family.QUOTIENT, Family.PRODUCT)
_OF_INTEGERS = (Family.ADDITIVE, Family.CAST)  # operators allowed between a product and its scale
ENDS: Fact[Mapping[ir.Value, Sequence[Refusal]]] = Fact("ends of streams")
"""Of all norms that subtract a mean, and of bare centerings."""


def refuse_dequantised(node: ir.Node) -> Refusal | None:
    """Refuse the conversion of an integer product to floats, spelled as [Add,] Cast and Mul."""
    waiting, seen = [node], {node}
    while waiting:
        node = waiting.pop()
        dtype = node.outputs[0].dtype
        of_integers = dtype is not None and dtype.is_integer()
        added = of_integers and row_of(node).family is Family.ADDITIVE
        if not (row_of(node).family in _SCALES_BACK or added):
            continue
        makers = (operand.producer() for operand in node.inputs if operand is not None)
        for maker in makers:
            if maker is None or maker in seen:
                continue
            why = refuse_opaque(maker)
            if why is not None and why.code is RefusalCode.QUANTISED:
                return why
            if row_of(maker).family in _OF_INTEGERS:
                seen.add(maker)
                waiting.append(maker)
    return None


def refuse_foreign(view: ModelInfo, node: ir.Node, value: ir.Value | None) -> Refusal | None:
    """Refuse an activation of an outer graph that a body reads."""
    if value is None or view.tensor(value) is not None:
        return None
    producer = value.producer()
    home = producer.graph if producer is not None else value.graph
    if home is node.graph:
        return None
    return refuse(RefusalCode.BODY_BORDER, node, f"reads '{value.name}' of an outer graph")


def refuse_affine_output(node: ir.Node) -> Refusal:
    """Refuse to center the output of a norm with gamma and beta."""
    sentence = "returns a norm's output with gamma and beta, which has a mean"
    return refuse(RefusalCode.AFFINE_NORM_OUTPUT, node, sentence)


def refuse_unknown(node: ir.Node) -> Refusal:
    """Refuse the result of an unknown operator."""
    return refuse_opaque(node) or refuse(RefusalCode.UNKNOWN_OP, node, "has no law")


def refuse_exact(node: ir.Node) -> Refusal:
    """Refuse to shift the input of a node."""
    why = refuse_opaque(node)
    row = row_of(node)
    if why is not None and (facets.quantised(row) or not row.known):
        return why
    label = node_label(node)
    return Refusal(
        RefusalCode.EXACT_READER,
        f"{operator(node)} '{label}' needs the original value",
        (label,),
    )
