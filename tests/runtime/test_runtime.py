from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

import onnxfold
from onnxfold.errors import DependencyError, OnnxfoldError, UsageError
from onnxfold.native import built
from onnxfold.operators.functions import SIGNATURES, call
from onnxfold.runtime import library as runtime
from onnxfold.runtime.cuda import CudaDevice, Driver
from onnxfold.runtime.library import device_of, get_library_path, register, self_test, session
from tests.calls import call_model, random_inputs


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the library, to be changed, under the name that ONNXFOLD_LIBRARY gives."""
    copy = tmp_path / "libonnxfold_ops.so"
    shutil.copy(get_library_path(), copy)
    monkeypatch.setenv("ONNXFOLD_LIBRARY", str(copy))
    return copy


def test_library_path_is_absolute_and_exists() -> None:
    assert os.path.isabs(get_library_path())
    assert os.path.isfile(get_library_path())


def test_a_session_without_onnxruntime_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(DependencyError, match=r"pip install 'onnxfold\[ort\]'"):
        session("model.onnx")


def test_environment_names_another_library(library: Path) -> None:
    assert get_library_path() == str(library)
    assert get_library_path("cuda") == str(library)


def test_environment_that_names_no_file_is_bad_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXFOLD_LIBRARY", "/nowhere/lib.so")
    with pytest.raises(UsageError, match="ONNXFOLD_LIBRARY names /nowhere/lib"):
        get_library_path()


def test_unknown_device_is_bad_usage() -> None:
    with pytest.raises(UsageError, match="device 'tpu'; known: cpu, cuda"):
        get_library_path("tpu")


def imported_from(folder: Path, installed: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Import the package from a folder that holds nothing built; ``installed``: a version."""

    def distribution(name: str) -> SimpleNamespace:
        if installed is None:
            raise metadata.PackageNotFoundError(name)
        return SimpleNamespace(version=installed, locate_file=lambda _: folder / "installed")

    monkeypatch.delenv("ONNXFOLD_LIBRARY", raising=False)
    monkeypatch.setattr(onnxfold, "__path__", [str(folder)])
    monkeypatch.setattr(metadata, "distribution", distribution)


@pytest.mark.parametrize("installed", [None, onnxfold.__version__])
def test_missing_library_says_what_to_do(
    installed: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    imported_from(tmp_path, installed, monkeypatch)
    with pytest.raises(OnnxfoldError, match="the cpu kernel library is not built: reinstall"):
        register(ort.SessionOptions())


@pytest.mark.parametrize("installed", [onnxfold.__version__, "0.0.1"])
def test_python_in_a_clone_finds_what_is_installed_of_the_same_version(
    installed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    imported_from(tmp_path, installed, monkeypatch)
    kept = tmp_path / "installed" / "_native" / "libonnxfold_ops.so"
    kept.parent.mkdir(parents=True)
    kept.touch()
    assert built(kept.name) == (kept if installed == onnxfold.__version__ else None)


def runtime_has(monkeypatch: pytest.MonkeyPatch, *providers: str) -> None:
    monkeypatch.setattr(ort, "get_available_providers", lambda: list(providers))


def test_providers_tell_the_device() -> None:
    assert device_of(["CPUExecutionProvider"]) == "cpu"
    assert (
        device_of([("CUDAExecutionProvider", {"device_id": 1}), "CPUExecutionProvider"]) == "cuda"
    )
    assert device_of(["CudaPluginExecutionProvider"]) == "cuda"


def test_a_runtime_with_cuda_gets_the_kernels_that_there_are(
    monkeypatch: pytest.MonkeyPatch, library: Path
) -> None:
    runtime_has(monkeypatch, "CUDAExecutionProvider", "CPUExecutionProvider")
    options = ort.SessionOptions()
    with pytest.warns(RuntimeWarning, match=r"for the CPU alone; .*\.so has no kernels for CUDA$"):
        register(options)
    model = call_model("Center", (3, 8), ir.DataType.FLOAT, with_body=False).SerializeToString()
    ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])  # it lacks bodies
    with pytest.raises(OnnxfoldError, match=r"libonnxfold_ops.so has no kernels for CUDA$"):
        register(ort.SessionOptions(), "cuda")
    register(ort.SessionOptions(), device="cpu")
    with library.open("ab") as file:
        file.write(b"onnxfold-cuda runtime 13000 architectures 90 ptx 80\0")
    monkeypatch.setattr(runtime, "driver", lambda: Driver(None))
    register(ort.SessionOptions())


