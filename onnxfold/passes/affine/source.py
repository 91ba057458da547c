"""The location of a norm's gamma and beta: operands of one operator, or following operators."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxfold.graph import ModelInfo, Shape, node_label, operator
from onnxfold.graph.channels import Channels
from onnxfold.graph.constants import Array, Float64
from onnxfold.graph.operands import is_read_once, known_operand, operands, producer_of
from onnxfold.graph.operands import operand as operand_of
from onnxfold.norms.quotients import refuse_constant
from onnxfold.norms.site import NORM_OPERATORS, WITHOUT_AFFINE, NormForm, NormKind, NormSite
from onnxfold.operators import facets
from onnxfold.operators.table import row_of
from onnxfold.passes.constant_edits import unrounded_numbers
from onnxfold.refusal import Refusal, RefusalCode

_GAMMA, _BETA = 1, 2  # operands of every norm that is one operator
_OPERATORS = (("Add", _BETA), ("Mul", _GAMMA))
_Parts = dict[int, tuple[list[ir.Node], Array]]  # by operand, what applies it and its numbers


@dataclass(frozen=True, slots=True, eq=False)
class AffineSource:
    """y = gamma * x + beta, the affine part of a norm, along ``channels`` of ``value`` (y).

    ``nodes`` are the Mul and Add that compute y, the last one first; without any, gamma and beta
    are the operands 1 and 2 of the norm's operator. ``inside``: they are inside the norm, as in
    TensorFlow's x * (r * gamma) + (beta - mean * (r * gamma)), and neither computes y.
    """

    site: NormSite
    value: ir.Value
    channels: Channels
    gamma: Float64 | None
    beta: Float64 | None
    nodes: tuple[ir.Node, ...] = ()
    inside: bool = False


def source_of(view: ModelInfo, site: NormSite) -> AffineSource | Refusal | None:
    """Return the norm's affine part, None if it has none, or a refusal if it is unclear."""
    if site.gamma is None and site.beta is None:
        return None
    once = refuse_constant(view, site)
    if once is not None:
        return once
    if site.form is not NormForm.DECOMPOSED or _ends_in_norm(site):
        return _of_operands(view, site)
    return _of_nodes(view, site)


def scale_source(view: ModelInfo, site: NormSite) -> AffineSource | None:
    """Return gamma and beta of a norm that is one operator; ones stand in for a missing gamma."""
    found = source_of(view, site)
    if isinstance(found, Refusal) or (
        found is not None and (found.nodes or found.gamma is not None)
    ):
        return None
    shape, axes = view.shape(site.input), site.fiber.axes
    if shape is None or not site.fiber.whole or site.form is NormForm.DECOMPOSED:
        return None
    dims = [dim if axis in axes else 1 for axis, dim in enumerate(shape)]
    sizes = [dim for dim in dims if isinstance(dim, int)]
    beta = None if found is None else found.beta
    if len(sizes) < len(dims) or (found is not None and found.channels.size != np.prod(sizes)):
        return None
    channels = Channels.along(enumerate(sizes))
    return AffineSource(site, site.output, channels, np.ones(channels.size), beta)


def _ends_in_norm(site: NormSite) -> bool:
    """Whether a spelled-out centering ends in a norm operator, with gamma and beta as operands."""
    last = site.nodes[-1]
    operands = [*last.inputs, None, None]
    stated = ((site.gamma, operands[_GAMMA]), (site.beta, operands[_BETA]))
    return (
        (last.domain, last.op_type) in NORM_OPERATORS
        and last.outputs[0] is site.output
        and all(part is None or part is operand for part, operand in stated)
    )


def _unknown(site: NormSite, sentence: str) -> Refusal:
    label = (node_label(site.nodes[-1]),)
    return Refusal(RefusalCode.UNKNOWN_SHAPE, f"norm '{site.name}' {sentence}", label)


def _of_operands(view: ModelInfo, site: NormSite) -> AffineSource | Refusal | None:
    node = site.nodes[-1]
    if node.op_type in WITHOUT_AFFINE:
        return None
    parts: dict[int, Array] = {}
    for index, part in ((_GAMMA, site.gamma), (_BETA, site.beta)):
        if part is None:
            continue
        array = unrounded_numbers(view, part) if isinstance(part, ir.Value) else part
        if array is None:
            return _not_constant(site, part)
        parts[index] = array
    shape = view.shape(site.input)
    if shape is None:
        return _unknown(site, "has an input of unknown rank")
    if site.affine_axis is not None:
        repeat, axis = site.affine_repeat, site.affine_axis % len(shape)
        parts = {index: _column(array, axis, repeat, len(shape)) for index, array in parts.items()}
    made = _vectors(parts, shape)
    if made is None:
        return _unknown(site, "has a gamma or beta whose shape differs from its input's")
    channels, vectors = made
    return AffineSource(site, site.output, channels, vectors.get(_GAMMA), vectors.get(_BETA))


def _not_constant(site: NormSite, part: ir.Value | Array) -> Refusal:
    producer = producer_of(part) if isinstance(part, ir.Value) else None
    quantised = producer is not None and facets.quantised(row_of(producer))
    code = RefusalCode.QUANTISED if quantised else RefusalCode.DYNAMIC_WEIGHT
    what = "quantized" if quantised else "not a constant"
    sentence = f"norm '{site.name}' has a gamma or beta that is {what}"
    return Refusal(code, sentence, (node_label(site.nodes[-1]),))


