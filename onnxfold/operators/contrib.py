"""The rows of ONNX Runtime's operators, in the domain com.microsoft."""

from collections.abc import Iterator
from dataclasses import replace

from onnxfold.operators.functions import DOMAIN, SIGNATURES, Output
from onnxfold.operators.opaque import NOT_LINEAR, QUANTISED, ROTATES
from onnxfold.operators.row import Elements, Family, Layer, Opaque, Operator, Shapes, each
from onnxfold.refusal import RefusalCode

_ACTIVATES = Opaque(RefusalCode.ACTIVATION, "may end in an activation")
_PACKED = Opaque(
    RefusalCode.FIBER_BROKEN,
    "keeps query, key and value in one weight, of which the values' part alone may change",
)

_ROWS = (
    *each(
        "FusedMatMul TransposeMatMul",
        Operator(
            "",
            family=Family.MATMUL_FUSED,
            law="P(alpha A' B') = alpha A' (P B') on columns, alpha (P A') B' on rows",
            elements=Elements.LINEAR,
            data=(0, 1),
            alone=True,
            layer=Layer.MATMUL,
            kernel="normalization",
        ),
    ),
    Operator(
        "BiasAdd",
        family=Family.ADDITIVE,
        law="P(x + b + s) = P x + P b + P s",
        elements=Elements.LINEAR,
        data=None,
        no_shift="adds up several values, and with them the shift",
        shape=Shapes.SAME,
        kernel="normalization",
    ),
    # Linear in the values, but a bias or a cache is joined to them: nothing is claimed about the
    # numbers.
    Operator(
        "MultiHeadAttention",
        family=Family.MULTI_HEAD_ATTENTION,
        law="P(A V) = A (P V) within a head, without a bias; a shift of all keys is ignored",
        masks=(4,),
        kernel="attention",
    ),
    Operator(
        "GroupQueryAttention",
        family=Family.GROUP_QUERY_ATTENTION,
        law="P(A V) = A (P V) within a head, where no cache is kept",
        kernel="attention",
    ),
    Operator(
        "Attention",
        opaque=_PACKED,
        layer=Layer.PACKED_ATTENTION,
        bias=2,
        masks=(3,),
        kernel="attention",
    ),
    Operator("PackedAttention", opaque=_PACKED),
    *each(
        "BiasGelu FastGelu",
        Operator("", opaque=NOT_LINEAR, adds_first=(0,), shape=Shapes.SAME, kernel="normalization"),
    ),
    *each(
        "BiasSoftmax Gelu QuickGelu",
        Operator("", opaque=NOT_LINEAR, shape=Shapes.SAME, kernel="normalization"),
    ),
    Operator("BiasSplitGelu", opaque=NOT_LINEAR, kernel="normalization"),
    Operator(
        "FusedConv", opaque=_ACTIVATES, layer=Layer.CONVOLUTION, bias=2, kernel="normalization"
    ),
    Operator("FusedGemm", opaque=_ACTIVATES, layer=Layer.GEMM, bias=2, kernel="normalization"),
    *each("FusedMatMulActivation GemmFastGelu", Operator("", opaque=_ACTIVATES)),
    Operator(
        "RotaryEmbedding",
        opaque=ROTATES,
        elements=Elements.LINEAR,
        shape=Shapes.SAME,
        rotates=(2, 3, 1),
        kernel="attention",
    ),
    Operator("GemmaRotaryEmbedding", opaque=ROTATES),
    # Norms: onnxfold/recognition/ knows their effect on a mean.
    *each(
        "GroupNorm SimplifiedLayerNormalization",
        Operator("", shape=Shapes.SAME, kernel="normalization"),
    ),
    Operator("LayerNormalization", shape=Shapes.SAME),
    *each(
        "SkipGroupNorm SkipLayerNormalization SkipSimplifiedLayerNormalization",
        Operator("", kernel="normalization"),
    ),
    Operator(
        "EmbedLayerNormalization",
        tables=((0, 2), (1, 4), (8, 3)),
        masks=(7,),
        kernel="normalization",
    ),
    Operator("BiasDropout", shape=Shapes.SAME),
    *each(
        "DynamicQuantizeMatMul GatherBlockQuantized MatMulIntegerToFloat",
        Operator("", opaque=QUANTISED, kernel="quantization"),
    ),
    Operator(
        "MatMulNBits",
        family=Family.MATMUL_BLOCKS,
        law="P(A B' + c) = (P A) B' + P' c on rows; B is quantized and stays",
        elements=Elements.LINEAR,
        data=(0,),
        alone=True,
        layer=Layer.MATMUL_BLOCKS,
        bias=5,
        kernel="quantization",
    ),
    Operator(
        "MoE",
        family=Family.EXPERTS,
        law="P sum_e p_e (W_e h_e + b_e) = sum_e p_e ((P W_e) h_e + P b_e)",
        elements=Elements.LINEAR,
        data=(4,),
        alone=True,
        layer=Layer.EXPERTS,
        weight=4,
        bias=5,
        enters=((2, 3), (6, 7)),
        shape=Shapes.SAME,
        kernel="experts",
    ),
    Operator(
        "QMoE",
        opaque=QUANTISED,
        layer=Layer.EXPERT_BLOCKS,
        enters=((2, 4), (8, 10)),
        shape=Shapes.SAME,
        kernel="experts",
    ),
    *each(
        "QLinearLeakyRelu QLinearSigmoid QLinearSoftmax",
        Operator("", opaque=QUANTISED, shape=Shapes.SAME),
    ),
    *each(
        "DequantizeLinear DynamicQuantizeLSTM MatMulBnb4 QAttention "
        "QEmbedLayerNormalization QGemm QLinearAdd QLinearAveragePool QLinearConcat QLinearConv "
        "QLinearGlobalAveragePool QLinearMul QLinearReduceMean QLinearWhere QuantizeLinear",
        Operator("", opaque=QUANTISED),
    ),
)
CONTRIB = tuple(replace(row, domain="com.microsoft") for row in _ROWS)


def _own() -> Iterator[Operator]:
    for name, signature in SIGNATURES.items():
        if name == "Center":
            law = (
                "mean(x - mean x) = 0; (x + s) - mean(x + s) = x - mean x; P of fewer axes commutes"
            )
            yield Operator(name, DOMAIN, Family.CENTRING, law, shape=Shapes.SAME)
        elif signature.residual and signature.output is Output.NORM:
            yield Operator(name, DOMAIN, shape=Shapes.BROADCAST_TWO)
        else:
            full = name.startswith("CRMSNormFull")  # it adds an element
            same = not full and signature.output is Output.NORM
            own = Shapes.SAME if same else None
            yield Operator(name, DOMAIN, shape=own)


OWN = tuple(_own())
