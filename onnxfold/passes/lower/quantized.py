"""Quantized norms: a norm and the only reader that quantizes it, as one call that writes codes.

    Y = QuantizeLinear(norm, y_scale, y_zero_point)          one scale for the tensor
    s = ReduceMax(Abs(norm)) / levels [, at least a constant]  one for each row, and codes by
        Cast(Clip(Round(norm / s))) to int8,  Cast(Clip(norm / s)) to float8,
        or  QuantizeLinear(norm, s, block_size = the row's length)

Layouts may come between the norm and QuantizeLinear (exporters flatten to 2-D before a product):
codes of numbers in another order are the codes in that order.

The float norm is not written, so it must not have another reader. Returns edits, mutates nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxfold.errors import InvariantError
from onnxfold.graph import ModelInfo, operator
from onnxfold.graph.operands import known_producer, only_reader, operand, operands
from onnxfold.operators.facets import stands_before_a_weight
from onnxfold.operators.functions import (
    DOMAIN,
    SIGNATURES,
    Output,
    Signature,
    axes_of,
    call,
    op_name,
)
from onnxfold.operators.new_nodes import Lowered, weight_value
from onnxfold.operators.table import row_of
from onnxfold.passes.lower.residual import ready
from onnxfold.passes.lower.row_scales import reduces_rows
from onnxfold.targets.norm_settings import NormSetting, of_one_setting, setting_of_call

_CODES = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.FLOAT8E4M3FN)
# In ONNX Runtime 1.32, which has kernels only for these.
_LAYOUTS_OF_FLOAT8 = ("Reshape", "Transpose")
_LAYOUTS_OF_FLOAT8_SINCE = 21
_DEFAULT_CODE = ir.DataType.UINT8  # of QuantizeLinear without a zero point
# By the code: the largest, and the limits of a Clip that has no effect if each row has its scale.
_LEVELS = {ir.DataType.INT8: 127.0, ir.DataType.FLOAT8E4M3FN: 448.0}
_LIMITS = {
    ir.DataType.INT8: ((-128.0, 127.0), (-127.0, 127.0)),
    ir.DataType.FLOAT8E4M3FN: ((-448.0, 448.0),),
}

_Chain = tuple[ir.Node, ...]
"""Nodes of which each is the only reader of its predecessor."""


@dataclass(frozen=True, slots=True)
class QuantizeFusion:
    """A norm's call, the nodes that quantize its result, and the call that replaces them.

    ``scale`` is y_scale, or the scale of rows that the call computes with ``levels`` and ``least``.
    """

    norm: ir.Node
    name: str
    scale: ir.Value
    zero_point: ir.Value
    codes: ir.Value
    replaced: tuple[ir.Node, ...]
    levels: float = 127.0
    least: float = 0.0
    layouts: tuple[ir.Node, ...] = ()

    @property
    def setting(self) -> NormSetting:
        """The setting of the call."""
        return setting_of_call(self.norm)

    @property
    def place(self) -> ir.Node:
        """The node before which the call is inserted: the last, or a norm with several results."""
        alone = len(self.norm.outputs) == 1 and "Y_scale" not in SIGNATURES[self.name].outputs
        return self.replaced[-1] if alone else self.norm

    def lower(self) -> Lowered:
        """Return the call."""
        signature = SIGNATURES[self.name]
        given = () if "Y_scale" in signature.outputs else (self.scale,)
        inputs = [value for value in self.norm.inputs if value is not None]
        node = call(
            self.name,
            [*inputs, *given, self.zero_point],
            axes=axes_of(self.norm),
            epsilon=self.norm.attributes.get_float("epsilon", 0.0),
            levels=self.levels,
            least=self.least,
        )
        node.name = self.norm.name
        nodes = (node, *_in_layout(self.layouts, node.outputs[0], self.zero_point.type))
        stands_for = [(self.codes, nodes[-1].outputs[0])]
        if not given:
            stands_for.append((self.scale, node.outputs[1]))
        total = node.outputs[-1]
        if SIGNATURES[self.norm.op_type].with_sum:
            stands_for.append((self.norm.outputs[1], total))
        elif signature.with_sum:  # the float sum of a norm that had none
            x = self.norm.inputs[0]
            total.name = f"{self.norm.outputs[0].name}.sum"
            total.type, total.shape = (None, None) if x is None else (x.type, x.shape)
        made = (self.zero_point,) if _is_new(self.zero_point) else ()
        return Lowered(nodes, tuple(stands_for), made)


def _in_layout(
    layouts: tuple[ir.Node, ...], codes: ir.Value, kind: ir.TypeProtocol | None
) -> Iterator[ir.Node]:
    """Create nodes that change the codes' layout as others change the norm's."""
    for layout in layouts:
        codes.name = f"{layout.inputs[0].name}.codes" if layout.inputs[0] is not None else None
        codes.type, codes.shape = kind, None if layout.inputs[0] is None else layout.inputs[0].shape
        inputs = (codes, *layout.inputs[1:])
        node = ir.node(layout.op_type, inputs, dict(layout.attributes), name=layout.name)
        yield node
        codes = node.outputs[0]


def quantize_fusions(view: ModelInfo) -> tuple[QuantizeFusion, ...]:
    """Return the fusions in a lowered model, of one setting for each name of a call."""
    found = (
        _of_tensor(view, node, signature) or _of_rows(view, node, signature)
        for node, signature in _norms(view)
    )
    return of_one_setting(view, [fusion for fusion in found if fusion is not None])


def _norms(view: ModelInfo) -> list[tuple[ir.Node, Signature]]:
    calls = [node for node in view.nodes() if node.domain == DOMAIN]
    return [
        (node, SIGNATURES[node.op_type])
        for node in calls
        if node.op_type in SIGNATURES
        and node.inputs[0] is not None
        and node.inputs[0].dtype not in (None, ir.DataType.DOUBLE)
        and not node.outputs[0].is_graph_output()
    ]


def _is_new(value: ir.Value) -> bool:
    return value.graph is None and value.producer() is None


def _name(signature: Signature, output: Output) -> str | None:
    """Return the operator with a quantized Y, which also returns its Sum if possible, or None."""
    plain = signature.output is Output.NORM and not signature.row_scale
    if not plain or signature.row_epsilon:
        return None
    try:
        return op_name(
            statistics=signature.statistics,
            residual=signature.residual,
            linear_bias=signature.linear_bias,
            affine=signature.affine,
            with_sum=signature.residual,
            output=output,
        )
    except InvariantError:
        return None


def _of_tensor(view: ModelInfo, norm: ir.Node, signature: Signature) -> QuantizeFusion | None:
    layouts = _layouts(norm)
    y, name = (layouts or (norm,))[-1].outputs[0], _name(signature, Output.QUANTIZED)
    reader = only_reader(y)
    if name is None or reader is None or not _quantizes(reader, y):
        return None
    scale = reader.inputs[1]
    x = norm.inputs[0]
    if scale is None or x is None or not _is_single(view, scale) or scale.dtype != x.dtype:
        return None
    zero_point = _zero_point(view, reader, f"{y.name}.zero_point")
    if zero_point is None or not _takes(view, layouts, zero_point):
        return None
    codes, replaced = reader.outputs[0], (norm, *layouts, reader)
    fusion = QuantizeFusion(norm, name, scale, zero_point, codes, replaced, layouts=layouts)
    others = [value for layout in layouts for value in layout.inputs[1:]]
    return fusion if ready((scale, zero_point, *others), fusion.place) else None


def _layouts(norm: ir.Node) -> tuple[ir.Node, ...]:
    """Return the nodes that change the layout of a norm, each the only reader of the last."""
    found: list[ir.Node] = []
    value = norm.outputs[0]
    while (node := only_reader(value)) is not None and _is_layout(node, value):
        found.append(node)
        value = node.outputs[0]
    return tuple(found)


def _is_layout(node: ir.Node, value: ir.Value) -> bool:
    row, producer = row_of(node), value.producer()
    here = producer is not None and node.graph is producer.graph and node.domain == ""
    once = node.inputs[0] is value and value not in node.inputs[1:] and len(node.outputs) == 1
    return here and once and stands_before_a_weight(row)


def _takes(view: ModelInfo, layouts: tuple[ir.Node, ...], zero_point: ir.Value) -> bool:
    """Whether the operators accept the codes, and ONNX Runtime has kernels for them."""
    if not layouts or zero_point.dtype is not ir.DataType.FLOAT8E4M3FN:
        return True
    known = all(layout.op_type in _LAYOUTS_OF_FLOAT8 for layout in layouts)
    return known and view.opset >= _LAYOUTS_OF_FLOAT8_SINCE


def _quantizes(node: ir.Node, y: ir.Value) -> bool:
    if operator(node) != "QuantizeLinear" or node.inputs[0] is not y:
        return False
    return _is_plain(node) and node.graph is known_producer(y).graph


def _is_plain(node: ir.Node) -> bool:
    """Whether too large values become the largest code, and quotients are not rounded first."""
    attributes = node.attributes
    return attributes.get_int("saturate", 1) == 1 and attributes.get_int("precision", 0) == 0


def _zero_point(view: ModelInfo, node: ir.Node, name: str) -> ir.Value | None:
    """Return the single zero point of QuantizeLinear, if the kernels support its type."""
    given = operand(node, 2)
    if given is not None:
        return given if given.dtype in _CODES and _is_single(view, given) else None
    code = ir.DataType(node.attributes.get_int("output_dtype", 0) or _DEFAULT_CODE.value)
    return weight_value(name, np.zeros((), code.numpy())) if code in _CODES else None


def _is_single(view: ModelInfo, value: ir.Value) -> bool:
    shape = view.shape(value)
    return shape is not None and all(size == 1 for size in shape)


def _followed(chain: _Chain, op_type: str) -> _Chain | None:
    """Return a chain with the only reader of its result, if that is such an operator."""
    node = only_reader(chain[-1].outputs[0])
    return None if node is None or operator(node) != op_type else (*chain, node)


def _of_rows(view: ModelInfo, norm: ir.Node, signature: Signature) -> QuantizeFusion | None:
    """Match one scale per row: two readers of the norm, its magnitudes and the division."""
    y, name = norm.outputs[0], _name(signature, Output.QUANTIZED_ROWS)
    readers = {use.node.op_type: use.node for use in y.uses()}
    absolute = readers.pop("Abs", None)
    if name is None or absolute is None or len(readers) != 1 or len(y.uses()) != 2:
        return None
    measured = _scale_of_rows(view, absolute, norm)
    if measured is None:
        return None
    chain, levels, least = measured
    (divided,), scale = readers.values(), chain[-1].outputs[0]
    if len(divided.inputs) < 2 or divided.inputs[1] is not scale:
        return None
    codes = _codes_of_rows(view, divided, y)
    if codes is None or any(node.graph is not norm.graph for node in codes[0]):
        return None
    nodes, code = codes
    if _LEVELS[code] != levels:
        return None
    zero_point = weight_value(f"{y.name}.zero_point", np.zeros((), code.numpy()))
    replaced = (norm, *chain, *nodes)
    quantized = nodes[-1].outputs[0]
    return QuantizeFusion(norm, name, scale, zero_point, quantized, replaced, levels, least)


def _scale_of_rows(
    view: ModelInfo, absolute: ir.Node, norm: ir.Node
) -> tuple[_Chain, float, float] | None:
    """Match ReduceMax [Max] Div [Max] after Abs; a floor before the division is divided too.

    Return the nodes, the divisor and the floor.
    """
    chain = _followed((absolute,), "ReduceMax")
    rank = view.rank(absolute.outputs[0])
    if chain is None or rank is None or not reduces_rows(view, chain[-1], rank, axes_of(norm)):
        return None
    before, chain = _floor(view, chain)
    divided = _followed(chain, "Div")
    if divided is None or divided[-1].inputs[0] is not chain[-1].outputs[0]:
        return None
    levels = view.scalar(divided[-1].inputs[1])
    if levels is None or not levels > 0:
        return None
    after, chain = _floor(view, divided)
    least = max(after, float(np.float32(before) / np.float32(levels)))
    return chain, levels, least


def _floor(view: ModelInfo, chain: _Chain) -> tuple[float, _Chain]:
    """Follow a Max with a constant or a one-sided Clip; the constant is the floor."""
    more = _followed(chain, "Max") or _followed(chain, "Clip")
    if more is None or len(present := operands(more[-1])) != 2:
        return 0.0, chain
    others = [value for value in present if value is not chain[-1].outputs[0]]
    at_most = more[-1].op_type == "Clip" and more[-1].inputs[1] is None
    floor = view.scalar(others[0]) if len(others) == 1 and not at_most else None
    return (0.0, chain) if floor is None or floor < 0 else (floor, more)


def _codes_of_rows(
    view: ModelInfo, divided: ir.Node, y: ir.Value
) -> tuple[_Chain, ir.DataType] | None:
    """Return the nodes that make codes of a quotient, and their type."""
    if divided.inputs[0] is not y:
        return None
    if operator(divided) == "Div":
        return _cast(view, divided)
    return _blocked(view, divided) if operator(divided) == "QuantizeLinear" else None


def _cast(view: ModelInfo, divided: ir.Node) -> tuple[_Chain, ir.DataType] | None:
    """Match Clip to the range of the scale, and Cast, after Div; with Round before, to INT8."""
    rounded = _followed((divided,), "Round")
    code = ir.DataType.FLOAT8E4M3FN if rounded is None else ir.DataType.INT8
    chain = rounded or (divided,)
    clipped = _followed(chain, "Clip")
    if clipped is not None:
        given = (*clipped[-1].inputs[1:], None, None)[:2]
        if tuple(view.scalar(value) for value in given) not in _LIMITS[code]:
            return None
    cast = _followed(clipped or chain, "Cast")
    if cast is None or cast[-1].attributes.get_int("to", 0) != code.value:
        return None
    return (cast, code) if _is_plain(cast[-1]) else None


def _blocked(view: ModelInfo, node: ir.Node) -> tuple[_Chain, ir.DataType] | None:
    """Match QuantizeLinear whose blocks are the rows, with zero point 0 or none."""
    shape = view.shape(node.inputs[0])
    rank = 0 if shape is None else len(shape)
    axis = node.attributes.get_int("axis", 1)
    size = node.attributes.get_int("block_size", 0)
    whole = shape is not None and axis % rank == rank - 1 and shape[-1] == size != 0
    if not whole or not _is_plain(node):
        return None
    given = operand(node, 2)
    zeros = None if given is None else view.array(given)
    if given is not None and (zeros is None or np.any(zeros.astype(np.float32))):
        return None
    number = node.attributes.get_int("output_dtype", 0) or _DEFAULT_CODE.value
    code = ir.DataType(number) if given is None else given.dtype
    return ((node,), code) if code in _LEVELS else None
