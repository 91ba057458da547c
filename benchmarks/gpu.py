"""The GPU at hand: its kernels built for it alone, and the conditions of a measurement on it."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from onnxfold.runtime.cuda import CudaDevice, driver

__all__ = ["BUILD", "build", "device", "device_named", "gpu_conditions"]

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "cuda"
DRIVER = "libonnxfold_cuda_driver.so"


def device() -> CudaDevice:
    """The first device. Raises SystemExit without one."""
    found = driver()
    if not found.devices:
        raise SystemExit("no CUDA device")
    return found.devices[0]


def device_named(provider: str) -> str:
    """Name the first device and its driver for a provider of CUDA, nothing for others."""
    return f"{device().name}, {_driver_version()}" if provider.upper().startswith("CUDA") else ""


def build(folder: Path = BUILD) -> Path:
    """The driver in `folder`, compiled for the first device where it is missing or older."""
    cmake = shutil.which("cmake")
    if cmake is None:
        raise SystemExit("building the kernels needs CMake and nvcc")
    folder = folder.resolve()
    if not (folder / "CMakeCache.txt").exists():
        options = ["-DONNXFOLD_CUDA=ON", "-DONNXFOLD_DRIVER=ON"]
        options.append(f"-DONNXFOLD_CUDA_ARCHITECTURES={device().capability}")
        source = str(ROOT / "custom_ops")
        subprocess.run([cmake, "-S", source, "-B", str(folder), *options], check=True)
    jobs = str(min(8, os.cpu_count() or 1))
    subprocess.run([cmake, "--build", str(folder), "--parallel", jobs], check=True)
    return folder / DRIVER


def gpu_conditions() -> dict[str, Any]:
    """The columns of a row about the device and what runs on it."""
    return {
        "device": device().name,
        "cuda_driver": _driver_version(),
        "torch": _installed("torch"),
        "triton": _installed("triton"),
        "onnxruntime": _installed("onnxruntime-gpu") or _installed("onnxruntime"),
    }


@lru_cache(maxsize=1)
def _driver_version() -> str:
    """Return the driver's version from nvidia-smi, otherwise the newest CUDA it supports."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return f"CUDA {driver().version}"
    return done.stdout.strip()


def _installed(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""
