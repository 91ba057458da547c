"""The number that fills a value."""

import numpy as np
import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.operators.families.layout import filler
from onnxfold.operators.families.rules import elements_of
from onnxfold.operators.row import Elements, Family
from onnxfold.operators.table import row_of


def uniform(view: ModelInfo, value: ir.Value | None) -> float | None:
    """Return the number that fills a value of any shape, or None."""
    while value is not None:
        array = view.array(value)
        if array is not None:
            numbers = array.reshape(-1)
            filled = numbers.size > 0 and bool(np.all(numbers == numbers[0]))
            return float(numbers[0]) if filled else None
        node = value.producer()
        if node is None or node.domain != "":
            return None
        if node.op_type == "ConstantOfShape":
            return filler(node)
        row = row_of(node)
        copies = row.family is Family.CAST or elements_of(view, node)[0] <= Elements.COPIES
        if row.data != (0,) or not copies:
            return None
        value = node.inputs[0]
    return None
