"""Inputs to run a model on: what the user gives, and seeded samples for the rest."""

from onnxfold.inputs.draw import (
    FEWER_INDICES,
    IMAGE_SIDES,
    ROWS,
    check_inputs,
    make_inputs,
)
from onnxfold.inputs.spec import InputSpec

__all__ = ["FEWER_INDICES", "IMAGE_SIDES", "ROWS", "InputSpec", "check_inputs", "make_inputs"]
