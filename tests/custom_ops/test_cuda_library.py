"""The library with CUDA kernels on a machine that may lack CUDA entirely."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from onnxfold.errors import OnnxfoldError
from onnxfold.operators.functions import SIGNATURES
from onnxfold.runtime import library as runtime
from onnxfold.runtime.cuda import compiled_for
from onnxfold.runtime.library import CUDA_PROVIDERS, get_library_path, register, self_test
from tests.calls import call_model, random_inputs
from tests.custom_ops.bounds import assert_outputs_right
from tests.runtime.test_runtime import output_of


def built() -> bool:
    try:
        return compiled_for(get_library_path("cuda")) is not None
    except OnnxfoldError:
        return False


pytestmark = pytest.mark.skipif(not built(), reason="make cuda has not built the CUDA kernels")


def test_it_carries_the_table_and_says_what_it_was_compiled_for() -> None:
    path = get_library_path("cuda")
    assert Path(path).read_bytes().count(runtime._table() + b"\0") == 1
    build = compiled_for(path)
    assert build is not None
    assert build.runs_on(80)
    assert build.runs_on(120)


def test_it_exports_one_symbol_and_needs_no_cuda() -> None:
    path = get_library_path("cuda")
    symbols = output_of("nm", "--dynamic", "--defined-only", path)
    assert [line.split()[-1] for line in symbols.splitlines()] == ["RegisterCustomOps"]
    needed = [line for line in output_of("readelf", "-d", path).splitlines() if "NEEDED" in line]
    assert needed
    assert not [line for line in needed if any(w in line for w in ("cuda", "onnx", "python", "++"))]


def test_it_serves_sessions_on_the_cpu() -> None:
    options = ort.SessionOptions()
    register(options, "cuda")
    name = "AddLayerNormAffineWithSum"
    inputs = random_inputs(name, (5, 77), ir.DataType.FLOAT)
    model = call_model(name, (5, 77), ir.DataType.FLOAT, with_body=False)
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    outputs = [np.asarray(output) for output in session.run(None, inputs)]
    assert_outputs_right(name, inputs, outputs)


def asked_of_a_runtime_without_devices() -> list[str]:
    script = Path(__file__).parent / "fake_runtime.py"
    done = subprocess.run(
        [sys.executable, str(script), get_library_path("cuda")],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "-1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_every_op_is_registered_for_every_provider_and_type() -> None:
    lines = [line for line in asked_of_a_runtime_without_devices() if line.startswith("op ")]
    assert sorted(lines) == sorted(
        f"op {name} {provider} {element} {code}"
        for name, signature in SIGNATURES.items()
        for provider in ("CPUExecutionProvider", *CUDA_PROVIDERS)
        for element in (1, 10, 16)
        for code in ((2, 3, 17) if signature.quantized else (0,))
    )


def test_a_launch_goes_to_the_runtime_s_stream_and_its_failure_comes_back() -> None:
    lines = asked_of_a_runtime_without_devices()
    asked = [line.removeprefix("asked ") for line in lines if line.startswith("asked ")]
    assert asked[:8] == [
        "domain onnxfold",
        "options get domain 7",
        "input 0",
        "shape of 1",
        "output 0 (4, 64)",
        "stream",
        "input 0",
        "memory of 1",
    ]
    assert len(asked) == 9
    assert asked[8].startswith("status 1: onnxfold LayerNorm: CUDA: ")


@pytest.mark.skipif(
    CUDA_PROVIDERS[0] not in ort.get_available_providers(), reason="onnxruntime has no CUDA"
)
def test_kernels_pass_their_own_test_on_cuda() -> None:
    result = self_test(CUDA_PROVIDERS[0])
    assert result.passed, result.failures
