"""The rows of ONNX's other operators: no fiber is followed through them."""

from __future__ import annotations

from onnxfold.operators.row import Elements, Opaque, Operator, Shapes, each
from onnxfold.refusal import RefusalCode

NOT_LINEAR = Opaque(RefusalCode.ACTIVATION, "is not linear")
QUANTISED = Opaque(RefusalCode.QUANTISED, "is quantised; fold before quantising")
ROTATES = Opaque(
    RefusalCode.FIBER_BROKEN, "rotates pairs of elements, which does not keep their mean"
)
_RECURS = Opaque(
    RefusalCode.ACTIVATION,
    "reads its result at the next step, by an activation or by a weight that sees the mean",
)
_IN_A_BODY = Opaque(RefusalCode.BODY_BORDER, "computes it in a body")

_REDUCTIONS = (
    *each(
        "ReduceMax ReduceMin",
        Operator(
            "",
            opaque=NOT_LINEAR,
            elements=Elements.HOMOGENEOUS,
            shape=Shapes.REDUCED,
            foldable=True,
            kernel="reduction",
        ),
    ),
    *each(
        "ReduceL1 ReduceL2",
        Operator(
            "",
            opaque=NOT_LINEAR,
            elements=Elements.HOMOGENEOUS,
            shape=Shapes.REDUCED,
            kernel="reduction",
        ),
    ),
    Operator(
        "ReduceProd", opaque=NOT_LINEAR, shape=Shapes.REDUCED, foldable=True, kernel="reduction"
    ),
    *each(
        "ReduceLogSum ReduceLogSumExp ReduceSumSquare",
        Operator("", opaque=NOT_LINEAR, shape=Shapes.REDUCED, kernel="reduction"),
    ),
    *each("ArgMax ArgMin TopK", Operator("", opaque=NOT_LINEAR, kernel="reduction")),
    *each(
        "GlobalLpPool GlobalMaxPool LpPool MaxPool",
        Operator("", opaque=NOT_LINEAR, elements=Elements.HOMOGENEOUS, kernel="pooling"),
    ),
)

_NONLINEAR = (
    *each(
        "Acos Acosh Asin Asinh Atan Atanh Clip Cos Cosh Erf Log Round Sign Sin Sinh Tan Tanh",
        Operator("", opaque=NOT_LINEAR, shape=Shapes.SAME, kernel="elementwise"),
    ),
    *each(
        "Ceil Exp Floor Reciprocal Sqrt",
        Operator("", opaque=NOT_LINEAR, shape=Shapes.SAME, foldable=True, kernel="elementwise"),
    ),
    Operator(
        "Abs",
        opaque=NOT_LINEAR,
        elements=Elements.HOMOGENEOUS,
        shape=Shapes.SAME,
        kernel="elementwise",
    ),
    *each(
        "Max Min",
        Operator(
            "",
            opaque=NOT_LINEAR,
            elements=Elements.HOMOGENEOUS,
            data=None,
            shape=Shapes.BROADCAST,
            foldable=True,
            kernel="elementwise",
        ),
    ),
    *each(
        "Mod Pow",
        Operator(
            "", opaque=NOT_LINEAR, shape=Shapes.BROADCAST, foldable=True, kernel="elementwise"
        ),
    ),
    *each(
        "Celu Elu Gelu HardSigmoid HardSwish Hardmax Mish Selu Shrink Sigmoid Softplus Softsign "
        "Swish ThresholdedRelu",
        Operator("", opaque=NOT_LINEAR, shape=Shapes.SAME, kernel="activation"),
    ),
    *each(
        "LeakyRelu Relu",
        Operator(
            "",
            opaque=NOT_LINEAR,
            elements=Elements.HOMOGENEOUS,
            shape=Shapes.SAME,
            kernel="activation",
        ),
    ),
    Operator(
        "PRelu",
        opaque=NOT_LINEAR,
        elements=Elements.HOMOGENEOUS,
        shape=Shapes.BROADCAST,
        kernel="activation",
    ),
    Operator("LpNormalization", opaque=NOT_LINEAR, shape=Shapes.SAME, kernel="normalization"),
    # Norms and their like: the recogniser (norms/) knows what they do to a mean.
    *each(
        "GroupNormalization InstanceNormalization LayerNormalization MeanVarianceNormalization "
        "RMSNormalization SimplifiedLayerNormalization BatchNormalization LRN",
        Operator("", shape=Shapes.SAME, kernel="normalization"),
    ),
)

_LOGIC = (
    *each(
        "And Equal Greater GreaterOrEqual Less LessOrEqual Or",
        Operator("", decides=True, shape=Shapes.BROADCAST, foldable=True, kernel="elementwise"),
    ),
    Operator("Not", decides=True, shape=Shapes.SAME, foldable=True, kernel="elementwise"),
    Operator("Xor", decides=True, shape=Shapes.BROADCAST, kernel="elementwise"),
    *each("IsInf IsNaN", Operator("", decides=True, shape=Shapes.SAME, kernel="elementwise")),
    *each(
        "BitShift BitwiseAnd BitwiseOr BitwiseXor",
        Operator("", shape=Shapes.BROADCAST, kernel="elementwise"),
    ),
    Operator("BitwiseNot", shape=Shapes.SAME, kernel="elementwise"),
)

_OTHERS = (
    *each("ConvInteger", Operator("", opaque=QUANTISED, kernel="convolution")),
    Operator("MatMulInteger", opaque=QUANTISED, kernel="linear"),
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
    *each("ConstantOfShape Range", Operator("", foldable=True, kernel="tensors")),
    *each("Constant EyeLike NonZero", Operator("", kernel="tensors")),
    *each("OneHot Scatter ScatterElements ScatterND", Operator("", kernel="indexing")),
    *each("GRU LSTM RNN", Operator("", opaque=_RECURS, kernel="recurrent")),
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
        "AffineGrid BitCast CausalConvWithState DFT DeformConv ImageDecoder LinearAttention "
        "MaxRoiPool MelWeightMatrix RegexFullMatch STFT StringConcat StringNormalizer StringSplit "
        "SwiGLU TfIdfVectorizer",
        Operator(""),
    ),
)

OPAQUE = (*_REDUCTIONS, *_NONLINEAR, *_LOGIC, *_OTHERS)
