"""The rows of ONNX's own operators that have a law: a fiber is followed through them."""

from dataclasses import replace

from onnxfold.operators.row import (
    Condition,
    Elements,
    Family,
    Layer,
    Operator,
    Shapes,
    Unless,
    each,
)

_RESHAPE = "P reshape(x) = reshape(P x), row-major digits found again"
_OF_NUMBERS = Unless(
    Condition.NOT_OF_FLOATS, Elements.OPAQUE, "converts from or to a type that is not floating"
)
_ADDS_UP = "adds up several positions, and with them the shift"


_SUM = Operator(
    "",
    family=Family.ADDITIVE,
    law="P(a + b) = P a + P b",
    elements=Elements.LINEAR,
    data=None,
    no_shift="adds up several values, and with them the shift",
    shape=Shapes.BROADCAST,
    foldable=True,
    kernel="elementwise",
)

_ELEMENTWISE = (
    replace(_SUM, op_type="Add", adds_first=(0, 1), rounded=True),
    replace(_SUM, op_type="Sub", rounded=True),
    replace(_SUM, op_type="Sum"),
    Operator(
        "Mean",
        family=Family.ADDITIVE,
        law="P mean(a, b) = mean(P a, P b)",
        elements=Elements.AVERAGES,
        data=None,
        shape=Shapes.BROADCAST,
        kernel="elementwise",
    ),
    Operator(
        "Neg",
        family=Family.ADDITIVE,
        law="P(-x) = -P x",
        elements=Elements.LINEAR,
        no_shift="changes the sign, which the shift would have to follow",
        shape=Shapes.SAME,
        foldable=True,
        rounded=True,
        kernel="elementwise",
    ),
    Operator(
        "Identity",
        family=Family.ADDITIVE,
        law="P x = P x",
        elements=Elements.PERMUTES,
        shape=Shapes.SAME,
        foldable=True,
        kernel="layout",
    ),
    *each(
        "Cast CastLike",
        Operator(
            "",
            family=Family.CAST,
            law="P cast(x) = cast(P x), up to the model's own rounding",
            elements=Elements.PERMUTES,
            unless=(_OF_NUMBERS,),
            shape=Shapes.SAME,
            foldable=True,
            rounded=True,
            kernel="layout",
        ),
    ),
    Operator(
        "Dropout",
        family=Family.DROPOUT,
        law="the identity at inference",
        elements=Elements.PERMUTES,
        unless=(Unless(Condition.TRAINS, Elements.OPAQUE, "may run in training mode"),),
        shape=Shapes.SAME,
        kernel="random",
    ),
    Operator(
        "Mul",
        family=Family.PRODUCT,
        law="P(s x) = s P x for s constant along the fiber",
        elements=Elements.LINEAR,
        data=(0, 1),
        alone=True,
        no_shift="multiplies by a factor, which the shift would have to know",
        shape=Shapes.BROADCAST,
        foldable=True,
        rounded=True,
        kernel="elementwise",
    ),
    Operator(
        "Div",
        family=Family.QUOTIENT,
        law="P(x / s) = P x / s for s constant along the fiber",
        elements=Elements.LINEAR,
        no_shift="divides by a factor, which the shift would have to know",
        shape=Shapes.BROADCAST,
        foldable=True,
        rounded=True,
        kernel="elementwise",
    ),
    Operator(
        "BatchNormalization",
        family=Family.BATCH_NORM,
        law="P(s x + t) = s P x off the channels, at inference",
        shape=Shapes.SAME,
        kernel="normalization",
    ),
    Operator(
        "Where",
        family=Family.MASKED,
        law="P where(m, a, b) = where(m, P a, P b), m constant along it",
        elements=Elements.COPIES,
        data=(1, 2),
        masks=(0,),
        shape=Shapes.BROADCAST,
        foldable=True,
        kernel="elementwise",
    ),
)

