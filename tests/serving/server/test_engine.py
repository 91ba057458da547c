"""A loaded model: what may be batched is tried, not assumed."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onnxfold
from onnxfold.errors import ModelError, UsageError
from onnxfold.serving import NamedModel, ServeSettings
from onnxfold.serving.codec import RequestError
from onnxfold.serving.datatypes import BY_NAME
from onnxfold.serving.engine import Engine
from onnxfold.serving.optimized import is_for_kernels, served_file
from onnxfold.serving.served_signature import (
    ServedSignature,
    TensorSpec,
    why_not_batched,
    why_unsure,
)
from tests.builders import pre_norm_model
from tests.serving.server import models

_ROOT = Path(__file__).resolve().parents[3]
DIGITS = _ROOT / "models" / "digits_vit" / "digits_vit.onnx"


def opened(model: onnx.ModelProto, folder: Path) -> Engine:
    return Engine.open(models.write(model, folder / "m.onnx"), name="m", threads=1)


def floats(name: str, *dims: int | str | None) -> TensorSpec:
    return TensorSpec(name, BY_NAME["FP32"], dims)


def test_the_shipped_model_is_batched_with_kernels() -> None:
    engine = Engine.open(DIGITS, name="digits", threads=1)
    assert engine.unbatched is None
    assert engine.kernels is None
    assert engine.signature.inputs[0].shape == [-1, 1, 8, 8]


def test_a_model_that_mixes_rows_is_not_batched(tmp_path: Path) -> None:
    assert "rows are not independent" in str(opened(models.cross_row(), tmp_path).unbatched)


@pytest.mark.parametrize(
    ("x", "y", "why"),
    [
        ((None, 3), (None, 3), "the first dimension of input 'x' has no name"),
        (("n", 3), (None, 3), "the first dimension of output 'y' is not 'n' by name"),
        (("n", "t"), ("n", "u"), "a dimension of output 'y' does not follow"),
        (("n", "t"), ("n", None), "a dimension of output 'y' does not follow"),
    ],
)
def test_what_names_leave_open_is_told(
    x: tuple[int | str | None, ...], y: tuple[int | str | None, ...], why: str
) -> None:
    signature = ServedSignature((floats("x", *x),), (floats("y", *y),))
    assert why_not_batched(signature) is None
    assert why in str(why_unsure(signature))


def test_every_input_needs_the_batch_dimension() -> None:
    both = (floats("a", "n", 3), floats("b", None, 3))
    assert "'b' is not 'n'" in str(why_unsure(ServedSignature(both, (floats("y", "n", 3),))))
    assert why_unsure(ServedSignature(both[:1], (floats("y", "n", 3),))) is None


def test_strings_are_served_one_request_at_a_time(tmp_path: Path) -> None:
    assert "no trial inputs" in str(opened(models.every_type(), tmp_path).unbatched)


def test_a_type_that_the_protocol_cannot_carry_is_refused(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.BFLOAT16, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.BFLOAT16, ["n"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    with pytest.raises(ModelError, match=r"'x' is a tensor\(bfloat16\), which ONNX Runtime"):
        opened(model, tmp_path)


def test_values_that_the_model_refuses_are_the_requests_fault(tmp_path: Path) -> None:
    engine = opened(models.failing(), tmp_path)
    (good,) = engine.run({"ids": np.array([[4]])}, ["y"])
    np.testing.assert_array_equal(good, [[[8, 9]]])
    with pytest.raises(RequestError, match="refuses these values"):
        engine.run({"ids": np.array([[5]])}, ["y"])


def test_what_is_no_model_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(ModelError) as caught:
        Engine.open(path, name="m", threads=1)
    assert "\n" not in str(caught.value)


def test_a_model_is_for_kernels_once(tmp_path: Path) -> None:
    source = models.write(pre_norm_model(), tmp_path / "model.onnx")
    assert not is_for_kernels(source)
    own = tmp_path / "own.onnx"
    onnxfold.optimize(source, own, target="kernels")
    before = set(tmp_path.iterdir())
    for given in (source, own):
        with served_file(given, tmp_path, optimize=True) as served:
            assert is_for_kernels(served)
            assert served.read_bytes() == own.read_bytes()
            assert served not in (source, own)
        assert set(tmp_path.iterdir()) == before


def test_a_session_keeps_what_it_was_opened_with(tmp_path: Path) -> None:
    """Its external data is written over, made shorter and removed; a copy of it was served."""
    path = models.write_external(models.table(1.0), tmp_path / "table.onnx")
    data = tmp_path / "table.data"
    rows = np.array([0, models.TABLE_ROWS - 1])

    def first(engine: Engine) -> list[float]:
        (y,) = engine.run({"ids": rows}, ["y"])
        return y[:, 0].tolist()

    with served_file(path, tmp_path, optimize=False) as served:
        engine = Engine.open(served, name="table", threads=1)
    unsafe = Engine.open(path, name="table", threads=1)
    with data.open("r+b") as file:
        file.write(np.full(models.TABLE_ROWS * 4, 7, np.float32).tobytes())
    assert first(unsafe) == [7, 7]  # what a session does with a file that is not its own
    assert first(engine) == [1, 1]
    with data.open("r+b") as file:
        file.truncate(8)
    assert first(engine) == [1, 1]
    data.unlink()
    path.unlink()
    assert first(engine) == [1, 1]


def test_a_model_that_is_replaced_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models.write_external(models.table(1.0), tmp_path / "table.onnx")
    copy = shutil.copyfile

    def slowly(source: Path, target: Path) -> object:
        copied = copy(source, target)
        if source.suffix == ".data":
            models.write_external(models.table(2.0), path)
        return copied

    monkeypatch.setattr(shutil, "copyfile", slowly)
    with (
        pytest.raises(ModelError, match="the file has changed since it was loaded"),
        served_file(path, tmp_path, optimize=False),
    ):
        pass


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = models.write(models.scaled(2.0), tmp_path / "m.onnx")
    monkeypatch.setattr(shutil, "copyfile", full)
    with (
        pytest.raises(ModelError, match="to serve it: No space left on device; TMPDIR"),
        served_file(path, tmp_path, optimize=False),
    ):
        pass
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_optimization_names_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(ModelError), served_file(path, tmp_path, optimize=True):
        pass
    model = pre_norm_model()  # with an input that the check cannot make up
    model.graph.input.append(helper.make_tensor_value_info("s", TensorProto.STRING, ["n"]))
    onnx.save(model, path)
    with (
        pytest.raises(UsageError, match=r"'s' has strings.*optimize=False"),
        served_file(path, tmp_path, optimize=True),
    ):
        pass


def test_models_are_named(tmp_path: Path) -> None:
    path = tmp_path / "my model.v2.onnx"
    path.touch()
    assert NamedModel.parse(str(path)) == NamedModel("my_model.v2", path)
    assert NamedModel.parse(f"gpt=2={path}".replace("gpt=2", "gpt")) == NamedModel("gpt", path)
    odd = tmp_path / "a=b.onnx"
    odd.touch()
    assert NamedModel.parse(str(odd)).path == odd
    with pytest.raises(ModelError, match="there is no such file"):
        NamedModel.parse(str(tmp_path / "missing.onnx"))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"grpc_port": 8080}, "must differ"),
        ({"max_batch": 0}, "at least 1"),
        ({"workers": 0}, "at least 1"),
        ({"workers": 100_000}, "workers= must be .* or less on this machine"),
        ({"threads": 100_000}, "threads= must be .* or less on this machine"),
        ({"batch_delay_ms": -1.0}, "from 0"),
        ({"models": ()}, "at least one model"),
        ({"models": (NamedModel("a", Path("x")), NamedModel("a", Path("y")))}, "both named 'a'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, object], sentence: str) -> None:
    asked: dict[str, object] = {"models": (NamedModel("a", Path("x")),), **wrong}
    with pytest.raises(UsageError, match=sentence):
        ServeSettings(**asked)  # type: ignore[arg-type]  # the wrong settings of the table


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """ONNX Runtime takes paths as UTF-8 only."""
    path = models.write(models.scaled(2.0), tmp_path / "m.onnx")
    try:
        odd = path.rename(tmp_path / os.fsdecode(b"m\xff.onnx"))
    except OSError:
        pytest.skip("this file system has no such names")
    with pytest.raises(ModelError, match="cannot open a file of this name; rename it"):
        Engine.open(odd, name="m", threads=1)
