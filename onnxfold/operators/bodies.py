"""The bodies of onnxfold's operators, in standard ONNX, which run without a kernel.

The kernels read the attributes `axis` (-k: the last k axes) and `epsilon` of a call. The bodies
contain both as constants, because pnnx 20261020 silently drops references to attributes; a body is
therefore right for one setting. Overloads cannot distinguish settings: ONNX Runtime 1.17 to 1.24
use the last overload of a name for all.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxfold.errors import InvariantError
from onnxfold.operators import functions
from onnxfold.operators.new_nodes import NewNodes

LARGEST_EXPONENT_RANK = 2
_CASTLIKE_SINCE = 15
_GELU_SINCE = 20
_SLICE_OF_INPUTS_SINCE = 10
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
    "levels": ir.AttributeType.FLOAT,
    "least": ir.AttributeType.FLOAT,
}


@dataclass(frozen=True, slots=True)
class Setting:
    """The parameters of one body: the last `axes` axes, an epsilon, element types, a spelling.

    ``convertible``: a body for FLOAT, FLOAT16 and BFLOAT16, so that it stays right when a tool
    converts the model to a half type; from opset 15 on (CastLike). ``rms_operator``:
    RMSNormalization, from opset 23 on, instead of decomposed operators. ``turned``: Transposes may
    be moved through, so the operators must be hidden from ONNX Runtime's fusions.
    ``exponent_rank``: of the 2 in a square; ONNX Runtime merges equal operators of two norms of one
    value, and then fuses neither.
    """

    dtype: ir.DataType
    axes: int = 1
    epsilon: float = 0.0
    convertible: bool = False
    rms_operator: bool = False
    turned: bool = False
    exponent_rank: int = 0
    levels: float = 127.0
    least: float = 0.0

    @property
    def label(self) -> str:
        """A unique name of the setting, used as overload."""
        form = (
            "convertible" * self.convertible
            + "operator" * self.rms_operator
            + "turned" * self.turned
        )
        steps = f"_{self.levels!r}_{self.least!r}"
        return f"{self.dtype.name}_{self.axes}_{self.epsilon!r}{steps}_{form}{self.exponent_rank}"


def setting_of(
    node: ir.Node,
    opset: int,
    *,
    convertible: bool,
    rms_operator: bool = False,
    turned: bool = False,
    twin: int = 0,
) -> Setting:
    """Return the setting of the body that a call needs, `convertible` if possible.

    `twin` numbers the norms of one value. The sum of a call may be read by another norm, whose call
    has another name and so its own body.

    Raises InvariantError if the type of the call is unknown.
    """
    dtype = type_of(node)
    if dtype is None:
        raise InvariantError(f"the element type of '{node.name}' is unknown")
    convertible = convertible and opset >= _CASTLIKE_SINCE and dtype is not ir.DataType.DOUBLE
    return Setting(
        ir.DataType.FLOAT if convertible else dtype,
        functions.axes_of(node),
        node.attributes.get_float("epsilon", 0.0),
        convertible,
        rms_operator,
        turned,
        min(twin + functions.SIGNATURES[node.op_type].residual, LARGEST_EXPONENT_RANK),
        node.attributes.get_float("levels", 127.0),
        node.attributes.get_float("least", 0.0),
    )


def type_of(node: ir.Node) -> ir.DataType | None:
    """Return the element type in which a call computes, or None if unknown."""
    first = node.inputs[0]
    signature = functions.SIGNATURES.get(node.op_type)
    same = signature is None or signature.output is functions.Output.NORM
    told = node.outputs[0].dtype if same else None
    return told or (None if first is None else first.dtype)


def function(name: str, opset: int, setting: Setting, overload: str = "") -> ir.Function:
    """Return the body of operator `name` for a model whose default domain has version `opset`.

    Raises InvariantError for an opset or type without a body.
    """
    if not functions.MIN_OPSET <= opset <= functions.MAX_OPSET:
        raise InvariantError(
            f"onnxfold functions exist for opset {functions.MIN_OPSET} to {functions.MAX_OPSET}"
        )
    if opset < _TYPES.get(setting.dtype, functions.MAX_OPSET + 1):
        label = setting.dtype.name
        raise InvariantError(f"onnxfold functions do not exist for {label} at opset {opset}")
    signature = functions.SIGNATURES[name]
    body = _Body(opset, setting)
    inputs = {key: ir.Value(name=key) for key in signature.inputs}
    outputs = _outputs(body, signature, inputs)
    for key, value in zip(signature.outputs, outputs, strict=True):
        value.name = key
    graph = ir.Graph(
        list(inputs.values()), outputs, nodes=body.nodes, opset_imports={"": opset}, name=name
    )
    attributes = [ir.Attr(key, _ATTRIBUTE_TYPES[key], None) for key in signature.attributes]
    return ir.Function(functions.DOMAIN, name, overload, graph=graph, attributes=attributes)


class _Body(NewNodes):
    """Nodes of one function body, spelled for one opset and setting; weights are nodes too."""

    def __init__(self, opset: int, setting: Setting) -> None:
        super().__init__(opset)
        self.setting = setting
        own = setting.dtype in _OWN_STATISTICS
        self.statistics_type = setting.dtype if own else ir.DataType.FLOAT
        self._converts = setting.convertible or not own

    def add(self, node: ir.Node) -> ir.Value:
        output = super().add(node)
        output.name = f"v{len(self.nodes)}"
        return output

    def weight(self, name: str, array: npt.NDArray[np.generic]) -> ir.Value:
        del name  # the weights of a body are numbers
        return self.op("Constant", value=ir.tensor(array))

    def constant(self, value: float) -> ir.Value:
        return self.weight("", np.array(value, self.statistics_type.numpy()))

    def reduce(self, op_type: str, x: ir.Value) -> ir.Value:
        return self.along(op_type, x, range(-self.setting.axes, 0), "", keepdims=1)

    def wide(self, x: ir.Value) -> ir.Value:
        return self.op("Cast", x, to=ir.DataType.FLOAT) if self._converts else x

    def of_rows(self, numbers: ir.Value) -> ir.Value:
        """Return numbers of FLOAT in the type in which statistics are computed."""
        own = self.statistics_type is ir.DataType.FLOAT
        return numbers if own else self.op("Cast", numbers, to=self.statistics_type)

    def single(self, x: ir.Value) -> ir.Value:
        """Return a value of any type in FLOAT."""
        known = self.setting.dtype is ir.DataType.FLOAT and not self.setting.convertible
        return x if known else self.op("Cast", x, to=ir.DataType.FLOAT)

    def narrow(self, y: ir.Value, like: ir.Value) -> ir.Value:
        if not self._converts:
            return y
        if self.setting.convertible:
            return self.op("CastLike", y, like)
        return self.op("Cast", y, to=self.setting.dtype)


def _outputs(
    body: _Body, signature: functions.Signature, inputs: Mapping[str, ir.Value]
) -> tuple[ir.Value, ...]:
    x = inputs["X"]
    if signature.row_scale:
        x = body.narrow(body.op("Mul", body.of_rows(inputs["row_scale"]), body.wide(x)), x)
    if signature.linear_bias:
        x = body.op("Add", x, inputs["linear_bias"])
    if signature.residual:
        x = body.op("Add", x, inputs["residual"])
    total = (x,) if signature.with_sum else ()
    if signature.output is functions.Output.SCALE:
        return (_row_scale(body, x), *total)
    if signature.statistics is functions.Statistics.ROW:
        return (_activated(body, signature.activation, _plus(body, x, inputs.get("bias"))),)
    y = _normalised(body, signature.statistics, x, inputs)
    if signature.output is functions.Output.QUANTIZED:
        divisor = body.single(inputs["y_scale"])
        return (_quantized(body, y, divisor, inputs["y_zero_point"]), *total)
    if signature.output is functions.Output.QUANTIZED_ROWS:
        divisor = _scale_of_rows(body, y)
        return (_quantized(body, y, body.single(divisor), inputs["y_zero_point"]), divisor, *total)
    return (y, *total)


def _plus(body: _Body, x: ir.Value, bias: ir.Value | None) -> ir.Value:
    return x if bias is None else body.op("Add", x, bias)


def _row_scale(body: _Body, x: ir.Value) -> ir.Value:
    wide = body.wide(x)
    mean = body.reduce("ReduceMean", body.op("Mul", wide, wide))
    epsilon = body.constant(float(np.float32(body.setting.epsilon)))
    return body.single(body.op("Reciprocal", body.op("Sqrt", body.op("Add", mean, epsilon))))


def _activated(body: _Body, activation: functions.Activation, x: ir.Value) -> ir.Value:
    """Return the activation as exporters spell it, which is what runtimes recognize.

    SiLU is an exception: after a Mul, ONNX Runtime's transformers optimizer fails on x *
    Sigmoid(x).
    """
    if activation is functions.Activation.NONE:
        return x
    if activation is functions.Activation.RELU:
        return body.op("Relu", x)
    if activation is not functions.Activation.SILU and body.opset >= _GELU_SINCE:
        approximate = "tanh" if activation is functions.Activation.GELU_TANH else "none"
        return body.op("Gelu", x, approximate=ir.AttrString("approximate", approximate))
    wide = body.wide(x)
    if activation is functions.Activation.SILU:
        return body.narrow(body.op("Mul", body.op("Sigmoid", wide), wide), x)
    if activation is functions.Activation.GELU:
        inner = body.op("Erf", body.op("Div", wide, body.constant(math.sqrt(2.0))))
    else:
        cube = body.op("Mul", body.op("Mul", wide, wide), wide)
        term = body.op("Add", wide, body.op("Mul", cube, body.constant(0.044715)))
        inner = body.op("Tanh", body.op("Mul", term, body.constant(math.sqrt(2.0 / math.pi))))
    product = body.op("Mul", wide, body.op("Add", inner, body.constant(1.0)))
    return body.narrow(body.op("Mul", product, body.constant(0.5)), x)


def _scale_of_rows(body: _Body, y: ir.Value) -> ir.Value:
    wide = body.wide(y)
    largest = body.reduce("ReduceMax", body.op("Abs", wide))
    scale = body.op("Div", largest, body.constant(body.setting.levels))
    least = body.constant(float(np.float32(body.setting.least)))
    return body.narrow(body.op("Max", scale, least), y)


def _quantized(body: _Body, y: ir.Value, divisor: ir.Value, zero_point: ir.Value) -> ir.Value:
    """QuantizeLinear(y, divisor, zero_point), of float32 numbers at every opset."""
    one = body.weight("", np.array(1, np.float32))
    return body.op("QuantizeLinear", body.op("Div", body.single(y), divisor), one, zero_point)


def _normalised(
    body: _Body,
    statistics: functions.Statistics,
    x: ir.Value,
    inputs: Mapping[str, ir.Value],
) -> ir.Value:
    scale, bias = inputs.get("scale"), inputs.get("bias")
    if statistics is functions.Statistics.CENTER:
        wide = body.wide(x)
        return body.narrow(body.op("Sub", wide, body.reduce("ReduceMean", wide)), x)
    standard = None if scale is None or "row_epsilon" in inputs else _standard(body, statistics)
    if standard is None or scale is None:
        return _decomposed(body, statistics, x, inputs)
    attributes = {
        "axis": ir.AttrInt64("axis", -body.setting.axes),
        "epsilon": ir.AttrFloat32("epsilon", body.setting.epsilon),
    }
    if statistics is functions.Statistics.LAYER:
        # Before 1.19, ONNX Runtime's Attention fusion reads B of a norm with several readers and
        # aborts if it is missing.
        shift = body.op("Sub", scale, scale) if bias is None else bias
        return body.op(standard, x, scale, shift, **attributes)
    y = body.op(standard, x, scale, **attributes)
    return y if bias is None else body.op("Add", y, bias)


def _deviation(body: _Body, square: ir.Value, inputs: Mapping[str, ir.Value]) -> ir.Value:
    if "row_epsilon" in inputs:
        epsilon = body.of_rows(inputs["row_epsilon"])
    else:
        epsilon = body.constant(float(np.float32(body.setting.epsilon)))
    return body.op("Sqrt", body.op("Add", body.reduce("ReduceMean", square), epsilon))


def _exponent(body: _Body) -> ir.Value:
    shape = (1,) * body.setting.exponent_rank
    return body.weight("", np.full(shape, 2, body.statistics_type.numpy()))


def _standard(body: _Body, statistics: functions.Statistics) -> str | None:
    """Return the operator that computes these statistics, which always needs a scale, or None."""
    if (
        statistics is functions.Statistics.LAYER
        and body.opset >= functions.LAYER_NORMALIZATION_SINCE
    ):
        return "LayerNormalization"
    operator = body.setting.rms_operator and body.opset >= functions.RMS_NORMALIZATION_SINCE
    return "RMSNormalization" if operator and statistics is functions.Statistics.RMS else None


def _without_last(body: _Body, y: ir.Value) -> ir.Value:
    """Return y without its last element, removed last, so that the norm before it is recognized."""
    if body.opset < _SLICE_OF_INPUTS_SINCE:
        return body.op("Slice", y, axes=[-1], starts=[0], ends=[-1])
    return body.op("Slice", y, *(body.integers("", [number]) for number in (0, -1, -1)))


def _decomposed(
    body: _Body,
    statistics: functions.Statistics,
    x: ir.Value,
    inputs: Mapping[str, ir.Value],
) -> ir.Value:
    """Return the norm in reductions and arithmetic, as ONNX Runtime's own fusions expect it."""
    scale, bias = inputs.get("scale"), inputs.get("bias")
    numerator = vector = wide = body.wide(x)
    if statistics is functions.Statistics.LAYER:
        numerator = vector = body.op("Sub", wide, body.reduce("ReduceMean", wide))
    elif statistics in functions.LAST_AXIS_ONLY:
        missing = body.op("Neg", body.reduce("ReduceSum", wide))
        vector = body.op("Concat", wide, missing, axis=-1)
        numerator = vector
    shorter = statistics is functions.Statistics.CRMS
    # ORT 1.31 fuses Pow .. Div only with a Mul after it (0.4 against 0.9 ns per element), and
    # replaces an epsilon in float64 or (before 1.32) a computed one by 1e-5: no Pow there. Its
    # transformers optimizer normalizes over all axes from the one to which a Transpose has moved a
    # norm.
    double = body.setting.dtype is ir.DataType.DOUBLE
    wrongly_fused = double or "row_epsilon" in inputs or body.setting.turned
    fused = scale is not None and not wrongly_fused and not shorter
    # ORT's transformers optimizer raises TypeError for a Mul after a quotient with Mul for a
    # square, unless the reciprocal comes first.
    if fused:
        square = body.op("Pow", vector, _exponent(body))
        y = body.op("Div", numerator, _deviation(body, square, inputs))
    else:
        deviation = _deviation(body, body.op("Mul", vector, vector), inputs)
        y = body.op("Mul", body.op("Reciprocal", deviation), numerator)
    y = _without_last(body, y) if shorter else y
    if fused and bias is None:
        # Rounded, then scaled, as RMSNormalization is defined; ORT on CUDA fuses that Cast, too.
        return body.op("Mul", body.narrow(y, x), inputs["scale"])
    if scale is not None:
        y = body.op("Mul", y, body.wide(scale))
    if bias is not None:
        y = body.op("Add", y, body.wide(bias))
    return body.narrow(y, x)
