"""The CUDA kernels on a GPU; under the sanitizers: `python -m benchmarks.gpu_check`."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxfold.runtime.cuda import driver
from tests.custom_ops.cuda_device_list import ON_DEVICE_ALONE, NotHereError
from tests.custom_ops.cuda_kernels import CudaMemory, Kernels
from tests.custom_ops.cuda_list import CHECKS, Check

BUILT = Path(__file__).parents[2] / "build" / "cuda" / "libonnxfold_cuda_driver.so"

pytestmark = [
    pytest.mark.skipif(not driver().devices, reason="no CUDA device"),
    pytest.mark.skipif(not BUILT.exists(), reason="make cuda has not built the driver"),
]


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    return Kernels(BUILT, CudaMemory())


@pytest.mark.parametrize("check", [*CHECKS, *ON_DEVICE_ALONE], ids=lambda check: check.__name__)
def test_kernels_on_the_device_hold_what_the_list_says(check: Check, kernels: Kernels) -> None:
    try:
        check(kernels, False)
    except NotHereError as reason:
        pytest.skip(str(reason))
