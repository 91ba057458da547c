"""The ops of domain `onnxfold`, version 1: signatures, and bodies in standard ONNX.

Every op is a model-local function, so any runtime can run the model; where the onnxfold library
is registered with ONNX Runtime, its kernel of the same name takes the place of the body.

    Sum          = (X [+ linear_bias]) [+ residual], rounded to the element type of X
    RMSNorm      : v / sqrt(mean(v^2) + epsilon)                       v = Sum (or X)
    LayerNorm    : w / sqrt(mean(w^2) + epsilon), w = v - mean(v)
    Center       : X - mean(X)
    CRMSNorm     : X / sqrt((|X|^2 + sum(X)^2) / (n + 1) + epsilon)    n = X.shape[-1]
    CRMSNormFull : the same with the missing element -sum(X) appended to X: n in, n + 1 out
    ..Scale      : Y = norm * scale        ..Affine : Y = norm * scale + bias
    ..WithSum    : Sum is an output too: its own op, for no runtime lets a call of a function leave
                   an output out (ORT 1.31 refuses the model) and writing it costs a pass of memory

CRMSNorm is the RMS norm of a zero-mean vector that is stored without its last element (Jiang et
al., "Pre-RMSNorm and Pre-CRMSNorm Transformers", 2023, equation 6). Statistics are in float32.

Attributes: `axes` and `axis` name the same block of trailing axes, `[-k, .., -1]` and `-k`: the
standard reductions need the one, LayerNormalization and the kernels the other. `call` writes both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from onnxfold.errors import InvariantError

__all__ = [
    "DOMAIN",
    "INLINED",
    "MAX_OPSET",
    "MIN_OPSET",
    "SIGNATURES",
    "VERSION",
    "Affine",
    "Signature",
    "Statistics",
    "call",
    "function",
    "makes_ones",
    "op_name",
]

DOMAIN = "onnxfold"
VERSION = 1
INLINED = "inlined"  # the overload of calls that do not stay in the written model
MIN_OPSET = 7
MAX_OPSET = 26


class Statistics(StrEnum):
    """What is divided by what; the value is the stem of the op's name."""

    RMS = "RMSNorm"
    LAYER = "LayerNorm"
    CENTER = "Center"
    CRMS = "CRMSNorm"
    CRMS_FULL = "CRMSNormFull"


class Affine(StrEnum):
    """What follows the division; the value is the suffix of the op's name."""

    NONE = ""
    SCALE = "Scale"
    AFFINE = "Affine"


_AttributeValue: TypeAlias = ir.Attr | ir.TensorProtocol | int | float | list[int]
_WITH_SUM = "WithSum"
_FORMS = (("", False), ("Add", False), ("AddBias", False), ("Add", True), ("AddBias", True))
_ADDABLE = (Statistics.RMS, Statistics.LAYER)
_STANDARD = {
    Statistics.LAYER: ("LayerNormalization", 17),
    Statistics.RMS: ("RMSNormalization", 23),
}
_LAST_AXIS_ONLY = (Statistics.CRMS, Statistics.CRMS_FULL)
_TYPES = {
    ir.DataType.FLOAT: 7,
    ir.DataType.DOUBLE: 7,
    ir.DataType.FLOAT16: 7,
    ir.DataType.BFLOAT16: 13,
}
_OWN_STATISTICS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)  # others are widened to FLOAT
_ATTRIBUTE_TYPES = {
    "axes": ir.AttributeType.INTS,
    "axis": ir.AttributeType.INT,
    "epsilon": ir.AttributeType.FLOAT,
}