def test_kernels_that_no_device_runs_are_not_registered(
    monkeypatch: pytest.MonkeyPatch, library: Path
) -> None:
    """With them sessions would load, and each norm fail; without, the bodies run."""
    runtime_has(monkeypatch, "CUDAExecutionProvider", "CPUExecutionProvider")
    with library.open("ab") as file:
        file.write(b"onnxfold-cuda runtime 13000 architectures 90 ptx 80\0")
    hopper, volta = CudaDevice("Hopper", 90), CudaDevice("Volta", 70)
    monkeypatch.setattr(runtime, "driver", lambda: Driver("12.9", (hopper,)))
    with pytest.warns(RuntimeWarning, match=r"for the CPU alone; .*the driver is for CUDA 12\.9"):
        register(ort.SessionOptions())
    with pytest.raises(OnnxfoldError, match=r"does not run here: .* the driver is for CUDA 12\.9"):
        register(ort.SessionOptions(), "cuda")
    monkeypatch.setattr(runtime, "driver", lambda: Driver("13.0", (volta,)))
    with pytest.raises(OnnxfoldError, match=r"not compiled for Volta, compute capability 7\.0"):
        register(ort.SessionOptions(), "cuda")
    monkeypatch.setattr(runtime, "driver", lambda: Driver("13.0", (volta, hopper)))
    register(ort.SessionOptions())


def test_cuda_kernels_that_were_not_built_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    imported_from(tmp_path, None, monkeypatch)
    message = "the cuda kernel library is not built: reinstall .*ONNXFOLD_CUDA=ON"
    with pytest.raises(OnnxfoldError, match=message):
        session(b"", providers=["CUDAExecutionProvider", "CPUExecutionProvider"])


def test_options_keep_the_library_that_they_have(
    tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ort.SessionOptions()
    register(options, "cpu")
    register(options, "cpu")
    with library.open("ab") as file:
        file.write(b"onnxfold-cuda runtime 13000 architectures 90 ptx 80\0")
    monkeypatch.setattr(runtime, "driver", lambda: Driver(None))
    other = library.rename(tmp_path / "other.so")
    monkeypatch.setenv("ONNXFOLD_LIBRARY", str(other))
    register(options)
    with pytest.raises(UsageError, match=r"have .*ops.so already; 'cuda' needs new ones"):
        register(options, "cuda")


def test_registering_twice_is_registering_once() -> None:
    options = ort.SessionOptions()
    register(options)
    register(options)
    name = "RMSNormScale"
    inputs = random_inputs(name, (3, 8), ir.DataType.FLOAT)
    model = call_model(name, (3, 8), ir.DataType.FLOAT, with_body=False).SerializeToString()
    with_options = session(model, options).run(None, inputs)[0]
    np.testing.assert_array_equal(session(model).run(None, inputs)[0], with_options)


def test_session_takes_paths(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model = call_model("Center", (2, 8), ir.DataType.FLOAT, with_body=False)
    path.write_bytes(model.SerializeToString())
    inputs = random_inputs("Center", (2, 8), ir.DataType.FLOAT)
    for source in (path, str(path)):
        y = session(source, providers=["CPUExecutionProvider"]).run(None, inputs)[0]
        assert np.abs(y.mean(axis=-1)).max() < 1e-7


def test_library_carries_the_table_of_signatures() -> None:
    assert Path(get_library_path()).read_bytes().count(runtime._table() + b"\0") == 1
    assert runtime._table().count(b"\n") == len(SIGNATURES) + 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"onnxfold-ops version 1\n", b"onnxfold-ops version 2\n"),
        (b"\nAddRMSNorm RMS 1 0 NONE 0", b"\nAddRMSNorm RMS 1 1 NONE 0"),
        (b"\nCenter CENTER 0", b"\nCentre CENTER 0"),
    ],
)
def test_library_with_another_table_is_refused(library: Path, old: bytes, new: bytes) -> None:
    content = library.read_bytes()
    assert content.count(old) == 1
    library.write_bytes(content.replace(old, new))
    with pytest.raises(OnnxfoldError, match="another version of onnxfold; rebuild"):
        register(ort.SessionOptions())


