"""doctor: facts about this installation, and the difference between absent and broken."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from onnxfold.cli.installation import print_examination
from onnxfold.errors import OnnxfoldError
from onnxfold.runtime import cuda, doctor
from onnxfold.runtime.doctor import examine
from onnxfold.runtime.library import SelfTest


def printed(document: dict[str, object]) -> str:
    stream = io.StringIO()
    print_examination(Console(file=stream, width=200), document)
    return stream.getvalue()


def library_is(monkeypatch: pytest.MonkeyPatch, found: str | OnnxfoldError) -> None:
    def path(_device: str) -> str:
        if isinstance(found, OnnxfoldError):
            raise found
        return found

    monkeypatch.setattr(doctor, "get_library_path", path)
    monkeypatch.setattr(cuda, "compiled_for", lambda _path: None)


def self_test_is(monkeypatch: pytest.MonkeyPatch, outcome: SelfTest | OnnxfoldError) -> None:
    def run(_provider: str) -> SelfTest:
        if isinstance(outcome, OnnxfoldError):
            raise outcome
        return outcome

    monkeypatch.setattr(doctor, "self_test", run)


def test_the_document_is_json_and_names_every_version(monkeypatch: pytest.MonkeyPatch) -> None:
    library_is(monkeypatch, OnnxfoldError("not built"))
    document = json.loads(json.dumps(examine()))
    assert document["python"] == ".".join(map(str, sys.version_info[:3]))
    assert all(document["packages"][name] for name in ("onnx", "onnx-ir", "numpy", "scipy"))
    assert "CPUExecutionProvider" in document["onnxruntime"]["providers"]


def test_a_library_that_was_not_built_is_no_illness(monkeypatch: pytest.MonkeyPatch) -> None:
    library_is(monkeypatch, OnnxfoldError("the cpu kernel library is not built"))
    document = examine()
    assert document["healthy"]
    assert document["self_test"] is None
    assert "not built; models run without them" in printed(document)


def test_a_library_that_the_environment_names_wrongly_is_one_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ONNXFOLD_LIBRARY", str(tmp_path / "absent.so"))
    document = examine()
    assert not document["healthy"]
    assert len(document["problems"]) == 1
    assert "absent.so" in printed(document)


def test_a_missing_onnxruntime_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setattr(doctor, "_RUNTIMES", ())
    document = examine()
    assert document["healthy"]
    assert document["onnxruntime"]["version"] is None
    assert "pip install 'onnxfold[ort]'" in printed(document)


def test_an_onnxruntime_that_cannot_be_imported_is_a_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    document = examine()
    assert not document["healthy"]
    assert "cannot be imported" in document["problems"][0]


@pytest.mark.parametrize(
    ("outcome", "sentence"),
    [
        (SelfTest(False, 74, 3.5, ("RMSNorm FLOAT: 3.5 times its bound",)), "1 of 74 kernel tests"),
        (OnnxfoldError("built for another version"), "built for another version"),
    ],
)
def test_kernels_that_fail_their_test_are_a_problem(
    monkeypatch: pytest.MonkeyPatch, outcome: SelfTest | OnnxfoldError, sentence: str
) -> None:
    library_is(monkeypatch, "/somewhere/libonnxfold_ops.so")
    self_test_is(monkeypatch, outcome)
    document = examine()
    assert not document["healthy"]
    text = printed(document)
    assert sentence in text
    assert "healthy" not in text


def test_kernels_that_pass_are_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    library_is(monkeypatch, "/somewhere/libonnxfold_ops.so")
    self_test_is(monkeypatch, SelfTest(True, 74, 0.25, ()))
    text = printed(examine())
    assert "passed: 74 cases, worst error 0.25 of its bound" in text
    assert "healthy" in text


def cuda_is(monkeypatch: pytest.MonkeyPatch, driver: cuda.Driver, build: cuda.Build | None) -> None:
    library_is(monkeypatch, "/somewhere/libonnxfold_ops_cuda.so")
    self_test_is(monkeypatch, SelfTest(True, 74, 0.25, ()))
    monkeypatch.setattr(cuda, "driver", lambda: driver)
    monkeypatch.setattr(cuda, "compiled_for", lambda _path: build)


BUILD = cuda.Build("13.0", (75, 80, 90), 80)


def test_cuda_without_a_driver_is_no_illness(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda_is(monkeypatch, cuda.Driver(None), BUILD)
    document = json.loads(json.dumps(examine()))
    assert document["healthy"]
    assert document["cuda"]["compiled"]["architectures"] == [75, 80, 90]
    assert "no driver; kernels of CUDA 13.0 for 7.5, 8.0, 9.0, PTX 8.0" in printed(document)


def test_devices_are_named_with_what_the_driver_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = (cuda.CudaDevice("One GPU", 90), cuda.CudaDevice("Another", 120))
    cuda_is(monkeypatch, cuda.Driver("13.1", devices), BUILD)
    document = examine()
    assert document["healthy"]
    assert "driver for CUDA 13.1; One GPU (9.0), Another (12.0); kernels" in printed(document)
    cuda_is(monkeypatch, cuda.Driver("13.1"), None)
    lines = [line.strip() for line in printed(examine()).splitlines()]
    assert "cuda          driver for CUDA 13.1; no device" in lines


def test_a_device_that_the_kernels_were_not_compiled_for_is_a_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda_is(monkeypatch, cuda.Driver("13.0", (cuda.CudaDevice("Old GPU", 70),)), BUILD)
    document = examine()
    assert not document["healthy"]
    assert "not compiled for Old GPU, compute capability 7.0" in printed(document)


def test_a_driver_that_is_older_than_the_toolkit_is_one_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    devices = (cuda.CudaDevice("One GPU", 90), cuda.CudaDevice("Another", 80))
    cuda_is(monkeypatch, cuda.Driver("12.9", devices), BUILD)
    document = examine()
    assert document["problems"] == [
        "the cuda kernels were built with CUDA 13.0 and the driver is for CUDA 12.9: update the "
        "driver, or build them with CUDA 12"
    ]


def test_kernels_are_tested_on_cuda_where_the_runtime_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import onnxruntime

    cuda_is(monkeypatch, cuda.Driver("13.0", (cuda.CudaDevice("GPU", 90),)), BUILD)
    assert examine()["cuda_self_test"] is None
    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: providers)
    document = examine()
    assert document["cuda_self_test"]["passed"]
    assert "cuda self-test" in printed(document)
