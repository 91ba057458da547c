"""The repository on disk: published whole, old versions kept, nothing left by a failure."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxfold.cli import application
from onnxfold.errors import ModelError, UsageError, VerificationError
from onnxfold.model_io import staging
from onnxfold.model_io.staging import StagingFolder
from onnxfold.runtime.library import get_library_path
from onnxfold.serving.triton import repository
from onnxfold.serving.triton.deployment import TritonDevice
from onnxfold.serving.triton.repository import Deployment, Publication, publish
from tests.builders import pre_norm_model
from tests.custom_ops import c_program
from tests.oracle import Array
from tests.sessions import outputs

DIGITS = Path(__file__).parents[3] / "models" / "digits_vit" / "digits_vit.onnx"
SHAPE = (2, 1, 8, 8)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(pre_norm_model(), tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def published(model: Path, **chosen: object) -> Publication:
    deployment = Deployment(model.parent / "repository", **chosen)  # type: ignore[arg-type]
    return publish(model, deployment)


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_model_its_config_and_its_kernels_are_published(model: Path) -> None:
    result = published(model)
    found = files(model.parent / "repository")
    assert set(found) == {"net/config.pbtxt", "net/libonnxfold_ops.so", "net/1/model.onnx"}
    assert set(result.files) == {model.parent / "repository" / name for name in found}
    assert found["net/config.pbtxt"].decode() == result.config
    library = Path(get_library_path()).read_bytes()
    assert found["net/libonnxfold_ops.so"] == library
    assert result.report["output"]["path"] == str(result.folder / "1" / "model.onnx")
    assert result.report["verification"]["passed"]


def test_a_server_that_is_not_root_can_read_it(model: Path) -> None:
    for path in published(model).folder.rglob("*"):
        mode = path.stat().st_mode & 0o777
        assert mode & 0o044 == 0o044, f"{path} {mode:o}"


def test_external_data_lies_beside_the_model_under_its_name(tmp_path: Path) -> None:
    model = tmp_path / "net.onnx"
    onnx.save(
        pre_norm_model(), model, save_as_external_data=True, location="w.bin", size_threshold=0
    )
    result = published(model)
    folder = result.folder / "1"
    (data,) = [path for path in folder.iterdir() if path.name != "model.onnx"]
    assert result.report["output"]["data"] == str(data)
    stored = onnx.load(folder / "model.onnx", load_external_data=False)
    locations = {
        entry.value
        for tensor in stored.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    assert locations == {data.name}
    onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])


def test_a_new_version_stands_beside_the_old_one(model: Path) -> None:
    first = published(model)
    before = files(first.folder)
    published(model, version=2)
    after = files(first.folder)
    assert set(after) - set(before) == {"2/model.onnx"}
    assert {name: after[name] for name in before} == before


def test_a_version_that_is_there_stays_unless_forced(model: Path) -> None:
    folder = published(model).folder
    (folder / "1" / "model.onnx").write_bytes(b"")
    with pytest.raises(UsageError, match=r"version 1 of 'net' .* force=True"):
        published(model)
    assert (folder / "1" / "model.onnx").stat().st_size == 0
    published(model, force=True)
    assert (folder / "1" / "model.onnx").stat().st_size > 0


@pytest.mark.parametrize("damaged", [False, True])
def test_a_version_with_files_of_others_is_not_replaced_even_by_force(
    model: Path, damaged: bool
) -> None:
    publication = published(model)
    version = publication.folder / "1"
    (version / "labels.txt").write_text("precious")
    if damaged:
        (version / "model.onnx").write_bytes(b"torn")
    before = files(publication.folder)
    with pytest.raises(UsageError, match=r"holds 'labels.txt', which onnxfold did not write"):
        published(model, force=True)
    assert files(publication.folder) == before
    (version / "labels.txt").unlink()
    published(model, force=True)
    assert files(publication.folder).keys() == before.keys() - {"1/labels.txt"}


def test_a_version_that_is_being_replaced_survives_a_kill(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later run takes the folder in which it lies for one of its own no more."""
    publication = published(model)
    before = files(publication.folder / "1")
    rename, kept = Path.rename, []

    def killed(self: Path, target: Path) -> Path:
        moved = rename(self, target)
        if Path(target).name == "replaced":
            StagingFolder(publication.folder.parent, "~onnxfold-").close()
            kept.append(files(moved))
        return moved

    monkeypatch.setattr(Path, "rename", killed)
    monkeypatch.setattr(staging, "_lock", lambda descriptor: True)  # as if its process were gone
    published(model, force=True)
    assert kept == [before]


