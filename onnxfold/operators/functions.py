"""The ops of domain `onnxfold`, version 1: signatures, and bodies in standard ONNX.

Every op is a model-local function: where the onnxfold library is registered with ONNX Runtime, its
kernel of the same name takes the place of the body, which is right without it.

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

The kernels read the attributes `axis` (-k: the last k axes) and `epsilon` of a call.  The bodies
hold both as constants, for pnnx 20261020 drops references to attributes without a word; so a body
is right for one setting.  Overloads cannot tell settings apart: ONNX Runtime 1.17 to 1.24 take the
last overload of a name for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.errors import InvariantError

__all__ = [
    "DOMAIN",
    "LAYER_NORMALIZATION_SINCE",
    "MAX_OPSET",
    "MIN_OPSET",
    "RMS_NORMALIZATION_SINCE",
    "SIGNATURES",
    "VERSION",
    "Affine",
    "Setting",
    "Signature",
    "Statistics",
    "call",
    "function",
    "op_name",
    "setting_of",
    "type_of",
]

DOMAIN = "onnxfold"
VERSION = 1
MIN_OPSET = 7
# Bodies are tested up to the newest opset that the installed onnx has.
MAX_OPSET = onnx.defs.onnx_opset_version()


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
LAYER_NORMALIZATION_SINCE = 17
RMS_NORMALIZATION_SINCE = 23
_CASTLIKE_SINCE = 15
_LAST_AXIS_ONLY = (Statistics.CRMS, Statistics.CRMS_FULL)
_TYPES = {
    ir.DataType.FLOAT: 7,
    ir.DataType.DOUBLE: 7,
    ir.DataType.FLOAT16: 7,
    ir.DataType.BFLOAT16: 13,
}
_OWN_STATISTICS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)  # others are widened to FLOAT
_ATTRIBUTE_TYPES = {
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
            return ("axis",)
        if self.statistics in _LAST_AXIS_ONLY:
            return ("epsilon",)
        return ("axis", "epsilon")


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


def call(name: str, inputs: Sequence[ir.Value], *, axes: int = 1, epsilon: float = 0.0) -> ir.Node:
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
        "axis": ir.AttrInt64("axis", -axes),
        "epsilon": ir.AttrFloat32("epsilon", epsilon),
    }
    return ir.node(
        name,
        inputs,
        {key: attributes[key] for key in signature.attributes},
        domain=DOMAIN,
        num_outputs=len(signature.outputs),
    )


@dataclass(frozen=True, slots=True)
class Setting:
    """What one body is right for: the last `axes` axes, an epsilon, element types, a spelling.

    ``convertible``: a body for FLOAT, FLOAT16 and BFLOAT16 alike, so that a tool which converts
    the model to a half type leaves it right; from opset 15 on (CastLike).  ``rms_operator``:
    RMSNormalization, from opset 23 on, rather than the operators that it stands for.
    """

    dtype: ir.DataType
    axes: int = 1
    epsilon: float = 0.0
    convertible: bool = False
    rms_operator: bool = False

    @property
    def label(self) -> str:
        """A name that no other setting has: that of an overload."""
        form = "convertible" * self.convertible + "operator" * self.rms_operator
        return f"{self.dtype.name}_{self.axes}_{self.epsilon!r}_{form}"


def setting_of(
    node: ir.Node, opset: int, *, convertible: bool, rms_operator: bool = False
) -> Setting:
    """The setting of the body that a call needs; `convertible` where that can be.

    Raises InvariantError where the type of the call is unknown.
    """
    dtype = type_of(node)
    if dtype is None:
        raise InvariantError(f"the element type of '{node.name}' is unknown")
    convertible = convertible and opset >= _CASTLIKE_SINCE and dtype is not ir.DataType.DOUBLE
    return Setting(
        ir.DataType.FLOAT if convertible else dtype,
        -node.attributes.get_int("axis", -1),
        node.attributes.get_float("epsilon", 0.0),
        convertible,
        rms_operator,
    )


def type_of(node: ir.Node) -> ir.DataType | None:
    """The element type of what a call computes, None where it is unknown."""
    first = node.inputs[0]
    return node.outputs[0].dtype or (None if first is None else first.dtype)


def function(name: str, opset: int, setting: Setting, overload: str = "") -> ir.Function:
    """The body of op `name` for a model whose default domain has version `opset`.

    Raises InvariantError for an opset or type that no body exists for.
    """
    if not MIN_OPSET <= opset <= MAX_OPSET:
        raise InvariantError(f"onnxfold functions exist for opset {MIN_OPSET} to {MAX_OPSET}")
    if opset < _TYPES.get(setting.dtype, MAX_OPSET + 1):
        label = setting.dtype.name
        raise InvariantError(f"onnxfold functions do not exist for {label} at opset {opset}")
    signature = SIGNATURES[name]
    body = _Body(opset, setting)
    inputs = {key: ir.Value(name=key) for key in signature.inputs}
    outputs = _outputs(body, signature, inputs)
    for key, value in zip(signature.outputs, outputs, strict=True):
        value.name = key
    graph = ir.Graph(
        list(inputs.values()), outputs, nodes=body.nodes, opset_imports={"": opset}, name=name
    )
    attributes = [ir.Attr(key, _ATTRIBUTE_TYPES[key], None) for key in signature.attributes]
    return ir.Function(DOMAIN, name, overload, graph=graph, attributes=attributes)


class _Body:
    """Nodes of one function body, spelled for one opset and setting; constants are tensors."""

    def __init__(self, opset: int, setting: Setting) -> None:
        self.opset = opset
        self.setting = setting
        self.nodes: list[ir.Node] = []
        own = setting.dtype in _OWN_STATISTICS
        self.statistics_type = setting.dtype if own else ir.DataType.FLOAT
        self._converts = setting.convertible or not own

    def op(self, op_type: str, *inputs: ir.Value, **attributes: _AttributeValue) -> ir.Value:
        self.nodes.append(ir.node(op_type, inputs, attributes))
        output = self.nodes[-1].outputs[0]
        output.name = f"v{len(self.nodes)}"
        return output

    def constant(self, value: float) -> ir.Value:
        return self.op("Constant", value=ir.tensor(np.array(value, self.statistics_type.numpy())))

    def reduce(self, op_type: str, x: ir.Value) -> ir.Value:
        axes = list(range(-self.setting.axes, 0))
        if self.opset < (13 if op_type == "ReduceSum" else 18):
            return self.op(op_type, x, axes=axes, keepdims=1)
        listed = self.op("Constant", value=ir.tensor(np.array(axes, np.int64)))
        return self.op(op_type, x, listed, keepdims=1)

    def wide(self, x: ir.Value) -> ir.Value:
        return self.op("Cast", x, to=ir.DataType.FLOAT) if self._converts else x

    def narrow(self, y: ir.Value, like: ir.Value) -> ir.Value:
        if not self._converts:
            return y
        if self.opset >= _CASTLIKE_SINCE:
            return self.op("CastLike", y, like)
        return self.op("Cast", y, to=self.setting.dtype)


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
    standard = None if scale is None else _standard(body, statistics)
    if standard is None or scale is None:
        return _decomposed(body, statistics, x, scale, bias)
    attributes = {
        "axis": ir.AttrInt64("axis", -body.setting.axes),
        "epsilon": ir.AttrFloat32("epsilon", body.setting.epsilon),
    }
    if bias is not None and statistics is Statistics.LAYER:
        return body.op(standard, x, scale, bias, **attributes)
    y = body.op(standard, x, scale, **attributes)
    return y if bias is None else body.op("Add", y, bias)


def _standard(body: _Body, statistics: Statistics) -> str | None:
    """The operator that computes these statistics, which all need a scale, or None."""
    if statistics is Statistics.LAYER and body.opset >= LAYER_NORMALIZATION_SINCE:
        return "LayerNormalization"
    operator = body.setting.rms_operator and body.opset >= RMS_NORMALIZATION_SINCE
    return "RMSNormalization" if operator and statistics is Statistics.RMS else None


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
    # ORT 1.31 fuses Pow .. Div only with a Mul behind it (0.4 against 0.9 ns per element), and puts
    # 1e-5 in the place of any epsilon when it fuses a float64 norm: no Pow there.
    if factor is not None and body.setting.dtype is not ir.DataType.DOUBLE:
        square = body.op("Pow", vector, body.constant(2.0))
    else:
        square = body.op("Mul", vector, vector)
    epsilon = body.constant(float(np.float32(body.setting.epsilon)))
    deviation = body.op("Sqrt", body.op("Add", body.reduce("ReduceMean", square), epsilon))
    if factor is None:
        y = body.op("Mul", numerator, body.op("Reciprocal", deviation))
    else:
        y = body.op("Mul", body.op("Div", numerator, deviation), factor)
    if bias is not None:
        y = body.op("Add", y, body.wide(bias))
    return body.narrow(y, x)