@dataclass(frozen=True, slots=True)
class Signature:
    """One op: its name and, in order, what it takes and gives, all of it required."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    statistics: Statistics
    residual: bool
    linear_bias: bool
    affine: Affine
    with_sum: bool

    @property
    def attributes(self) -> tuple[str, ...]:
        if self.statistics is Statistics.CENTER:
            return ("axes", "axis")
        if self.statistics in _LAST_AXIS_ONLY:
            return ("epsilon",)
        return ("axes", "axis", "epsilon")


def op_name(
    *,
    statistics: Statistics,
    residual: bool = False,
    linear_bias: bool = False,
    affine: Affine = Affine.NONE,
    with_sum: bool = False,
) -> str:
    """The name of the op with these parts.

    Raises InvariantError where the table has no such op.
    """
    prefix = {(False, False): "", (True, False): "Add", (True, True): "AddBias"}.get(
        (residual, linear_bias)
    )
    name = f"{prefix}{statistics}{affine}{_WITH_SUM if with_sum else ''}"
    if prefix is None or name not in SIGNATURES:
        raise InvariantError(
            f"no onnxfold op with statistics={statistics.name}, residual={residual}, "
            f"linear_bias={linear_bias}, affine={affine.name}, with_sum={with_sum}"
        )
    return name


def _signature(
    prefix: str, statistics: Statistics, affine: Affine, with_sum: bool = False
) -> Signature:
    residual, linear_bias = prefix != "", prefix == "AddBias"
    optional = (
        ("residual", residual),
        ("linear_bias", linear_bias),
        ("scale", affine is not Affine.NONE),
        ("bias", affine is Affine.AFFINE),
    )
    return Signature(
        name=f"{prefix}{statistics}{affine}{_WITH_SUM if with_sum else ''}",
        inputs=("X", *(name for name, present in optional if present)),
        outputs=("Y", "Sum") if with_sum else ("Y",),
        statistics=statistics,
        residual=residual,
        linear_bias=linear_bias,
        affine=affine,
        with_sum=with_sum,
    )


def _table() -> Mapping[str, Signature]:
    rows = [
        _signature(prefix, statistics, affine, with_sum)
        for prefix, with_sum in _FORMS
        for statistics in _ADDABLE
        for affine in Affine
    ]
    rows.append(_signature("", Statistics.CENTER, Affine.NONE))
    rows += [
        _signature("", statistics, affine) for statistics in _LAST_AXIS_ONLY for affine in Affine
    ]
    return MappingProxyType({row.name: row for row in rows})


SIGNATURES: Mapping[str, Signature] = _table()


def call(
    name: str,
    inputs: Sequence[ir.Value],
    *,
    axes: int = 1,
    epsilon: float = 0.0,
    overload: str = "",
) -> ir.Node:
    """A node that calls op `name` over the last `axes` axes.

    Raises InvariantError where the signature does not allow it.
    """
    signature = SIGNATURES[name]
    if len(inputs) != len(signature.inputs):
        raise InvariantError(f"{name} takes {', '.join(signature.inputs)}; got {len(inputs)}")
    if axes < 1 or (axes > 1 and signature.statistics in _LAST_AXIS_ONLY):
        raise InvariantError(f"{name} cannot work over the last {axes} axes")
    # Whole attributes: of any other value onnx-ir finds the type, which takes longer than the rest.
    attributes = {
        "axes": ir.AttrInt64s("axes", tuple(range(-axes, 0))),
        "axis": ir.AttrInt64("axis", -axes),
        "epsilon": ir.AttrFloat32("epsilon", epsilon),
    }
    return ir.node(
        name,
        inputs,
        {key: attributes[key] for key in signature.attributes},
        domain=DOMAIN,
        overload=overload,
        num_outputs=len(signature.outputs),
    )


def function(name: str, opset: int, dtype: ir.DataType, overload: str = "") -> ir.Function:
    """The body of op `name` for a model whose default domain has version `opset`.

    A body for FLOAT or DOUBLE is right for that type alone. A body for FLOAT16 or BFLOAT16 is
    right for FLOAT and both half types from opset 15 on (CastLike), for its own type alone below.
    Raises InvariantError for an opset or type that no body exists for.
    """
    if not MIN_OPSET <= opset <= MAX_OPSET:
        raise InvariantError(f"onnxfold functions exist for opset {MIN_OPSET} to {MAX_OPSET}")
    if opset < _TYPES.get(dtype, MAX_OPSET + 1):
        raise InvariantError(f"onnxfold functions do not exist for {dtype.name} at opset {opset}")
    signature = SIGNATURES[name]
    body = _Body(opset, dtype, signature.statistics in _LAST_AXIS_ONLY)
    inputs = {key: ir.Value(name=key) for key in signature.inputs}
    outputs = _outputs(body, signature, inputs)
    for key, value in zip(signature.outputs, outputs, strict=True):
        value.name = key
    graph = ir.Graph(
        list(inputs.values()), outputs, nodes=body.nodes, opset_imports={"": opset}, name=name
    )
    attributes = [ir.Attr(key, _ATTRIBUTE_TYPES[key], None) for key in signature.attributes]
    return ir.Function(DOMAIN, name, overload, graph=graph, attributes=attributes)


def makes_ones(statistics: Statistics, opset: int, dtype: ir.DataType) -> bool:
    """Whether the body of a norm without a scale multiplies by ones that it makes itself.

    RMSNormalization and LayerNormalization need a scale, and ONNX Runtime 1.31 fuses Pow .. Div
    only with a Mul behind it: 0.4 against 0.9 ns per element.
    """
    if statistics not in _ADDABLE:
        return False
    return opset >= _STANDARD[statistics][1] or (opset >= 12 and dtype is not ir.DataType.DOUBLE)


class _Body:
    """Nodes of one function body, spelled for one opset and element type."""

    def __init__(self, opset: int, dtype: ir.DataType, last_axis_only: bool) -> None:
        self.opset = opset
        self.dtype = dtype
        self.last_axis_only = last_axis_only
        self.nodes: list[ir.Node] = []
        self.statistics_type = dtype if dtype in _OWN_STATISTICS else ir.DataType.FLOAT

    def op(self, op_type: str, *inputs: ir.Value, **attributes: _AttributeValue) -> ir.Value:
        self.nodes.append(ir.node(op_type, inputs, attributes))
        output = self.nodes[-1].outputs[0]
        output.name = f"v{len(self.nodes)}"
        return output

    def constant(self, value: float) -> ir.Value:
        return self.op("Constant", value=ir.tensor(np.array(value, self.statistics_type.numpy())))

    def attribute(self, key: str, source: str) -> ir.Attr:
        return ir.RefAttr(key, source, _ATTRIBUTE_TYPES[source])

    def axes(self, key: str) -> ir.Attr:
        return ir.AttrInt64s(key, [-1]) if self.last_axis_only else self.attribute(key, "axes")

    def epsilon(self) -> ir.Value:
        epsilon = self._float_epsilon()
        if self.statistics_type is ir.DataType.FLOAT:
            return epsilon
        return self.op("Cast", epsilon, to=self.statistics_type)

    def _float_epsilon(self) -> ir.Value:
        if self.opset >= 12:
            return self.op("Constant", value_float=self.attribute("value_float", "epsilon"))
        # Constant takes no float attribute yet; the alpha of a Gemm of ones does, and folds away.
        one = self.op("Constant", value=ir.tensor(np.ones((1, 1), np.float32)))
        product = self.op("Gemm", one, one, one, alpha=self.attribute("alpha", "epsilon"), beta=0.0)
        return self.op("Squeeze", product, axes=[0])

    def reduce(self, op_type: str, x: ir.Value) -> ir.Value:
        as_input = 13 if op_type == "ReduceSum" else 18
        if self.opset < as_input:
            return self.op(op_type, x, axes=self.axes("axes"), keepdims=1)
        return self.op(
            op_type, x, self.op("Constant", value_ints=self.axes("value_ints")), keepdims=1
        )

    def wide(self, x: ir.Value) -> ir.Value:
        if self.dtype in _OWN_STATISTICS:
            return x
        return self.op("Cast", x, to=ir.DataType.FLOAT)

    def narrow(self, y: ir.Value, like: ir.Value) -> ir.Value:
        if self.dtype in _OWN_STATISTICS:
            return y
        if self.opset >= 15:
            return self.op("CastLike", y, like)
        return self.op("Cast", y, to=self.dtype)

    def ones(self, x: ir.Value) -> ir.Value:
        """Ones of the statistics' type in the shape of x's normalised axes; from opset 12 on."""
        if self.opset >= 15:
            start = -1 if self.last_axis_only else self.attribute("start", "axis")
            shape = self.op("Shape", x, start=start)
        else:
            indices = self.op("Constant", value_ints=self.axes("value_ints"))
            shape = self.op("Gather", self.op("Shape", x), indices)
        return self.op(
            "ConstantOfShape", shape, value=ir.tensor(np.ones(1, self.statistics_type.numpy()))
        )


def _outputs(
    body: _Body, signature: Signature, inputs: Mapping[str, ir.Value]
) -> tuple[ir.Value, ...]:
    x = inputs["X"]
    if signature.linear_bias:
        x = body.op("Add", x, inputs["linear_bias"])
    if signature.residual:
        x = body.op("Add", x, inputs["residual"])
    y = _normalised(body, signature.statistics, x, inputs.get("scale"), inputs.get("bias"))
    return (y, x) if signature.with_sum else (y,)


def _normalised(
    body: _Body,
    statistics: Statistics,
    x: ir.Value,
    scale: ir.Value | None,
    bias: ir.Value | None,
) -> ir.Value:
    if statistics is Statistics.CENTER:
        wide = body.wide(x)
        return body.narrow(body.op("Sub", wide, body.reduce("ReduceMean", wide)), x)
    op_type, since = _STANDARD.get(statistics, ("", MAX_OPSET + 1))
    if body.opset < since:
        return _decomposed(body, statistics, x, scale, bias)
    if scale is None:
        scale = body.narrow(body.ones(x), x)
    attributes = {key: body.attribute(key, key) for key in ("axis", "epsilon")}
    if bias is not None and statistics is Statistics.LAYER:
        return body.op(op_type, x, scale, bias, **attributes)
    y = body.op(op_type, x, scale, **attributes)
    return y if bias is None else body.op("Add", y, bias)


def _decomposed(
    body: _Body,
    statistics: Statistics,
    x: ir.Value,
    scale: ir.Value | None,
    bias: ir.Value | None,
) -> ir.Value:
    """The norm in reductions and arithmetic, spelled as ONNX Runtime's own fusions look for it."""
    numerator = vector = wide = body.wide(x)
    if statistics is Statistics.LAYER:
        numerator = vector = body.op("Sub", wide, body.reduce("ReduceMean", wide))
    elif statistics in _LAST_AXIS_ONLY:
        missing = body.op("Neg", body.reduce("ReduceSum", wide))
        vector = body.op("Concat", wide, missing, axis=-1)
        numerator = vector if statistics is Statistics.CRMS_FULL else wide
    factor = None if scale is None else body.wide(scale)
    # ORT 1.31 puts 1e-5 in the place of any epsilon when it fuses a float64 norm: no Pow there.
    fusable = body.dtype is not ir.DataType.DOUBLE
    if factor is None and makes_ones(statistics, body.opset, body.dtype):
        factor = body.ones(vector)
    if factor is not None and fusable:
        square = body.op("Pow", vector, body.constant(2.0))
    else:
        square = body.op("Mul", vector, vector)
    variance = body.op("Add", body.reduce("ReduceMean", square), body.epsilon())
    deviation = body.op("Sqrt", variance)
    if factor is None:
        y = body.op("Mul", numerator, body.op("Reciprocal", deviation))
    else:
        y = body.op("Mul", body.op("Div", numerator, deviation), factor)
    if bias is not None:
        y = body.op("Add", y, body.wide(bias))
    return body.narrow(y, x)
