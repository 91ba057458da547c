"""The law table: one line per operator, by algebraic family.

An operator that is not listed is opaque (its output may have any mean) and exact (it must see
the original value); opaque.py lists those of which it is known why.  ``docs/laws.md`` is generated
from this table, and every line has a property test against an independent oracle.
"""

from __future__ import annotations

from onnxfold.operators.families.attention import Attention
from onnxfold.operators.families.elementwise import Additive, Cast, Dropout, Masked, Scaled
from onnxfold.operators.families.layout import (
    Concat,
    Expand,
    Gather,
    GatherND,
    OnOtherAxes,
    Pad,
    Reshape,
    Slice,
    Tile,
    Transpose,
)
from onnxfold.operators.families.linear import Convolution, Einsum, Gemm, MatMul
from onnxfold.operators.families.reduce import (
    Blind,
    Centring,
    Reduce,
    Resize,
    ShiftInvariant,
    SpatialAverage,
)
from onnxfold.operators.opaque import NONLINEAR, OPAQUE, refuse_opaque
from onnxfold.operators.transfer import Family, Law

__all__ = ["LAWS", "NONLINEAR", "OPAQUE", "law_of", "refuse_opaque"]


def _family(family: Family, law: str, *op_types: str, domain: str = "") -> tuple[Law, ...]:
    return tuple(Law(op_type, family, law, domain) for op_type in op_types)


LAWS: tuple[Law, ...] = (
    *_family(Additive(), "P(a + b) = P a + P b", "Add", "Sub", "Sum", "Neg", "Identity", "Mean"),
    *_family(Cast(), "P cast(x) = cast(P x), up to the model's own rounding", "Cast", "CastLike"),
    *_family(Dropout(), "the identity at inference", "Dropout"),
    *_family(Scaled(), "P(s x) = s P x for s constant along the fiber", "Mul"),
    *_family(Scaled(division=True), "P(x / s) = P x / s for s constant along the fiber", "Div"),
    *_family(Masked(), "P where(m, a, b) = where(m, P a, P b), m constant along it", "Where"),
    *_family(Transpose(), "P transpose(x) = transpose(P x), axes renamed", "Transpose"),
    *_family(
        Reshape(),
        "P reshape(x) = reshape(P x), row-major digits found again",
        "Reshape",
        "Flatten",
        "Squeeze",
        "Unsqueeze",
    ),
    *_family(Expand(), "P expand(x) = expand(P x) on the axes x has itself", "Expand"),
    *_family(OnOtherAxes(), "P split(x)_i = split(P x)_i off the fiber", "Split"),
    *_family(OnOtherAxes(axis_input=1), "P cumsum(x) = cumsum(P x) off the fiber", "CumSum"),
    *_family(Slice(), "P slice(x) = slice(P x) off the fiber", "Slice"),
    *_family(Gather(), "P gather(x, i) = gather(P x, i) off the fiber", "Gather"),
    *_family(GatherND(), "P gather(x, i) = gather(P x, i) behind the indexed axes", "GatherND"),
    *_family(Concat(), "P concat(a, b) = concat(P a, P b) off the fiber", "Concat"),
    *_family(Tile(), "P tile(x) = tile(P x) off the fiber", "Tile"),
    *_family(Pad(), "P pad(x) = pad(P x) off the fiber, filled with 0 or with x", "Pad"),
    *_family(MatMul(), "P(A B) = A (P B) on columns, (P A) B on rows", "MatMul"),
    *_family(
        MatMul(fused=True),
        "P(alpha A' B') = alpha A' (P B') on columns, alpha (P A') B' on rows",
        "FusedMatMul",
        "TransposeMatMul",
        domain="com.microsoft",
    ),
    *_family(Additive(), "P(x + b + s) = P x + P b + P s", "BiasAdd", domain="com.microsoft"),
    *_family(Gemm(), "P(alpha A' B' + beta C) = alpha A' (P B') + beta P C on columns", "Gemm"),
    *_family(Convolution(0), "P(W * x + b) = (P W) * x + P b on channels, one group", "Conv"),
    *_family(Convolution(1), "as Conv, channels on axis 1 of W", "ConvTranspose"),
    *_family(Einsum(), "P is carried into the one factor that has the label", "Einsum"),
    *_family(
        Attention("q_num_heads", "kv_num_heads", adds=(5,), inputs=7),
        "P(A V) = A (P V) within a head",
        "Attention",
    ),
    *_family(
        Attention("num_heads", "num_heads", adds=(3, 7), inputs=8),
        "P(A V) = A (P V) within a head, without a bias",
        "MultiHeadAttention",
        domain="com.microsoft",
    ),
    *_family(
        Attention("num_heads", "kv_num_heads", adds=(4,), inputs=12),
        "P(A V) = A (P V) within a head, where no cache is kept",
        "GroupQueryAttention",
        domain="com.microsoft",
    ),
    *_family(Reduce(), "P mean_j(x) = mean_j(P x) off the fiber", "ReduceMean", "ReduceSum"),
    *_family(
        SpatialAverage(),
        "P avg(x) = avg(P x) on samples and channels",
        "AveragePool",
        "GlobalAveragePool",
    ),
    *_family(Resize(), "P resize(x) = resize(P x) off the fiber", "Resize"),
    *_family(Blind(), "reads no element", "Shape", "Size"),
    *_family(ShiftInvariant(), "f(x + s) = f(x), s constant along it", "Softmax", "LogSoftmax"),
    *_family(
        Centring(),
        "mean(x - mean x) = 0; (x + s) - mean(x + s) = x - mean x; P along fewer axes commutes",
        "Center",
        domain="onnxfold",
    ),
)

_BY_OPERATOR = {law.key: law for law in LAWS}


def law_of(domain: str, op_type: str) -> Law | None:
    """Return the line of the table for an operator, or None: opaque and exact."""
    return _BY_OPERATOR.get(("" if domain == "ai.onnx" else domain, op_type))