def _column(array: Array, axis: int, repeat: int, rank: int) -> Array:
    return np.repeat(array.reshape(-1), repeat).reshape((-1, *(1,) * (rank - 1 - axis)))


def _of_nodes(view: ModelInfo, site: NormSite) -> AffineSource | Refusal | None:
    """Find the constant Mul and Add at the end of a spelled-out norm."""
    value = _before_carriers(site)
    shape = view.shape(value)
    if shape is None:
        return _unknown(site, "has an output of unknown rank")
    found = _last(view, site, value)
    inside = (site.gamma is not None and _GAMMA not in found) or not found
    found = _inside(view, site) if inside else found
    if not found:
        sentence = f"norm '{site.name}' does not apply gamma and beta by a separate Mul and Add"
        return Refusal(RefusalCode.NO_CHEAPER_FORM, sentence, (node_label(site.nodes[-1]),))
    made = _vectors({index: array for index, (_, array) in found.items()}, shape)
    if made is None:
        return _unknown(site, "has a gamma or beta whose shape differs from its input's")
    channels, vectors = made
    nodes = tuple(node for applying, _ in found.values() for node in applying)
    return AffineSource(
        site, value, channels, vectors.get(_GAMMA), vectors.get(_BETA), nodes, inside
    )


def _last(view: ModelInfo, site: NormSite, value: ir.Value) -> _Parts:
    """Return the Add and the Mul that compute a value last, one after the other."""
    found: _Parts = {}
    for op_type, index in _OPERATORS:
        step = _constant_operand(view, value, op_type, site)
        if step is None or (found and not is_read_once(value)):
            continue
        node, array, value = step
        found[index] = [node], array
    return found


def _inside(view: ModelInfo, site: NormSite) -> _Parts:
    """Return the only node that adds beta, and each Mul by gamma; {} if there are other readers."""
    found: _Parts = {}
    if site.kind is NormKind.DYT:
        return found  # gamma may move without beta, which then becomes beta / gamma
    for (op_type, index), part in zip(_OPERATORS, (site.beta, site.gamma), strict=True):
        if part is None:
            continue
        array = unrounded_numbers(view, part) if isinstance(part, ir.Value) else None
        readers = part.consumers() if isinstance(part, ir.Value) else ()
        here = [node for node in readers if node in site.nodes]
        once = len(here) == 1 or (index == _GAMMA and all(_scales(view, node) for node in here))
        if array is None or not here or not once or not _applies(here[0], op_type, part):
            return {}
        found[index] = here, array
    return found


def _scales(view: ModelInfo, node: ir.Node) -> bool:
    """Whether a node multiplies what the norm computes, as x r gamma - mean r gamma does twice."""
    computed = [value for value in operands(node) if view.array(value) is None]
    return operator(node) == "Mul" and len(computed) == 1


def _applies(node: ir.Node, op_type: str, part: object) -> bool:
    """Whether a node adds or multiplies by a part; b - h adds b, as tf.nn.batch_normalization.

    An RMSNorm after a centering, as ONNX Runtime's optimizer leaves it, multiplies by its scale.
    """
    scales = (node.domain, node.op_type) in NORM_OPERATORS and operand_of(node, _GAMMA) is part
    return operator(node) == op_type or (
        scales if op_type == "Mul" else operator(node) == "Sub" and node.inputs[0] is part
    )


def _before_carriers(site: NormSite) -> ir.Value:
    """Return the result of a spelled-out norm before a Cast, a Reshape or a Neg at its end."""
    value, node = site.output, site.output.producer()
    while node in site.nodes:
        row = row_of(node)
        if row.data != (0,) or not facets.passes_scale(row):
            break
        value = known_operand(node, 0)
        node = value.producer()
    return value


def _constant_operand(
    view: ModelInfo, value: ir.Value, op_type: str, site: NormSite
) -> tuple[ir.Node, Array, ir.Value] | None:
    node = value.producer()
    if node is None or node not in site.nodes or (node.domain, node.op_type) != ("", op_type):
        return None
    for index, operand in enumerate(node.inputs):
        other = node.inputs[1 - index]
        array = unrounded_numbers(view, operand)
        if array is not None and other is not None and view.rank(other) == view.rank(value):
            return node, array, other
    return None


def _vectors(parts: dict[int, Array], shape: Shape) -> tuple[Channels, dict[int, Float64]] | None:
    """Return the channels along which any part varies, and each part as a vector over them."""
    rank = len(shape)
    aligned = {
        index: array.reshape((1,) * (rank - array.ndim) + array.shape)
        for index, array in parts.items()
        if array.ndim <= rank
    }
    if len(aligned) < len(parts):
        return None
    sizes = [max(array.shape[axis] for array in aligned.values()) for axis in range(rank)]
    last = shape[-1] if rank else None
    if max(sizes, default=1) == 1 and isinstance(last, int):
        sizes[-1] = last  # one number for all elements is the same for every channel
    if any(size not in (1, dim) for size, dim in zip(sizes, shape, strict=True)):
        return None
    if any(n not in (1, m) for a in aligned.values() for n, m in zip(a.shape, sizes, strict=True)):
        return None
    channels = Channels.along(enumerate(sizes))
    vectors = {
        index: np.broadcast_to(array, sizes).astype(np.float64).reshape(-1)
        for index, array in aligned.items()
    }
    return channels, vectors
