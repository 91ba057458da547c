"""Conditions on attributes and constants of a node under which the row of its operator is wrong."""

from collections.abc import Callable, Mapping

import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.operators.families.elementwise import between_floats, trains
from onnxfold.operators.families.layout import (
    pad_value,
    pads_constant,
    pads_of,
    scatters_linearly,
)
from onnxfold.operators.row import Condition


def _averages_padding(view: ModelInfo, node: ir.Node) -> bool:
    """Whether an AveragePool may include padding in its averages, as in a last, partial window."""
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    pads = any(node.attributes.get_ints("pads", ()) or ()) or auto not in ("NOTSET", "VALID")
    partial = node.attributes.get_int("ceil_mode", 0) != 0
    return partial or (pads and node.attributes.get_int("count_include_pad", 0) != 0)


def _extrapolates(view: ModelInfo, node: ir.Node) -> bool:
    transform = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    return transform == "tf_crop_and_resize"


def _not_of_floats(view: ModelInfo, node: ir.Node) -> bool:
    return not between_floats(node)


def _pads_numbers(view: ModelInfo, node: ir.Node) -> bool:
    return pads_constant(node) and pad_value(view, node) != 0.0


def _pads_zeros(view: ModelInfo, node: ir.Node) -> bool:
    """Whether a Pad may add anything that is not in its input."""
    pads = pads_of(view, node)
    return pads_constant(node) and (pads is None or any(pads))


def _reduces_otherwise(view: ModelInfo, node: ir.Node) -> bool:
    return not scatters_linearly(node)


def _trains(view: ModelInfo, node: ir.Node) -> bool:
    return trains(view, node)


CONDITIONS: Mapping[Condition, Callable[[ModelInfo, ir.Node], bool]] = {
    Condition.AVERAGES_PADDING: _averages_padding,
    Condition.EXTRAPOLATES: _extrapolates,
    Condition.NOT_OF_FLOATS: _not_of_floats,
    Condition.PADS_NUMBERS: _pads_numbers,
    Condition.PADS_ZEROS: _pads_zeros,
    Condition.REDUCES_OTHERWISE: _reduces_otherwise,
    Condition.TRAINS: _trains,
}
