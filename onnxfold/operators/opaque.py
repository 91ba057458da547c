"""The rows of ONNX's other operators: no fiber is followed through them."""

from dataclasses import replace

from onnxfold.operators.row import Elements, Layer, Opaque, Operator, Shapes, each
from onnxfold.refusal import RefusalCode

NOT_LINEAR = Opaque(RefusalCode.ACTIVATION, "is not linear")
QUANTISED = Opaque(RefusalCode.QUANTISED, "is quantized; fold before quantizing")
ROTATES = Opaque(
    RefusalCode.FIBER_BROKEN, "rotates pairs of elements, which does not keep their mean"
)
_RECURS = Opaque(
    RefusalCode.ACTIVATION,
    "reads its result at the next step, by an activation or by a weight that sees the mean",
)
_IN_A_BODY = Opaque(RefusalCode.BODY_BORDER, "computes it in a body")

_NONLINEAR = Operator("", opaque=NOT_LINEAR)
_HOMOGENEOUS = replace(_NONLINEAR, elements=Elements.HOMOGENEOUS)
_REDUCED = replace(_NONLINEAR, shape=Shapes.REDUCED, kernel="reduction")
_ELEMENTWISE = replace(_NONLINEAR, shape=Shapes.SAME, kernel="elementwise")
_ACTIVATION = replace(_NONLINEAR, shape=Shapes.SAME, kernel="elementwise")
_TRUE_OR_FALSE = Operator("", decides=True, shape=Shapes.BROADCAST, kernel="elementwise")

_REDUCTIONS = (
    *each("ReduceMax ReduceMin", replace(_REDUCED, elements=Elements.HOMOGENEOUS, foldable=True)),
    *each("ReduceL1 ReduceL2", replace(_REDUCED, elements=Elements.HOMOGENEOUS)),
    replace(_REDUCED, op_type="ReduceProd", foldable=True),
    *each("ReduceLogSum ReduceLogSumExp ReduceSumSquare", _REDUCED),
    *each("ArgMax ArgMin TopK", replace(_NONLINEAR, kernel="reduction")),
    *each("GlobalLpPool GlobalMaxPool LpPool MaxPool", replace(_HOMOGENEOUS, kernel="convolution")),
)

_FUNCTIONS = (
    *each(
        "Acos Acosh Asin Asinh Atan Atanh Clip Cos Cosh Erf Log Round Sign Sin Sinh Tan Tanh",
        _ELEMENTWISE,
    ),
    *each("Ceil Exp Floor Reciprocal", replace(_ELEMENTWISE, foldable=True)),
    replace(_ELEMENTWISE, op_type="Sqrt", foldable=True, rounded=True),
    replace(_ELEMENTWISE, op_type="Abs", elements=Elements.HOMOGENEOUS),
    *each(
        "Max Min",
        replace(
            _HOMOGENEOUS, data=None, shape=Shapes.BROADCAST, foldable=True, kernel="elementwise"
        ),
    ),
    *each("Mod Pow", replace(_ELEMENTWISE, shape=Shapes.BROADCAST, foldable=True)),
    *each(
        "Celu Elu Gelu HardSigmoid HardSwish Hardmax Mish Selu Shrink Sigmoid Softplus Softsign "
        "Swish ThresholdedRelu",
        _ACTIVATION,
    ),
    *each("LeakyRelu Relu", replace(_ACTIVATION, elements=Elements.HOMOGENEOUS)),
    replace(_HOMOGENEOUS, op_type="PRelu", shape=Shapes.BROADCAST, kernel="elementwise"),
    replace(_ACTIVATION, op_type="LpNormalization", kernel="normalization"),
    # Norms and the like: onnxfold/recognition/ knows their effect on a mean.
    *each(
        "GroupNormalization InstanceNormalization MeanVarianceNormalization "
        "SimplifiedLayerNormalization LRN",
        Operator("", shape=Shapes.SAME, kernel="normalization"),
    ),
    *each(
        "LayerNormalization RMSNormalization",
        Operator("", shape=Shapes.SAME, foldable=True, kernel="normalization"),
    ),
)

_LOGIC = (
    *each(
        "And Equal Greater GreaterOrEqual Less LessOrEqual Or",
        replace(_TRUE_OR_FALSE, foldable=True),
    ),
    replace(_TRUE_OR_FALSE, op_type="Not", shape=Shapes.SAME, foldable=True),
    replace(_TRUE_OR_FALSE, op_type="Xor"),
    *each("IsInf IsNaN", replace(_TRUE_OR_FALSE, shape=Shapes.SAME)),
    *each(
        "BitShift BitwiseAnd BitwiseOr BitwiseXor",
        Operator("", shape=Shapes.BROADCAST, kernel="elementwise"),
    ),
    Operator("BitwiseNot", shape=Shapes.SAME, kernel="elementwise"),
)

_OTHERS = (
    *each("ConvInteger", Operator("", opaque=QUANTISED, kernel="convolution")),
    Operator("MatMulInteger", opaque=QUANTISED, kernel="reduction"),
    *each(
        "DequantizeLinear DynamicQuantizeLinear QLinearConv QLinearMatMul QuantizeLinear",
        Operator("", opaque=QUANTISED, kernel="quantization"),
    ),
    Operator(
        "RotaryEmbedding",
        opaque=ROTATES,
        elements=Elements.LINEAR,
        rotates=(1, 2, 3),
        kernel="delegated",
    ),
    *each("If Loop Scan", Operator("", opaque=_IN_A_BODY, kernel="control")),
    Operator("SequenceMap", opaque=_IN_A_BODY),
    *each(
        "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike",
        Operator("", random=True, kernel="random"),
    ),
    Operator("Range", foldable=True, kernel="layout"),
    *each("Constant EyeLike NonZero", Operator("", kernel="layout")),
    *each("OneHot Scatter", Operator("", kernel="layout")),
    *each(
        "GRU LSTM RNN",
        Operator("", opaque=_RECURS, layer=Layer.RECURRENT, bias=3, kernel="recurrent"),
    ),
    Operator("GridSample", kernel="sampling"),
    *each(
        "BlackmanWindow CenterCropPad Col2Im CumProd Det HammingWindow HannWindow MaxUnpool "
        "NegativeLogLikelihoodLoss NonMaxSuppression RoiAlign SoftmaxCrossEntropyLoss "
        "TensorScatter Unique",
        Operator("", kernel="delegated"),
    ),
    *each(
        "ConcatFromSequence Optional OptionalGetElement OptionalHasElement SequenceAt "
        "SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength "
        "SplitToSequence",
        Operator("", kernel="sequences"),
    ),
    *each(
        "AffineGrid BitCast CausalConvWithState DFT ImageDecoder LinearAttention MaxRoiPool "
        "MelWeightMatrix RegexFullMatch STFT StringConcat StringNormalizer StringSplit "
        "SwiGLU TfIdfVectorizer",
        Operator(""),
    ),
)

OPAQUE = (*_REDUCTIONS, *_FUNCTIONS, *_LOGIC, *_OTHERS)
