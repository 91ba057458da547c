"""Which ONNX Runtime is installed, without the time that its import takes."""

from importlib.metadata import PackageNotFoundError, version

MEASURED = ((1, 17), (1, 32))  # the oldest and the newest version that targets were measured with
_PACKAGES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino")


def onnxruntime_version() -> tuple[int, int]:
    """Return the major and minor version of the ONNX Runtime at hand, or the newest measured."""
    for package in _PACKAGES:
        try:
            major, minor, *_ = version(package).split(".")
        except (PackageNotFoundError, ValueError):
            continue
        return int(major), int(minor)
    return MEASURED[1]