_LAYOUT = (
    Operator(
        "Transpose",
        family=Family.TRANSPOSE,
        law="P transpose(x) = transpose(P x), axes renamed",
        elements=Elements.PERMUTES,
        foldable=True,
        kernel="layout",
    ),
    *each(
        "Reshape Flatten Squeeze Unsqueeze",
        Operator(
            "",
            family=Family.RESHAPE,
            law=_RESHAPE,
            elements=Elements.PERMUTES,
            foldable=True,
            kernel="layout",
        ),
    ),
    Operator(
        "Expand",
        family=Family.EXPAND,
        law="P expand(x) = expand(P x) on the axes x has itself",
        elements=Elements.COPIES,
        foldable=True,
        kernel="layout",
    ),
    Operator(
        "Split",
        family=Family.SPLIT,
        law="P split(x)_i = split(P' x)_i off the fiber, and for equal parts along it",
        elements=Elements.COPIES,
        foldable=True,
        kernel="layout",
    ),
    Operator(
        "CumSum",
        family=Family.CUMULATIVE,
        law="P cumsum(x) = cumsum(P x) off the fiber",
        elements=Elements.LINEAR,
        no_shift=_ADDS_UP,
        shape=Shapes.SAME,
        kernel="reduction",
    ),
    Operator(
        "Slice",
        family=Family.SLICE,
        law="P slice(x) = slice(P' x) off the fiber, and along it where whole sets are taken",
        elements=Elements.COPIES,
        foldable=True,
        kernel="layout",
    ),
    Operator(
        "Gather",
        family=Family.GATHER,
        law="P gather(x, i) = gather(P x, i) off the fiber",
        elements=Elements.COPIES,
        foldable=True,
        tables=((1, 0),),
        kernel="layout",
    ),
    Operator(
        "GatherND",
        family=Family.GATHER_ND,
        law="P gather(x, i) = gather(P x, i) behind the indexed axes",
        elements=Elements.COPIES,
        kernel="layout",
    ),
    *each(
        "ScatterElements ScatterND",
        Operator(
            "",
            family=Family.SCATTER,
            law="P scatter(x, i, u) = scatter(P x, i, P u) where whole sets are written",
            elements=Elements.LINEAR,
            no_shift=_ADDS_UP,
            unless=(
                Unless(Condition.REDUCES_OTHERWISE, Elements.OPAQUE, "does not replace or add"),
            ),
            data=(0, 2),
            kernel="layout",
        ),
    ),
    Operator("GatherElements", elements=Elements.COPIES, tables=((1, 0),), kernel="layout"),
    Operator(
        "Concat",
        family=Family.CONCAT,
        law="P concat(a, b) = concat(P a, P b) off the fiber",
        elements=Elements.PERMUTES,
        data=None,
        foldable=True,
        kernel="layout",
    ),
    Operator(
        "Tile",
        family=Family.TILE,
        law="P tile(x) = tile(P x) off the fiber",
        elements=Elements.COPIES,
        foldable=True,
        kernel="layout",
    ),
    Operator(
        "ConstantOfShape",
        family=Family.FILLED,
        law="P 0 = 0",
        foldable=True,
        kernel="layout",
    ),
    Operator(
        "Pad",
        family=Family.PAD,
        law="P pad(x) = pad(P x) off the fiber, filled with 0 or with x",
        elements=Elements.COPIES,
        unless=(
            Unless(
                Condition.PADS_NUMBERS,
                Elements.OPAQUE,
                "pads with a value that is not a constant 0",
            ),
            Unless(Condition.PADS_ZEROS, Elements.LINEAR, "pads with zeros, which have no shift"),
        ),
        kernel="layout",
    ),
    *each(
        "DepthToSpace SpaceToDepth", Operator("", elements=Elements.PERMUTES, kernel="delegated")
    ),
    Operator("ReverseSequence", elements=Elements.PERMUTES, shape=Shapes.SAME, kernel="delegated"),
    Operator("Trilu", elements=Elements.LINEAR, shape=Shapes.SAME, kernel="layout"),
    Operator("Compress", elements=Elements.COPIES, kernel="delegated"),
    Operator("Upsample", elements=Elements.AVERAGES, kernel="sampling"),
)

_PRODUCT = Operator("", elements=Elements.LINEAR, data=(0, 1), alone=True)

