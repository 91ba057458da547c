"""The Python interface: a function for each command, for every supported kind of model."""

from onnxfold.api.looking import bench, diff, inspect, measure, verify
from onnxfold.api.rewriting import convert, optimize, rotate, tune

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
