"""The operators of domain `onnxfold`, version 1: formulas, inputs and outputs.

Every operator is a model-local function: if the onnxfold library is registered with ONNX Runtime,
its kernel of the same name replaces the body (bodies.py), which is correct without it.

    Sum          = (X [+ linear_bias]) [+ residual], rounded to the element type of X
    RMSNorm      : v / sqrt(mean(v^2) + epsilon)                       v = Sum (or X)
    LayerNorm    : w / sqrt(mean(w^2) + epsilon), w = v - mean(v)
    Center       : X - mean(X)
    CRMSNorm     : X / sqrt((|X|^2 + sum(X)^2) / (n + 1) + epsilon)    n = X.shape[-1]
    CRMSNormFull : the same with the missing element -sum(X) appended to X: n in, n + 1 out
    ..Scale      : Y = norm * scale        ..Affine : Y = norm * scale + bias
    ..WithSum    : Sum is an output too: its own op, for no runtime lets a call of a function leave
                   an output out (ORT 1.31 refuses the model) and writing it costs a pass of memory

    RowScale     : 1 / sqrt(mean(v^2) + epsilon), one number for each row, and no norm
    ..Scaled..   : X is multiplied by row_scale before anything is added to it
    ScaleRows    : activation(X * row_scale [+ bias])
    ..RowEpsilon : row_epsilon, one number for each row, in the place of epsilon
    ..Quantize   : Y = QuantizeLinear(norm, y_scale, y_zero_point)
    ..QuantizeRows : the same with Y_scale = max(max|norm| / levels, least) of each row, an output

CRMSNorm is the RMS norm of a zero-mean vector that is stored without its last element (Jiang et
al., "Pre-RMSNorm and Pre-CRMSNorm Transformers", 2023, equation 6). Statistics are in float32, as
are row_scale, row_epsilon and the scales of RowScale, which broadcast to X. Norms are rounded to
the element type of X before they are quantized.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.errors import InvariantError

DOMAIN = "onnxfold"
VERSION = 1
MIN_OPSET = 7
# Bodies are tested up to the newest opset of the installed onnx.
MAX_OPSET = onnx.defs.onnx_opset_version()


class Statistics(StrEnum):
    """The statistic of the division; the value is the stem of the operator's name."""

    RMS = "RMSNorm"
    LAYER = "LayerNorm"
    CENTER = "Center"
    CRMS = "CRMSNorm"
    CRMS_FULL = "CRMSNormFull"
    ROW = "ScaleRows"


class Affine(StrEnum):
    """The operation after the division; the value is the suffix of the operator's name."""

    NONE = ""
    SCALE = "Scale"
    AFFINE = "Affine"
    BIAS = "Bias"


class Activation(StrEnum):
    """The operation after the bias; the value is the suffix of the operator's name."""

    NONE = ""
    RELU = "Relu"
    GELU = "Gelu"
    GELU_TANH = "GeluTanh"
    SILU = "Silu"


class Output(StrEnum):
    """The kind of Y: the norm, the scale of each row alone, or a quantized norm."""

    NORM = ""
    SCALE = "RowScale"
    QUANTIZED = "Quantize"
    QUANTIZED_ROWS = "QuantizeRows"


_WITH_SUM = "WithSum"
_FORMS = (("", False), ("Add", False), ("AddBias", False), ("Add", True), ("AddBias", True))
_ADDABLE = (Statistics.RMS, Statistics.LAYER)
LAYER_NORMALIZATION_SINCE = 17
RMS_NORMALIZATION_SINCE = 23
LAST_AXIS_ONLY = (Statistics.CRMS, Statistics.CRMS_FULL)
_ROW_EPSILON = "RowEpsilon"
_SCALED = "Scaled"


