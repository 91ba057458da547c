"""From ONNX Runtime's call to the launch, on devices that are pretended (fake_cuda.cpp)."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir
import pytest

from onnxfold.operators.functions import SIGNATURES
from tests.calls import random_inputs
from tests.custom_ops.bounds import assert_outputs_right
from tests.custom_ops.cuda_kernels import HostMemory
from tests.custom_ops.emulated import build_emulation
from tests.custom_ops.fake_runtime import Runtime
from tests.custom_ops.registered import Call, assert_every_op_right


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_emulation(tmp_path_factory.getbasetemp().parent / "emulation")


@pytest.fixture
def devices(library: Path) -> Iterator[ctypes.CDLL]:
    found = ctypes.CDLL(str(library))
    found.fake_cuda_calls.restype = ctypes.c_char_p
    found.fake_cuda_calls()
    yield found
    found.fake_cuda_breaks(False)
    found.fake_cuda_has_pools(True)
    found.cudaGetLastError()


@pytest.fixture(scope="module")  # the library knows a runtime by the address of its table
def runtime(library: Path) -> Runtime:
    return Runtime(str(library))


def layer_norm(runtime: Runtime) -> Call:
    inputs = random_inputs("LayerNorm", (3, 64), ir.DataType.FLOAT)
    return Call(runtime, HostMemory(), "LayerNorm", inputs)


def test_every_op_is_right_as_the_runtime_calls_it(runtime: Runtime) -> None:
    assert_every_op_right(runtime, HostMemory(), device=0, stream=1)


@pytest.fixture(scope="module")
def older(library: Path) -> Runtime:
    return Runtime(str(library), minor=23)


def test_every_op_is_right_where_shapes_are_described(older: Runtime) -> None:
    assert_every_op_right(older, HostMemory(), device=0, stream=1)


def asked_for_shapes(runtime: Runtime) -> list[str]:
    """What a norm of two tensors and two vectors asks for shapes."""
    del runtime.asked[:]
    inputs = random_inputs("AddLayerNormAffine", (3, 64), ir.DataType.FLOAT)
    call = Call(runtime, HostMemory(), "AddLayerNormAffine", inputs)
    assert call.run(device=0, stream=1) is None
    return [what for what in runtime.asked if what.startswith(("shape", "desc", "release"))]


def test_a_runtime_that_lends_shapes_allocates_none(runtime: Runtime, older: Runtime) -> None:
    assert asked_for_shapes(runtime) == [f"shape of {value}" for value in (1, 2, 3, 4)]
    told = [f"{what} of {value}" for value in (1, 2, 3, 4) for what in ("description", "release")]
    assert asked_for_shapes(older) == told


@pytest.mark.parametrize("device", [1, 3])
def test_a_launch_goes_to_the_device_of_the_tensors(
    device: int, runtime: Runtime, devices: ctypes.CDLL
) -> None:
    assert layer_norm(runtime).run(device=device, stream=device + 1) is None
    told = f"set {device}\nlaunch on {device}\nset 0\n"
    assert devices.fake_cuda_calls().decode() == told


def test_a_current_device_is_left_alone(runtime: Runtime, devices: ctypes.CDLL) -> None:
    assert layer_norm(runtime).run(device=0, stream=1) is None
    assert devices.fake_cuda_calls() == b"launch on 0\n"


def long_layer_norm(runtime: Runtime) -> Call:
    inputs = random_inputs("AddLayerNormWithSum", (1, 40_000), ir.DataType.FLOAT)
    return Call(runtime, HostMemory(), "AddLayerNormWithSum", inputs)


def test_parts_of_a_row_are_measured_and_written_by_two_launches(
    runtime: Runtime, devices: ctypes.CDLL
) -> None:
    call = long_layer_norm(runtime)
    assert call.run(device=3, stream=4) is None
    told = "set 3\nmemory on 3\nlaunch on 3\nlaunch on 3\nfree\nset 0\n"
    assert devices.fake_cuda_calls().decode() == told
    assert_outputs_right("AddLayerNormWithSum", call.inputs, call.outputs())
    devices.fake_cuda_breaks(True)
    assert "broken" in str(long_layer_norm(runtime).run(device=3, stream=4))
    told = "set 3\nmemory on 3\nlaunch on 3\nfree\nset 0\n"
    assert devices.fake_cuda_calls().decode() == told


def test_a_device_without_pools_of_memory_has_one_block_for_a_row(
    runtime: Runtime, devices: ctypes.CDLL
) -> None:
    devices.fake_cuda_has_pools(False)
    call = long_layer_norm(runtime)
    assert call.run(device=5, stream=6) is None
    assert devices.fake_cuda_calls() == b"set 5\nlaunch on 5\nset 0\n"
    assert_outputs_right("AddLayerNormWithSum", call.inputs, call.outputs())


def test_a_stream_of_another_device_is_told(runtime: Runtime) -> None:
    said = layer_norm(runtime).run(device=0, stream=2)
    assert said == (
        "status 1: onnxfold LayerNorm: CUDA: a stream of another device "
        "(cudaErrorInvalidResourceHandle)"
    )


def test_a_failure_is_told_once_and_leaves_the_device_as_it_was(
    runtime: Runtime, devices: ctypes.CDLL
) -> None:
    devices.fake_cuda_breaks(True)
    said = layer_norm(runtime).run(device=2, stream=3)
    assert said == "status 1: onnxfold LayerNorm: CUDA: broken (cudaErrorLaunchFailure)"
    assert devices.fake_cuda_calls() == b"set 2\nlaunch on 2\nset 0\n"
    assert devices.fake_cuda_error() == 0


# On each of three devices, for each type of X and, where an op quantizes, of its codes.
CALLS = sum(3 * 3 * (3 if signature.quantized else 1) for signature in SIGNATURES.values())
REGISTER = "import sys; from tests.custom_ops.fake_runtime import Runtime; " + (
    "print(len(Runtime(*sys.argv[1:2], *map(int, sys.argv[2:])).ops))"
)


@pytest.mark.parametrize(
    ("minor", "newest", "ops"),
    [(17, 17, CALLS), (23, 23, CALLS), (24, 24, CALLS), (17, 16, 0), (31, 23, 0)],
)
def test_a_runtime_without_the_api_gets_no_kernels(
    minor: int, newest: int, ops: int, library: Path
) -> None:
    command = [sys.executable, "-c", REGISTER, str(library), str(minor), str(newest)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{ops}\n"
    assert ("its kernels are not registered" in done.stderr) == (ops == 0)
