"""The CUDA kernels on a GPU. benchmarks and sanitizers: docs/cuda.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxfold.cuda import driver
from tests.custom_ops.cuda_check import DRIVER, ON_DEVICE_ALONE, ROOT
from tests.custom_ops.cuda_kernels import CudaMemory, Kernels
from tests.custom_ops.cuda_list import CHECKS, Check

BUILT = ROOT / "build" / "cuda" / DRIVER

pytestmark = [
    pytest.mark.skipif(not driver().devices, reason="no CUDA device"),
    pytest.mark.skipif(not BUILT.exists(), reason="make cuda has not built the driver"),
]


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    return Kernels(Path(BUILT), CudaMemory())


@pytest.mark.parametrize("check", [*CHECKS, *ON_DEVICE_ALONE], ids=lambda check: check.__name__)
def test_kernels_on_the_device_hold_what_the_list_says(check: Check, kernels: Kernels) -> None:
    check(kernels, False)
