"""Operators known to have no law: opaque and exact, each with the sentence that a refusal gives.

An operator in neither table is opaque and exact as well; a line here says why, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.operators.transfer import refuse
from onnxfold.refusal import Refusal, RefusalCode

__all__ = ["NONLINEAR", "OPAQUE", "Opaque", "opaque_line", "refuse_opaque"]

_CONTRIB = "com.microsoft"


@dataclass(frozen=True, slots=True)
class Opaque:
    """One line: an operator through which no centring and no diagonal passes, and why."""

    op_type: str
    domain: str
    code: RefusalCode
    sentence: str

    @property
    def key(self) -> tuple[str, str]:
        """The operator that the line is about."""
        return self.domain, self.op_type


def _lines(
    domain: str, code: RefusalCode, sentence: str, op_types: str
) -> Iterator[tuple[tuple[str, str], Opaque]]:
    for op_type in op_types.split():
        yield (domain, op_type), Opaque(op_type, domain, code, sentence)


# Activations and other functions that are not linear, of any domain.
NONLINEAR = frozenset(
    (
        "Abs Acos Asin Atan BiasGelu BiasSoftmax BiasSplitGelu Ceil Celu Clip Cos Elu Erf Exp "
        "FastGelu Floor Gelu GlobalMaxPool HardSigmoid HardSwish LeakyRelu Log LpNormalization Max "
        "MaxPool Min Mish Mod PRelu Pow QuickGelu Reciprocal ReduceL1 ReduceL2 ReduceMax ReduceMin "
        "ReduceProd ReduceSumSquare Relu Round Selu Sigmoid Sign Sin Softplus Softsign Sqrt Swish "
        "Tan Tanh ThresholdedRelu TopK"
    ).split()
)

OPAQUE: dict[tuple[str, str], Opaque] = {
    **dict(
        _lines(
            "",
            RefusalCode.QUANTISED,
            "is quantised; fold before quantising",
            "ConvInteger DequantizeLinear DynamicQuantizeLinear MatMulInteger QLinearConv "
            "QLinearMatMul QuantizeLinear",
        )
    ),
    **dict(
        _lines(
            _CONTRIB,
            RefusalCode.QUANTISED,
            "is quantised; fold before quantising",
            "DequantizeLinear DynamicQuantizeLSTM DynamicQuantizeMatMul GatherBlockQuantized "
            "MatMulBnb4 MatMulIntegerToFloat MatMulNBits QAttention QEmbedLayerNormalization QGemm "
            "QLinearAdd QLinearAveragePool QLinearConcat QLinearConv QLinearGlobalAveragePool "
            "QLinearLeakyRelu QLinearMul QLinearReduceMean QLinearSigmoid QLinearSoftmax "
            "QLinearWhere QuantizeLinear",
        )
    ),
    **dict(
        _lines(
            _CONTRIB,
            RefusalCode.FIBER_BROKEN,
            "keeps query, key and value in one weight, of which the values' part alone may change",
            "Attention PackedAttention",
        )
    ),
    **dict(
        _lines(
            _CONTRIB,
            RefusalCode.FIBER_BROKEN,
            "rotates pairs of elements, which does not keep their mean",
            "GemmaRotaryEmbedding RotaryEmbedding",
        )
    ),
    **dict(
        _lines(
            "",
            RefusalCode.FIBER_BROKEN,
            "rotates pairs of elements, which does not keep their mean",
            "RotaryEmbedding",
        )
    ),
    **dict(
        _lines(
            _CONTRIB,
            RefusalCode.ACTIVATION,
            "may end in an activation",
            "FusedConv FusedGemm FusedMatMulActivation GemmFastGelu",
        )
    ),
}


def opaque_line(node: ir.Node) -> Opaque | None:
    """Return the line of an operator that is known to be opaque."""
    return OPAQUE.get(("" if node.domain == "ai.onnx" else node.domain, node.op_type))


def refuse_opaque(node: ir.Node) -> Refusal | None:
    """Return the refusal of an operator that is known to be opaque, None of any other."""
    if node.op_type in NONLINEAR:
        return refuse(RefusalCode.ACTIVATION, node, "is not linear")
    line = opaque_line(node)
    return None if line is None else refuse(line.code, node, line.sentence)