@dataclass(frozen=True, slots=True)
class Signature:
    """One operator: its name, and its inputs and outputs in order, all of them required."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    statistics: Statistics
    residual: bool
    linear_bias: bool
    affine: Affine
    with_sum: bool
    row_scale: bool = False
    row_epsilon: bool = False
    activation: Activation = Activation.NONE
    output: Output = Output.NORM

    @property
    def attributes(self) -> tuple[str, ...]:
        if self.statistics in (Statistics.CENTER, Statistics.ROW) or self.row_epsilon:
            return ("axis",)
        if self.statistics in LAST_AXIS_ONLY:
            return ("epsilon",)
        rows = self.output is Output.QUANTIZED_ROWS
        return ("axis", "epsilon", "levels", "least") if rows else ("axis", "epsilon")

    @property
    def of_rows(self) -> bool:
        """Whether it computes or reads one number per row, as deferred norms leave them."""
        return self.row_scale or self.row_epsilon or self.output is Output.SCALE

    @property
    def quantized(self) -> bool:
        """Whether Y is quantized."""
        return self.output in (Output.QUANTIZED, Output.QUANTIZED_ROWS)


def op_name(
    *,
    statistics: Statistics,
    residual: bool = False,
    linear_bias: bool = False,
    affine: Affine = Affine.NONE,
    with_sum: bool = False,
    row_scale: bool = False,
    activation: Activation = Activation.NONE,
    output: Output = Output.NORM,
) -> str:
    """Return the name of the operator with these parts and its own epsilon.

    Raises InvariantError if the operator is not in the table.
    """
    prefix = {(False, False): "", (True, False): "Add", (True, True): "AddBias"}.get(
        (residual, linear_bias)
    )
    name = _composed(
        f"{prefix}{_SCALED if row_scale and residual else ''}",
        *(statistics, affine, with_sum, False, activation, output),
    )
    if prefix is None or name not in SIGNATURES:
        raise InvariantError(
            f"no onnxfold op with statistics={statistics.name}, residual={residual}, "
            f"linear_bias={linear_bias}, affine={affine.name}, with_sum={with_sum}"
        )
    return name


def _composed(
    prefix: str,
    statistics: Statistics,
    affine: Affine,
    with_sum: bool,
    row_epsilon: bool,
    activation: Activation,
    output: Output,
) -> str:
    stem, form = (output, "") if output is Output.SCALE else (statistics, output)
    epsilon = _ROW_EPSILON if row_epsilon else ""
    return f"{prefix}{stem}{epsilon}{affine}{activation}{form}{_WITH_SUM if with_sum else ''}"


def _signature(
    prefix: str,
    statistics: Statistics,
    affine: Affine,
    with_sum: bool = False,
    *,
    row_epsilon: bool = False,
    activation: Activation = Activation.NONE,
    output: Output = Output.NORM,
) -> Signature:
    residual, linear_bias = prefix != "", "Bias" in prefix
    row_scale = _SCALED in prefix or statistics is Statistics.ROW
    quantized = output in (Output.QUANTIZED, Output.QUANTIZED_ROWS)
    optional = (
        ("residual", residual),
        ("linear_bias", linear_bias),
        ("row_scale", row_scale),
        ("row_epsilon", row_epsilon),
        ("scale", affine in (Affine.SCALE, Affine.AFFINE)),
        ("bias", affine in (Affine.AFFINE, Affine.BIAS)),
        ("y_scale", output is Output.QUANTIZED),
        ("y_zero_point", quantized),
    )
    results = (("Y_scale", output is Output.QUANTIZED_ROWS), ("Sum", with_sum))
    return Signature(
        name=_composed(prefix, statistics, affine, with_sum, row_epsilon, activation, output),
        inputs=("X", *(name for name, present in optional if present)),
        outputs=("Y", *(name for name, present in results if present)),
        statistics=statistics,
        residual=residual,
        linear_bias=linear_bias,
        affine=affine,
        with_sum=with_sum,
        row_scale=row_scale,
        row_epsilon=row_epsilon,
        activation=activation,
        output=output,
    )


_NORM_AFFINE = (Affine.NONE, Affine.SCALE, Affine.AFFINE)


def _table() -> Mapping[str, Signature]:
    rows = [
        _signature(prefix, statistics, affine, with_sum)
        for prefix, with_sum in _FORMS
        for statistics in _ADDABLE
        for affine in _NORM_AFFINE
    ]
    rows.append(_signature("", Statistics.CENTER, Affine.NONE))
    rows += [
        _signature("", statistics, affine)
        for statistics in LAST_AXIS_ONLY
        for affine in _NORM_AFFINE
    ]
    rows += _of_rows()
    rows += [
        _signature(prefix, statistics, affine, with_sum, output=output)
        for output in (Output.QUANTIZED, Output.QUANTIZED_ROWS)
        for prefix, with_sum in (("", False), ("Add", True), ("AddBias", True))
        for statistics in _ADDABLE
        for affine in _NORM_AFFINE
    ]
    return MappingProxyType({row.name: row for row in rows})


def _of_rows() -> Iterator[Signature]:
    """Yield the operators of deferral: one number per row, computed, multiplied or added."""
    rms, scaled = Statistics.RMS, ("AddScaled", "AddBiasScaled")
    yield _signature("", rms, Affine.NONE, output=Output.SCALE)
    for prefix in ("Add", "AddBias", *scaled):
        yield _signature(prefix, rms, Affine.NONE, True, output=Output.SCALE)
    for affine in (Affine.NONE, Affine.BIAS):
        for activation in Activation:
            yield _signature("", Statistics.ROW, affine, activation=activation)
    for affine in _NORM_AFFINE:
        yield _signature("", rms, affine, row_epsilon=True)
    for prefix in scaled:
        for with_sum in (False, True):
            for affine in _NORM_AFFINE:
                yield _signature(prefix, rms, affine, with_sum)


SIGNATURES: Mapping[str, Signature] = _table()


def call(
    name: str,
    inputs: Sequence[ir.Value],
    *,
    axes: int = 1,
    epsilon: float = 0.0,
    levels: float = 127.0,
    least: float = 0.0,
) -> ir.Node:
    """Return a node that calls operator `name` over the last `axes` axes.

    Raises InvariantError if the signature does not allow it.
    """
    signature = SIGNATURES[name]
    if len(inputs) != len(signature.inputs):
        raise InvariantError(f"{name} takes {', '.join(signature.inputs)}; got {len(inputs)}")
    if axes < 1 or (axes > 1 and signature.statistics in LAST_AXIS_ONLY):
        raise InvariantError(f"{name} cannot work over the last {axes} axes")
    # Complete attributes: for plain values onnx-ir infers the type, which takes longer than the
    # rest.
    attributes = {
        "axis": ir.AttrInt64("axis", -axes),
        "epsilon": ir.AttrFloat32("epsilon", float(np.float32(epsilon))),  # as a file has it
        "levels": ir.AttrFloat32("levels", levels),
        "least": ir.AttrFloat32("least", least),
    }
    return ir.node(
        name,
        inputs,
        {key: attributes[key] for key in signature.attributes},
        domain=DOMAIN,
        num_outputs=len(signature.outputs),
    )


def axes_of(node: ir.Node) -> int:
    """Return the number of trailing axes of a call."""
    return -node.attributes.get_int("axis", -1)
