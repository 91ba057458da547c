"""The Python interface: a function for each command, for every supported kind of model."""

from onnxfold.api.comparing import bench, verify
from onnxfold.api.looking import diff, inspect, measure
from onnxfold.api.rewriting import convert, optimize
from onnxfold.api.searching import rotate, tune

__all__ = [
    "bench",
    "convert",
    "diff",
    "inspect",
    "measure",
    "optimize",
    "rotate",
    "tune",
    "verify",
]
