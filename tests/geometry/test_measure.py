"""onnxfold.measure from data to report: the same for any workers, resumed, masked, refused."""

from __future__ import annotations

import errno
import importlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner, Result

import onnxfold
from onnxfold.cli.application import app
from onnxfold.errors import DataError, DependencyError, UsageError
from onnxfold.geometry import cluster, measurement, measuring_state
from onnxfold.geometry.work import Task, in_turn
from onnxfold.inputs.data import open_data
from tests import graphs
from tests.builders import chain_model, pre_norm_model
from tests.geometry.deadly import Deadly

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "models" / "digits_vit" / "digits_vit.onnx"
HELD_OUT = ROOT / "models" / "digits_vit" / "heldout.npz"


def _ran(*words: str | Path) -> Result:
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == 0, done.output
    return done


def _raised(kind: type[Exception], *words: str | Path) -> str:
    done = CliRunner().invoke(app, [*map(str, words)])
    assert isinstance(done.exception, kind)
    return str(done.exception)


def _rows(folder: Path, count: int, name: str = "x.npz", **arrays: Any) -> Path:
    rng = np.random.default_rng(0)
    given = arrays or {"x": rng.standard_normal((count, 16)).astype(np.float32)}
    np.savez(folder / name, **given)
    return folder / name


def test_the_report_is_the_same_for_any_number_of_workers() -> None:
    reports = {
        json.dumps(onnxfold.measure(DIGITS, HELD_OUT, workers=workers, batch=16))
        for workers in (1, 3)
    }
    (report,) = reports
    found = json.loads(report)
    assert found["schema"] == 1
    assert found["rows"] == 360
    assert found["complete"]
    assert len(found["norms"]) == 9
    assert found["norms"][0]["before"]["angle_uniform"]["count"] == 360 * 17


