"""doctor: what is installed, what is missing and how to install it, and whether the kernels work.

An optional part that is absent (ONNX Runtime, a kernel library) is not an error; a part that is
present and does not work is an error.
"""

from __future__ import annotations

import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from onnxfold.errors import OnnxfoldError, UsageError
from onnxfold.native import built
from onnxfold.runtime import cuda
from onnxfold.runtime.library import CUDA_PROVIDERS, SelfTest, get_library_path, self_test

_PACKAGES = ("onnxfold", "onnx", "onnx-ir", "numpy", "scipy")
_RUNTIMES = ("onnxruntime", "onnxruntime-gpu")
_INSTALL_RUNTIME = "pip install 'onnxfold[ort]'"


def examine() -> dict[str, Any]:
    """Return versions, execution providers, kernel libraries, GPUs and the self-tests' results.

    ``healthy`` is False if something that is installed does not work.
    """
    problems: list[str] = []
    runtime = _runtime(problems)
    kernels = {device: _library(device, problems) for device in ("cpu", "cuda")}
    driver = cuda.driver()
    test, cuda_test = None, None
    if runtime["version"] is not None and kernels["cpu"]["path"] is not None:
        test = _tested("CPUExecutionProvider", problems)
    build = _cuda_build(kernels["cuda"]["path"])
    if build is not None and driver.version is not None and driver.devices:
        found = [cuda.obstacle(build, driver.version, device) for device in driver.devices]
        problems += dict.fromkeys(sentence for sentence in found if sentence is not None)
        if CUDA_PROVIDERS[0] in runtime["providers"]:
            cuda_test = _tested(CUDA_PROVIDERS[0], problems)
    return {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "packages": {name: _version(name) for name in _PACKAGES},
        "onnxruntime": runtime,
        "kernels": kernels,
        "weights": _path(built("libonnxfold_weights.so")),
        "cuda": {
            "driver": driver.version,
            "devices": [asdict(device) for device in driver.devices],
            "compiled": None if build is None else asdict(build),
        },
        "self_test": None if test is None else asdict(test),
        "cuda_self_test": None if cuda_test is None else asdict(cuda_test),
        "problems": problems,
        "healthy": not problems,
    }


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _runtime(problems: list[str]) -> dict[str, Any]:
    """Describe ONNX Runtime; it is a problem if it is installed and cannot be imported."""
    found: dict[str, Any] = {"version": None, "providers": [], "install": _INSTALL_RUNTIME}
    try:
        import onnxruntime as ort
    except ImportError as error:
        installed = [name for name in _RUNTIMES if _version(name) is not None]
        if installed:
            problems.append(f"{installed[0]} is installed and cannot be imported: {error}")
        return found
    return {
        "version": ort.__version__,
        "providers": list(ort.get_available_providers()),
        "install": None,
    }


def _library(device: str, problems: list[str]) -> dict[str, str | None]:
    try:
        return {"path": get_library_path(device), "problem": None}
    except UsageError as error:  # requested by the environment, but missing
        if str(error) not in problems:
            problems.append(str(error))
        return {"path": None, "problem": str(error)}
    except OnnxfoldError as error:
        return {"path": None, "problem": str(error)}


def _cuda_build(library: str | None) -> cuda.Build | None:
    return None if library is None else cuda.compiled_for(library)


def _tested(provider: str, problems: list[str]) -> SelfTest | None:
    try:
        test = self_test(provider)
    except OnnxfoldError as error:
        problems.append(str(error))
        return None
    if not test.passed:
        problems.append(
            f"{len(test.failures)} of {test.cases} kernel tests fail: {test.failures[0]}"
        )
    return test