def test_an_edited_config_is_not_replaced_unasked(model: Path) -> None:
    config = published(model).folder / "config.pbtxt"
    edited = config.read_text() + "version_policy { all { } }\n"
    config.write_text(edited)
    with pytest.raises(UsageError, match="keep_config=True keeps it"):
        published(model, version=2)
    assert not (config.parent / "2").exists()
    published(model, version=2, keep_config=True)
    assert config.read_text() == edited
    assert (config.parent / "2").exists()
    published(model, version=3, force=True)
    assert config.read_text() != edited


def test_a_failed_check_leaves_everything_as_it_was(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise VerificationError("verification failed, nothing was written")

    monkeypatch.setattr(repository, "optimize", fails)
    before = files(model.parent)
    with pytest.raises(VerificationError):
        published(model)
    assert files(model.parent) == before
    assert not (model.parent / "repository").exists()


def test_a_server_that_polls_finds_no_name_with_a_dot(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the part after the dot as the name of a backend, and never becomes ready again."""
    seen: list[str] = []
    optimize = repository.optimize

    def looks(*given: Any, **options: Any) -> Any:
        seen.extend(path.name for path in (model.parent / "repository").iterdir())
        return optimize(*given, **options)

    monkeypatch.setattr(repository, "optimize", looks)
    published(model)
    (staging,) = seen
    assert "." not in staging
    assert [path.name for path in (model.parent / "repository").iterdir()] == ["net"]
    with pytest.raises(UsageError, match="cannot name a model"):
        published(model, name=staging)


def test_a_version_that_cannot_be_put_in_place_leaves_the_old_one(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(published(model).folder)
    rename = Path.rename

    def full(self: Path, target: Path) -> Path:
        if self.parent.name == "model" and target.name == "1" and self.name == "1":
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(ModelError, match="No space left"):
        published(model, force=True)
    assert files(model.parent / "repository" / "net") == before


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ({"name": "../other"}, "cannot name a model"),
        ({"name": ".hidden"}, "cannot name a model"),
        ({"in_server": "models"}, "needs an absolute path"),
        ({"keep_config": True}, "there is no"),
    ],
)
def test_nonsense_is_refused_before_the_work(
    model: Path, chosen: dict[str, object], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(repository, "optimize")
    with pytest.raises(UsageError, match=says):
        published(model, **chosen)


def test_the_library_is_named_where_the_server_finds_it(model: Path) -> None:
    assert '"/models/net/libonnxfold_ops.so"' in published(model, in_server="/models/").config


def test_without_cuda_kernels_a_gpu_runs_the_bodies(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onnxfold.runtime.library._FILES", {"cpu": "x.so", "cuda": "missing.so"})
    result = published(model, device=TritonDevice.GPU)
    assert "model_operations" not in result.config
    assert "cuda kernel library is not built" in str(result.without_kernels)


MIXED = {
    "a row of the output for each element": (
        "(float[b,3] x) => (float[n,1] y) <int64[2] s = {-1,1}> { y = Reshape(x, s) }",
        r"'y' has the shape \[6, 1\] for two rows and the shape \[3, 1\] for one",
    ),
    "transposed, under other names": (
        "(float[b,t] x) => (float[p,q] y) { y = Transpose(x) }",
        "'y' has the shape",
    ),
    "a mean over the batch": (
        "(float[b,3] x) => (float[b,3] y) { m = ReduceMean<axes=[0]>(x) y = Sub(x, m) }",
        "rows are not independent: 'y'",
    ),
    "one row alone": (
        "(float[b,3] x) => (float[b,3] y) <int64[1] a = {0}> "
        "{ v = Squeeze(x, a) n = Shape(x) y = Expand(v, n) }",
        "the trial with two rows fails",
    ),
}


@pytest.mark.parametrize(("text", "says"), MIXED.values(), ids=MIXED)
def test_rows_that_do_not_stay_apart_are_not_joined(tmp_path: Path, text: str, says: str) -> None:
    source = f'<ir_version: 8, opset_import: ["" : 17]> g {text}'
    onnx.save(onnx.parser.parse_model(source), tmp_path / "net.onnx")
    with pytest.raises(UsageError, match=f"max_batch=4: the model cannot batch requests: .*{says}"):
        published(tmp_path / "net.onnx", max_batch=4)
    assert published(tmp_path / "net.onnx").report["triton"]["batches_not_tried"] is None


def test_the_trial_takes_the_shapes_that_are_given(tmp_path: Path) -> None:
    text = "(float[b,t] x) => (float[b,t] y) <float[6] w = {1,2,3,4,5,6}> { y = Mul(x, w) }"
    source = f'<ir_version: 8, opset_import: ["" : 17]> g {text}'
    onnx.save(onnx.parser.parse_model(source), tmp_path / "net.onnx")
    deployment = Deployment(tmp_path / "repository", max_batch=4)
    publish(tmp_path / "net.onnx", deployment, inputs=("x:1,6",))


@pytest.mark.parametrize(("out", "joined"), [("b", True), ("n", False)])
def test_what_cannot_be_tried_is_joined_by_the_names_alone(
    tmp_path: Path, out: str, *, joined: bool
) -> None:
    """ONNX Runtime takes no bfloat16 from Python; Triton does."""
    text = f"(bfloat16[b,3] x) => (bfloat16[{out},3] y) {{ y = Identity(x) }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')
    onnx.save(model, tmp_path / "net.onnx")
    if joined:
        report = published(tmp_path / "net.onnx", max_batch=4).report
        assert "bfloat16" in report["triton"]["batches_not_tried"]
    else:
        with pytest.raises(UsageError, match="output 'y' is not 'b' by name"):
            published(tmp_path / "net.onnx", max_batch=4)


def test_a_shape_without_elements_is_refused(tmp_path: Path) -> None:
    text = "(float[0,3] x) => (float[0,3] y) { y = Identity(x) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')
    onnx.save(model, tmp_path / "net.onnx")
    with pytest.raises(ModelError, match=r"'net': 'x' has the shape \[0, 3\], without any element"):
        published(tmp_path / "net.onnx")


def test_a_model_of_standard_operators_needs_no_library(model: Path) -> None:
    result = publish(model, Deployment(model.parent / "repository"), target="onnx")
    assert set(files(result.folder)) == {"config.pbtxt", "1/model.onnx"}
    assert result.without_kernels == "the model calls none"


def test_triton_is_a_command(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(model.parent)
    words = "onnxfold triton net.onnx --repository models --max-batch 4 --report r.json"
    monkeypatch.setattr(sys, "argv", [*words.split(), "--no-fuse-residual"])
    with pytest.raises(SystemExit) as stopped:
        application.main()
    assert stopped.value.code == 0
    assert f"tritonserver --model-repository={model.parent}/models" in capsys.readouterr().out
    report = json.loads(Path("r.json").read_text())
    assert report["triton"]["max_batch_size"] == 4
    assert not [name for name in report["output"]["functions"] if name.startswith("Add")]


def backend_run(program: Path, folder: Path, model: Path) -> list[Array]:
    """Run a model as the backend does, with the library that config.pbtxt names."""
    (line,) = [
        line
        for line in (folder / "config.pbtxt").read_text().splitlines()
        if line.startswith("model_operations")
    ]
    outputs, _ = c_program.run(program, line.split('"')[1], model, SHAPE)
    return outputs


def test_a_c_program_serves_it_in_the_way_of_the_backend(tmp_path: Path) -> None:
    folder = publish(DIGITS, Deployment(tmp_path)).folder
    program = c_program.build(tmp_path / "run_model")
    (ours,) = backend_run(program, folder, folder / "1" / "model.onnx")
    (images,) = c_program.pattern(1, SHAPE)
    (original,) = outputs(DIGITS, {"images": images})
    # Logits below 32, behind some hundred roundings of values no larger.
    np.testing.assert_allclose(ours, original.ravel(), rtol=0, atol=100 * 32 * 2.0**-24)
    bare = onnx.load(folder / "1" / "model.onnx")
    del bare.functions[:]  # what runs now are the kernels
    onnx.save(bare, tmp_path / "bare.onnx")
    (kernels,) = backend_run(program, folder, tmp_path / "bare.onnx")
    np.testing.assert_array_equal(kernels, ours)
