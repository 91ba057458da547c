"""Inputs to run a model on: given by the user, or drawn with a seed."""

from onnxfold.inputs.draw import (
    FEWER_INDICES,
    IMAGE_SIDES,
    ROWS,
    check_inputs,
    make_inputs,
)
from onnxfold.inputs.spec import InputSpec

__all__ = ["FEWER_INDICES", "IMAGE_SIDES", "ROWS", "InputSpec", "check_inputs", "make_inputs"]
