"""Which ONNX Runtime is installed, without the time that its import takes."""

from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino")


def onnxruntime_version() -> tuple[int, int] | None:
    """Return the major and minor version of the first package of ONNX Runtime, or None."""
    for package in _PACKAGES:
        try:
            major, minor, *_ = version(package).split(".")
        except (PackageNotFoundError, ValueError):
            continue
        return int(major), int(minor)
    return None
