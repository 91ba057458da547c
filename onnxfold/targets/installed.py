"""The installed version of ONNX Runtime and its limits, without the cost of its import."""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType

from onnxfold.options import Device

# The oldest and the newest version that targets were measured with (models.csv, gpu_models.csv).
MEASURED: Mapping[Device, tuple[tuple[int, int], tuple[int, int]]] = MappingProxyType(
    {Device.CPU: ((1, 17), (1, 32)), Device.CUDA: ((1, 31), (1, 31))}
)
MOST_NODES = 20_000
"""The longest graph whose optimizations are worth waiting for.

Their time grows with the square of the nodes in ONNX Runtime 1.32: 1.5 s for 12,000 nodes of one
chain, 8 s for 25,000.
"""
_PACKAGES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino")


@cache  # reading it takes as long as planning a norm, and every norm asks
def onnxruntime_version() -> tuple[int, int]:
    """Return the major and minor version of the installed ONNX Runtime, or the newest measured."""
    for package in _PACKAGES:
        try:
            major, minor, *_ = version(package).split(".")
        except (PackageNotFoundError, ValueError):
            continue
        return int(major), int(minor)
    return MEASURED[Device.CPU][1]