def test_files_that_are_no_library_are_refused(library: Path) -> None:
    library.write_bytes(b"not a library")
    with pytest.raises(OnnxfoldError, match="is not onnxfold's kernel library"):
        register(ort.SessionOptions())
    library.write_bytes(runtime._table() + b"\0")
    with pytest.raises(OnnxfoldError, match="ONNX Runtime rejects"):
        register(ort.SessionOptions())


@pytest.mark.parametrize(
    ("name", "symbol"),
    [
        ("libonnxfold_ops.so", "RegisterCustomOps"),
        ("libonnxfold_weights.so", "onnxfold_edit_rows"),
    ],
)
def test_a_library_exports_one_symbol_and_needs_no_onnxruntime(name: str, symbol: str) -> None:
    path = str(built(name))
    symbols = output_of("nm", "--dynamic", "--defined-only", path)
    assert [line.split()[-1] for line in symbols.splitlines()] == [symbol]
    needed = [line for line in output_of("readelf", "-d", path).splitlines() if "NEEDED" in line]
    assert needed
    assert not [line for line in needed if any(word in line for word in ("onnx", "python", "c++"))]


def output_of(*command: str) -> str:
    program = shutil.which(command[0])
    assert program is not None
    done = subprocess.run([program, *command[1:]], check=True, capture_output=True, text=True)
    return done.stdout


@pytest.mark.parametrize("version", [b"1.16.3", b"1.4.0", b"0.5.0"])
def test_older_runtimes_get_a_status_that_names_the_version(version: bytes) -> None:
    messages: list[bytes] = []

    def keep_message(_: int, message: bytes) -> int:
        messages.append(message)
        return 1

    text = ctypes.create_string_buffer(version)
    create_status = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)(keep_message)
    slots = (ctypes.c_void_p * 300)()
    slots[0] = ctypes.cast(create_status, ctypes.c_void_p).value
    get_api = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(
        lambda asked: ctypes.addressof(slots) if asked == 1 else 0
    )
    get_version = ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: ctypes.addressof(text))
    base = (ctypes.c_void_p * 2)(
        ctypes.cast(get_api, ctypes.c_void_p).value,
        ctypes.cast(get_version, ctypes.c_void_p).value,
    )
    entry = ctypes.CDLL(get_library_path()).RegisterCustomOps
    entry.restype = ctypes.c_void_p
    assert entry(None, ctypes.byref(base)) == 1
    expected = b"onnxfold needs ONNX Runtime 1.17 or newer; this is " + version
    assert messages == [expected]


def test_kernels_pass_their_own_test() -> None:
    result = self_test()
    assert result.passed
    assert result.cases == 2 * len(SIGNATURES)
    assert 0 < result.worst <= 1


def test_wrong_kernels_fail_their_own_test(monkeypatch: pytest.MonkeyPatch) -> None:
    def call_with_wrong_epsilon(
        name: str, inputs: Sequence[ir.Value], *, epsilon: float
    ) -> ir.Node:
        return call(name, inputs, epsilon=1.0 if next(turn) else epsilon)

    turn = itertools.cycle((True, False))
    monkeypatch.setattr(runtime, "call", call_with_wrong_epsilon)
    result = self_test()
    assert not result.passed
    without = [row for row in SIGNATURES.values() if "epsilon" not in row.attributes]
    assert len(result.failures) == result.cases - 2 * len(without)
    assert result.failures[0].startswith("RMSNorm")


def test_importing_the_module_does_not_load_onnxruntime() -> None:
    code = "import sys, onnxfold.runtime.library; sys.exit('onnxruntime' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
