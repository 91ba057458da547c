"""CUDA on this machine according to its driver, and the targets of a kernel library.

CUDA is not required: without a driver the list of devices is empty.
"""

import ctypes
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_MARK = re.compile(rb"onnxfold-cuda runtime (\d+) architectures ([\d ]*) ptx (\d+)\0")
_DRIVER = "libcuda.so.1"
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


@dataclass(frozen=True, slots=True)
class Build:
    """Machine code for compute capabilities, times ten, and PTX for all from `ptx` on."""

    runtime: str
    architectures: tuple[int, ...]
    ptx: int

    def runs_on(self, capability: int) -> bool:
        """Whether it runs: machine code on its own major capability from its minor on.

        PTX on all later ones.
        """
        return capability >= self.ptx or self.has_code_for(capability)

    def has_code_for(self, capability: int) -> bool:
        """Whether it contains machine code for it; PTX needs a driver as new as the toolkit."""
        return any(
            capability // 10 == known // 10 and capability >= known for known in self.architectures
        )


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """A GPU and its compute capability, times ten."""

    name: str
    capability: int


@dataclass(frozen=True, slots=True)
class Driver:
    """The newest CUDA version that the driver supports (or None), and its devices."""

    version: str | None
    devices: tuple[CudaDevice, ...] = ()


def compiled_for(library: str) -> Build | None:
    """Return the CUDA targets recorded in a kernel library; None if it has none.

    Raises OSError if the file cannot be read.
    """
    return _compiled_for(library, Path(library).stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _compiled_for(library: str, modified: int) -> Build | None:
    found = _MARK.search(Path(library).read_bytes())
    if found is None:
        return None
    runtime, architectures, ptx = found.groups()
    return Build(_version(int(runtime)), tuple(map(int, architectures.split())), int(ptx))


def driver() -> Driver:
    """The CUDA driver and its devices; a driver that cannot start yields no devices."""
    try:
        library = ctypes.CDLL(_DRIVER)
    except OSError:
        return Driver(None)
    version, count = ctypes.c_int(), ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return Driver(None)
    if library.cuInit(0) != 0 or library.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return Driver(_version(version.value))
    devices = tuple(_device(library, index) for index in range(count.value))
    return Driver(_version(version.value), devices)


def obstacle(build: Build, version: str, device: CudaDevice) -> str | None:
    """Return why kernels do not run on a device with the driver for CUDA `version`, or None.

    A driver runs code built by toolkits of its own major version and of older ones.
    """
    made, runs = _parts(build.runtime), _parts(version)
    if runs[0] < made[0]:
        return (
            f"the cuda kernels were built with CUDA {build.runtime} and the driver is for CUDA "
            f"{version}: update the driver, or build them with CUDA {runs[0]}"
        )
    capability = f"{device.name}, compute capability {capability_text(device.capability)}"
    if not build.runs_on(device.capability):
        return f"the cuda kernels were not compiled for {capability}"
    if runs < made and not build.has_code_for(device.capability):
        return (
            f"the cuda kernels have PTX of CUDA {build.runtime} alone for {capability}, which the "
            f"driver for CUDA {version} does not compile: update the driver"
        )
    return None


def capability_text(number: int) -> str:
    """Return a compute capability as people write it, from ten times its value."""
    return f"{number // 10}.{number % 10}"


def _parts(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _device(library: ctypes.CDLL, index: int) -> CudaDevice:
    handle, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(256)
    library.cuDeviceGet(ctypes.byref(handle), index)
    library.cuDeviceGetName(name, len(name), handle)
    library.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, handle)
    library.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, handle)
    return CudaDevice(name.value.decode(errors="replace"), 10 * major.value + minor.value)


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
