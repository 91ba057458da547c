"""Where Triton runs a model; light to import, so that the command line can list the choices."""

from enum import StrEnum


class TritonDevice(StrEnum):
    """Where Triton runs the instances of a model."""

    CPU = "cpu"
    GPU = "gpu"