def test_a_worker_of_a_cluster_leaves_no_copy_of_the_model_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed with the cluster, and could remove nothing then."""
    copies = tmp_path / "copies"
    copies.mkdir()

    def measured(task: Task, shards: Any, *_: Any) -> Iterator[Any]:
        assert task.model is not None
        files = {path.name: path.read_bytes() for path in task.model.parent.iterdir()}
        with monkeypatch.context() as local:
            local.setattr(tempfile, "tempdir", str(copies))
            worker = cluster._Worker(task, files)
            assert not list(copies.iterdir())
            yield from map(worker.measure, shards)

    data = _rows(tmp_path, 1000)
    whole = onnxfold.measure(chain_model(), data)
    monkeypatch.setattr(measurement, "in_cluster", measured)
    assert onnxfold.measure(chain_model(), data, ray="somewhere") == whole


def test_an_interrupted_run_goes_on_to_the_same_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = _rows(tmp_path, 1000)
    whole = onnxfold.measure(chain_model(), data)

    def interrupted(*given: Any) -> Iterator[Any]:
        results = in_turn(*given)
        yield next(results)
        raise KeyboardInterrupt

    state = tmp_path / "state.json"
    with monkeypatch.context() as patched:
        patched.setattr(measurement, "in_turn", interrupted)
        part = onnxfold.measure(chain_model(), data, resume=state)
    assert not part["complete"]
    assert part["rows"] == 256
    assert onnxfold.measure(chain_model(), data, resume=state) == whole
    with pytest.raises(UsageError, match="of another model, data or options"):
        onnxfold.measure(chain_model(), data, resume=state, seed=1)
    status = data.stat()
    os.utime(data, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(UsageError, match="or a file was written since"):
        onnxfold.measure(chain_model(), data, resume=state)
    for text in ('{"fingerprint": "mine"}', "{}"):
        state.write_text(text, encoding="utf-8")
        with pytest.raises(DataError, match="no state of a measurement"):
            onnxfold.measure(chain_model(), data, resume=state)
    with pytest.raises(DataError, match=r"resume=.*: Is a directory"):
        onnxfold.measure(chain_model(), data, resume=tmp_path)

    def full(parent: Path) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(parent))

    monkeypatch.setattr(measuring_state, "StagingFolder", full)
    with pytest.raises(DataError, match=r"other' cannot be written: No space left on device"):
        onnxfold.measure(chain_model(), data, resume=tmp_path / "other")


def _masked_model(length: str = "tokens", *, masked: bool = True) -> onnx.ModelProto:
    """ids [batch, tokens] -> Gather -> LayerNormalization -> * mask."""
    rng = np.random.default_rng(4)
    weights = {
        "table": rng.standard_normal((9, 8)).astype(np.float32),
        "gamma": rng.standard_normal(8).astype(np.float32),
        "axis": np.array([2]),
    }
    body = "x = Gather(table, ids) n = LayerNormalization(x, gamma)"
    if masked:
        body += "w = Cast<to=1>(attention_mask) column = Unsqueeze(w, axis) y = Mul(n, column)"
    inputs = f"int64[batch,tokens] ids, int64[batch,{length}] attention_mask"
    return graphs.model(body, inputs, f"float[batch,tokens,8] {'y' if masked else 'n'}", weights)


def test_the_shards_of_a_killed_worker_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = _rows(tmp_path, 1000)
    whole = onnxfold.measure(chain_model(), data)

    def opened(*given: Any) -> Deadly:
        return Deadly(open_data(*given), tmp_path / "killed", os.getpid())

    monkeypatch.setattr(measurement, "open_data", opened)
    assert onnxfold.measure(chain_model(), data, workers=2) == whole
    assert (tmp_path / "killed").exists()


def test_padding_by_a_mask_is_left_out(tmp_path: Path) -> None:
    ids = np.array([[1, 2, 3, 8], [4, 5, 8, 8]])
    mask = np.array([[1, 1, 1, 0], [1, 1, 0, 0]])
    padded = _rows(tmp_path, 0, "padded.npz", ids=ids, attention_mask=mask)
    ids = np.array([[1, 2, 3, 4, 5]])
    alone = _rows(tmp_path, 0, "alone.npz", ids=ids, attention_mask=np.ones_like(ids))
    found, expected, counted = (
        onnxfold.measure(_masked_model(), data, mask=name)["norms"][0]
        for data, name in ((padded, "attention_mask"), (alone, "attention_mask"), (padded, "ids"))
    )
    assert found == expected
    assert found["unmasked"] == 0
    assert found["before"]["norm"]["count"] == 5
    assert counted["before"]["norm"]["count"] == 8  # forced: no id is 0, so padding counts


def test_a_mask_that_fits_no_rows_is_told(tmp_path: Path) -> None:
    model = _masked_model("others", masked=False)
    data = _rows(tmp_path, 0, ids=np.array([[1, 2, 3]]), attention_mask=np.array([[1, 1]]))
    (norm,) = onnxfold.measure(model, data, mask="attention_mask")["norms"]
    assert norm["unmasked"] == norm["before"]["norm"]["count"] == 3


SHAPED = {"x": np.zeros((4, 15), np.float32)}
TYPED = {"x": np.zeros((4, 16), np.complex64)}
NAMED = {"other": np.zeros((4, 16), np.float32)}
BEYOND = {"ids": np.array([[1, 1, 1]] * 10 + [[1, 99, 1]] * 2)}


@pytest.mark.parametrize(
    ("model", "arrays", "sentence"),
    [
        (chain_model, SHAPED, r"x\.npz, rows 0 to 3: input 'x' is \[batch, 16\]"),
        (chain_model, TYPED, "input 'x' is float32, the data has complex64"),
        (chain_model, NAMED, "nothing for input 'x'.*has 'other': name the arrays"),
        (pre_norm_model, BEYOND, "row 10 has 99 in input 'ids', whose table takes 0 to 31"),
    ],
)
def test_what_does_not_suit_is_one_sentence(
    tmp_path: Path, model: Callable[[], onnx.ModelProto], arrays: dict[str, Any], sentence: str
) -> None:
    data = _rows(tmp_path, 0, **arrays)
    with pytest.raises(DataError, match=sentence) as caught:
        onnxfold.measure(model(), data)
    assert "\n" not in str(caught.value)


def test_bad_shards_are_counted_and_skipped(tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    _rows(folder, 10, "a.npz")
    (folder / "b.npz").write_bytes(b"damaged")
    _rows(folder, 7, "c.npz")
    with pytest.raises(DataError, match=r"b\.npz: cannot be read as arrays"):
        onnxfold.measure(chain_model(), folder)
    report = onnxfold.measure(chain_model(), folder, skip_bad=True)
    assert report["rows"] == 17
    assert report["complete"]
    (bad,) = report["bad_shards"]
    assert "b.npz" in bad


def test_rows_limits_the_rows_of_all_files(tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    for name in ("a.npz", "b.npz"):
        _rows(folder, 10, name)
    assert onnxfold.measure(chain_model(), folder, rows=13)["rows"] == 13


def test_an_array_alone_is_for_a_model_with_one_input(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((5, 16), np.float32))
    report = onnxfold.measure(chain_model(), tmp_path / "x.npy")
    assert report["rows"] == 5


def test_a_model_larger_than_memory_gives_the_same_numbers(tmp_path: Path) -> None:
    """In pieces other fusions happen, so values differ by rounding of float32, 1e-5 at most."""
    data = _rows(tmp_path, 20)
    whole = onnxfold.measure(chain_model(), data)["norms"][0]
    pieces = onnxfold.measure(chain_model(), data, memory=2e-6)["norms"][0]
    for side in ("before", "after"):
        for quantity, statistic in whole[side].items():
            assert statistic["count"] == pieces[side][quantity]["count"] == 20
            assert pieces[side][quantity]["mean"] == pytest.approx(
                statistic["mean"], rel=1e-5, abs=1e-6
            )


def test_made_up_inputs_are_said_to_be() -> None:
    report = onnxfold.measure(chain_model(), rows=6)
    assert report["data"]["kind"] == "synthetic"
    assert report["rows"] == 6


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    tokenizers = importlib.import_module("tokenizers")
    words = {word: number for number, word in enumerate(("[UNK]", "a", "b", "c"))}
    model = tokenizers.models.WordLevel(words, unk_token="[UNK]")  # noqa: S106
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def _text_model() -> onnx.ModelProto:
    model = pre_norm_model()
    for node in model.graph.node:
        node.input[:] = ["input_ids" if name == "ids" else name for name in node.input]
    model.graph.input[0].name = "input_ids"
    return model


TEXTS = ("a b c", "a", "b b b b b", "c a")


def _text_file(folder: Path, kind: str) -> Path:
    file = folder / f"texts.{kind}"
    if kind == "txt":
        file.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    elif kind == "jsonl":
        lines = [json.dumps({"id": i, "text": text}) for i, text in enumerate(TEXTS)]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    else:
        arrow = pytest.importorskip("pyarrow")
        table = arrow.table({"text": list(TEXTS)})
        if kind == "parquet":
            parquet = importlib.import_module("pyarrow.parquet")
            parquet.write_table(table, file, row_group_size=3)
        else:
            with arrow.ipc.new_stream(str(file), table.schema) as stream:
                stream.write_table(table)
    return file


@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet", "arrow"])
def test_text_counts_every_token_and_no_padding(tmp_path: Path, tokenizer: Path, kind: str) -> None:
    report = onnxfold.measure(_text_model(), _text_file(tmp_path, kind))
    assert report["rows"] == 4
    assert {n["before"]["norm"]["count"] for n in report["norms"]} == {3 + 1 + 5 + 2}
    assert {n["unmasked"] for n in report["norms"]} == {0}


def test_text_that_cannot_be_read_names_row_and_remedy(tmp_path: Path, tokenizer: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"text": "a"}\n{"body": "b"}\n', encoding="utf-8")
    with pytest.raises(
        DataError, match=r"bad\.jsonl, row 1: .*'text'; name the field with column="
    ):
        onnxfold.measure(_text_model(), file)
    with pytest.raises(DataError, match=r"none\.json: there is no such file"):
        onnxfold.measure(_text_model(), file, tokenizer=tmp_path / "none.json")
    file.write_text('{"text": "a"}\n', encoding="utf-8")
    elsewhere = tmp_path / "alone"
    elsewhere.mkdir()
    alone = file.rename(elsewhere / file.name)
    with pytest.raises(UsageError, match="give tokenizer=FILE"):
        onnxfold.measure(_text_model(), alone)
    file = alone.rename(file)
    with pytest.raises(DataError, match=r"bad\.jsonl: not a tokenizer"):
        onnxfold.measure(_text_model(), file, tokenizer=file)


def test_images_are_prepared_as_their_file_says(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    kind, weights = "float[n,3,2,2]", {"g": np.ones((3, 2, 2), np.float32)}
    body = "y = LayerNormalization<axis=1>(pixels, g)"
    model = graphs.model(body, f"{kind} pixels", f"{kind} y", weights)
    for name, colour in (("a.png", (255, 0, 0)), ("b.png", (0, 255, 255))):
        pillow.new("RGB", (8, 4), colour).save(tmp_path / name)
    with pytest.raises(UsageError, match="preprocessor_config"):
        onnxfold.measure(model, tmp_path)
    config = {"size": {"height": 2, "width": 2}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config), encoding="utf-8")
    before = onnxfold.measure(model, tmp_path)["norms"][0]["before"]
    # Pixels are 1 and -1: of red a third is 1, so its mean is -1/3; of cyan 1/3.
    assert before["mean"]["max"] == pytest.approx(1 / 3, rel=1e-6)
    assert before["mean"]["min"] == pytest.approx(-1 / 3, rel=1e-6)
    assert before["norm"]["mean"] == pytest.approx(np.sqrt(12), rel=1e-6)


def test_the_command_writes_reports_and_figures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = ["measure", DIGITS, "--data", HELD_OUT, "--rows", "20", "--report", tmp_path / "r.json"]
    done = _ran(*words, "--report", tmp_path / "r.html", "--plot", tmp_path / "figures")
    assert "9 norms over 20 rows of arrays" in done.output
    assert json.loads((tmp_path / "r.json").read_text("utf-8"))["rows"] == 20
    page = (tmp_path / "r.html").read_text("utf-8")
    assert page.count("<svg") == 5
    assert re.search(r"the means carry [\d.]+% to [\d.]+% of the squared length", page)
    assert len(re.findall(r"</h2><p>[A-Z][^<]+\.</p><div", page)) == 6  # five pictures, a table
    assert page.count(">node_layer_norm_8</text>") == 6  # below axes, and above a histogram
    assert "mathdefault" not in page
    assert not re.findall(r"(?:src|href)=.https?:", page)
    assert "light-dark(" in page
    assert "viewport" in page
    assert len(list((tmp_path / "figures").glob("*.svg"))) == 5
    assert len(list((tmp_path / "figures").glob("*.png"))) == 5


def test_the_command_says_loudly_that_inputs_are_made_up(tmp_path: Path) -> None:
    onnx.save(chain_model(), tmp_path / "m.onnx")
    assert "SYNTHETIC" in _ran("measure", tmp_path / "m.onnx", "--rows", "4").stderr


def test_a_missing_library_is_told_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = ["measure", str(DIGITS), "--data", str(HELD_OUT), "--plot", str(tmp_path / "f")]
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, DependencyError)
    assert "pip install 'onnxfold[measure]'" in str(done.exception)
    assert "norms over" not in done.output


def test_models_stand_side_by_side_and_are_drawn_again(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    models = [tmp_path / "a.onnx", tmp_path / "b.onnx"]
    for model in models:
        onnx.save(chain_model(), model)
    data, both = _rows(tmp_path, 20), tmp_path / "both.json"
    page = tmp_path / "both.html"
    _ran("measure", *models, "--data", data, "--report", both, "--report", page)
    found = json.loads(both.read_text("utf-8"))["models"]
    assert [report["model"] for report in found] == ["a.onnx", "b.onnx"]
    assert found[0]["sha256"] == sha256(models[0].read_bytes()).hexdigest()
    assert found[0]["norms"] == found[1]["norms"] == onnxfold.measure(models[0], data)["norms"]
    assert page.read_text("utf-8").count("<svg") == 4
    drawn = _ran("plot", both, "-o", tmp_path / "figures").output
    assert "drew 2 measurements" in drawn
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert {"angles_of_models.svg", "means_of_models.png"} <= names


def test_a_series_is_drawn_over_the_steps_of_training(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = onnxfold.measure(chain_model(), _rows(tmp_path, 20))
    training = {"data": {"kind": "training", "batch": None, "seed": 0}, "rows": 0}
    (tmp_path / "angles").mkdir()
    for step in (0, 100):
        text = json.dumps({**report, **training, "step": step})
        (tmp_path / "angles" / f"step_{step:08}.json").write_text(text, encoding="utf-8")
    page = tmp_path / "training.html"
    _ran("plot", tmp_path / "angles", "--report", page)
    text = page.read_text("utf-8")
    assert "over the steps of training" in text
    assert f"step 100: {len(report['norms'])} norms in training" in text
    assert report["norms"][0]["name"] in text


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "no JSON"),
        ("[]", "no measurement"),
        ('{"schema": 1, "norms": [{}]}', "no measurement"),
        (None, "No such file"),
    ],
)
def test_what_is_no_measurement_is_told(tmp_path: Path, content: str | None, told: str) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "x.json"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    assert told in _raised(DataError, "plot", file, "-o", tmp_path / "figures")


def test_a_report_on_optimizing_shows_what_was_measured(tmp_path: Path) -> None:
    measured, html, written = (tmp_path / name for name in ("m.json", "r.html", "r.json"))
    report = onnxfold.measure(DIGITS, HELD_OUT, rows=20)
    measured.write_text(json.dumps(report), encoding="utf-8")
    words = ["optimize", DIGITS, "--dry-run", "--measured", measured]
    _ran(*words, "--report", html, "--report", written)
    found = json.loads(written.read_text("utf-8"))
    names = [norm["name"] for norm in found["inspect"]["norms"]]
    first = found["measurement"]["norms"][names[0]]
    assert set(found["measurement"]["norms"]) == set(names)
    assert first["angle_uniform"] == report["norms"][0]["before"]["angle_uniform"]["mean"]
    page = html.read_text("utf-8")
    assert page.count("degrees to the uniform vector") == len(names) == 9
    assert f'<a href="{measured}">' in page
    measured.write_text(json.dumps({**report, "sha256": "0"}), encoding="utf-8")
    assert "a measurement of another model" in _raised(UsageError, *words, "--report", html)
    assert "ask for one" in _raised(UsageError, *words)