_LINEAR = (
    replace(
        _PRODUCT,
        op_type="MatMul",
        family=Family.MATMUL,
        law="P(A B) = A (P B) on columns, (P A) B on rows",
        layer=Layer.MATMUL,
        kernel="reduction",
    ),
    replace(
        _PRODUCT,
        op_type="Gemm",
        family=Family.GEMM,
        law="P(alpha A' B' + beta C) = alpha A' (P B') + beta P C on columns",
        layer=Layer.GEMM,
        bias=2,
        kernel="reduction",
    ),
    replace(
        _PRODUCT,
        op_type="Conv",
        family=Family.CONVOLUTION,
        law="P(W * x + b) = (P W) * x + P b on channels, one group",
        layer=Layer.CONVOLUTION,
        bias=2,
        kernel="convolution",
    ),
    replace(
        _PRODUCT,
        op_type="ConvTranspose",
        family=Family.TRANSPOSED_CONVOLUTION,
        law="as Conv, channels on axis 1 of W",
        layer=Layer.TRANSPOSED_CONVOLUTION,
        bias=2,
        kernel="convolution",
    ),
    replace(
        _PRODUCT,
        op_type="DeformConv",
        family=Family.DEFORMABLE_CONVOLUTION,
        law="as Conv on channels; offsets and masks, which differ by position, are read exactly",
        layer=Layer.DEFORMABLE_CONVOLUTION,
        bias=3,
        kernel="sampling",
    ),
    Operator(
        "Einsum",
        family=Family.EINSUM,
        law="P is carried into the one factor that has the label",
        elements=Elements.LINEAR,
        data=None,
        alone=True,
        layer=Layer.EINSUM,
        kernel="reduction",
    ),
    # Linear in the values, but a cache is joined to them: nothing is claimed about the numbers.
    Operator(
        "Attention",
        family=Family.ATTENTION,
        law="P(A V) = A (P V) within a head; a shift of all keys is ignored",
        kernel="delegated",
    ),
)

_REDUCTIONS = (
    Operator(
        "ReduceMean",
        family=Family.REDUCTION,
        law="P mean_j(x) = mean_j(P x) off the fiber",
        elements=Elements.AVERAGES,
        shape=Shapes.REDUCED,
        foldable=True,
        kernel="reduction",
    ),
    Operator(
        "ReduceSum",
        family=Family.REDUCTION,
        law="P sum_j(x) = sum_j(P x) off the fiber",
        elements=Elements.LINEAR,
        no_shift=_ADDS_UP,
        shape=Shapes.REDUCED,
        foldable=True,
        kernel="reduction",
    ),
    Operator(
        "AveragePool",
        family=Family.SPATIAL_AVERAGE,
        law="P avg(x) = avg(P x) on samples and channels",
        elements=Elements.AVERAGES,
        unless=(
            Unless(
                Condition.AVERAGES_PADDING,
                Elements.LINEAR,
                "may average over zeros at its borders",
            ),
        ),
        kernel="convolution",
    ),
    Operator(
        "GlobalAveragePool",
        family=Family.SPATIAL_AVERAGE,
        law="P avg(x) = avg(P x) on samples and channels",
        elements=Elements.AVERAGES,
        kernel="convolution",
    ),
    Operator(
        "Resize",
        family=Family.RESIZE,
        law="P resize(x) = resize(P x) off the fiber",
        elements=Elements.AVERAGES,
        unless=(Unless(Condition.EXTRAPOLATES, Elements.OPAQUE, "extrapolates"),),
        kernel="sampling",
    ),
    *each(
        "Shape Size",
        Operator("", family=Family.SHAPE, law="reads no element", foldable=True, kernel="layout"),
    ),
    *each(
        "Softmax LogSoftmax",
        Operator(
            "",
            family=Family.SHIFT_INVARIANT,
            law="f(x + s) = f(x), s constant along it",
            shape=Shapes.SAME,
            kernel="elementwise",
        ),
    ),
)

STANDARD = (*_ELEMENTWISE, *_LAYOUT, *_LINEAR, *_REDUCTIONS)
