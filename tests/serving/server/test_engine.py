"""A loaded model: what may be batched is tried, not assumed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onnxfold
from onnxfold.errors import ModelError, UsageError
from onnxfold.serving import NamedModel, ServeSettings
from onnxfold.serving.codec import RequestError
from onnxfold.serving.engine import Engine
from onnxfold.serving.optimized import is_optimized, prepared
from onnxfold.serving.signature import Signature, TensorSpec, why_not_batched
from tests.builders import pre_norm_model
from tests.serving.server import models

_ROOT = Path(__file__).resolve().parents[3]
DIGITS = _ROOT / "models" / "digits_vit" / "digits_vit.onnx"


def opened(model: onnx.ModelProto, folder: Path) -> Engine:
    return Engine.open(models.write(model, folder / "m.onnx"), name="m", threads=1)


def floats(name: str, *dims: int | str | None) -> TensorSpec:
    return TensorSpec(name, "FP32", np.dtype(np.float32), dims)


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
        ((2, 3), (2, 3), "the first dim of 'x' is not an open, named one"),
        ((None, 3), (None, 3), "the first dim of 'x' is not an open, named one"),
        ((), (), "the first dim of 'x' is not an open, named one"),
        (("n", "n"), ("n", "n"), "'n' is also another dim of 'x'"),
        (("n", 3), (None, 3), "the first dim of 'y' is not 'n'"),
        (("n", 3), (), "the first dim of 'y' is not 'n'"),
        (("n", "t"), ("n", "u"), "a dim of 'y' does not follow"),
        (("n", "t"), ("n", None), "a dim of 'y' does not follow"),
    ],
)
def test_shapes_that_forbid_batching_are_named(
    x: tuple[int | str | None, ...], y: tuple[int | str | None, ...], why: str
) -> None:
    assert why in str(why_not_batched(Signature((floats("x", *x),), (floats("y", *y),))))


def test_every_input_needs_the_batch_dim() -> None:
    both = (floats("a", "n", 3), floats("b", "m", 3))
    assert "'b' is not 'n'" in str(why_not_batched(Signature(both, (floats("y", "n", 3),))))
    assert why_not_batched(Signature((), (floats("y", "n"),))) == "it has no inputs"
    assert why_not_batched(Signature(both[:1], (floats("y", "n", 3),))) is None


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
    with pytest.raises(ModelError, match=r"input 'x' is tensor\(bfloat16\)"):
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


def test_a_model_is_optimized_once(tmp_path: Path) -> None:
    source = models.write(pre_norm_model(), tmp_path / "model.onnx")
    assert not is_optimized(source)
    served = prepared(source, tmp_path)
    assert served != source
    assert is_optimized(served)
    assert prepared(served, tmp_path) == served
    own = tmp_path / "own.onnx"
    onnxfold.optimize(source, own)
    assert own.read_bytes() == served.read_bytes()


def test_a_failed_optimization_names_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(ModelError):
        prepared(path, tmp_path)
    model = pre_norm_model()  # with an input that the check cannot make up
    model.graph.input.append(helper.make_tensor_value_info("s", TensorProto.STRING, ["n"]))
    onnx.save(model, path)
    with pytest.raises(UsageError, match=r"'s' has strings.*--no-optimize"):
        prepared(path, tmp_path)


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
    with pytest.raises(ModelError, match="takes no such name; rename the file"):
        Engine.open(odd, name="m", threads=1)
