"""Which ONNX Runtime is installed, without the time that its import takes."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType

from onnxfold.options import Device

# The oldest and the newest version that targets were measured with (models.csv, gpu_models.csv).
MEASURED: Mapping[Device, tuple[tuple[int, int], tuple[int, int]]] = MappingProxyType(
    {Device.CPU: ((1, 17), (1, 32)), Device.CUDA: ((1, 31), (1, 31))}
)
_PACKAGES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino")


def onnxruntime_version() -> tuple[int, int]:
    """Return the major and minor version of the ONNX Runtime at hand, or the newest measured."""
    found = _installed()
    return MEASURED[Device.CPU][1] if found is None else found[1]


def installed_device() -> Device:
    """Return the device that the ONNX Runtime at hand is packaged for; a CPU if there is none."""
    found = _installed()
    return Device.CUDA if found is not None and found[0] == "onnxruntime-gpu" else Device.CPU


def _installed() -> tuple[str, tuple[int, int]] | None:
    for package in _PACKAGES:
        try:
            major, minor, *_ = version(package).split(".")
        except (PackageNotFoundError, ValueError):
            continue
        return package, (int(major), int(minor))
    return None
