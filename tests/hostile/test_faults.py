"""Faults around a run: full disk, read-only folder, folder or input gone, two runs at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfold
from onnxfold import model_io
from onnxfold.errors import ModelError
from tests.hostile.faults import (
    CHANGES,
    Subject,
    broken,
    change,
    command,
    kill,
    remount,
    small_disk,
    two_at_once,
    whole,
)
from tests.hostile.seeds import WIDTH, layer_norm_model
from tests.model_io.files import contents, linear, listing, save, weight

ROOT = Path(__file__).parents[2]


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "onnxfold", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def large_model() -> onnx.ModelProto:
    """A model with a foldable part and a weight of a megabyte."""
    model = layer_norm_model()
    model.graph.initializer.append(weight("large", 512, 512))
    model.graph.node.append(onnx.helper.make_node("ReduceMax", ["large"], ["z"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("z", 1, [1, 1]))
    return model


def subject(*data: str) -> Subject:
    return Subject("small", layer_norm_model(), data, ("--no-check",))


def result_of(given: Subject, folder: Path, what: str | None = None) -> bytes | None:
    """What comes out of an undisturbed run, on changed input if `what` says so."""
    source = given.lay(folder)
    if what is not None:
        change(what, folder / "in.data" if given.data else source)
    assert command(given.arguments("out/o.onnx"), folder).code == 0
    return whole(folder / "out/o.onnx")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "disk").mkdir()
    with small_disk(tmp_path / "disk") as mounted:
        if mounted is None:
            pytest.skip("no file system can be mounted here")
        yield mounted


@pytest.mark.parametrize("data", [(), ("in.data",)], ids=["embedded", "external"])
def test_a_full_disk_is_named_and_nothing_stays_on_it(
    tmp_path: Path, disk: Path, data: tuple[str, ...]
) -> None:
    save(large_model(), tmp_path / "in.onnx", *data)
    (disk / "out.onnx").write_bytes(b"what was there")
    done = run("optimize", "in.onnx", "-o", str(disk / "out.onnx"), "--force", folder=tmp_path)
    assert done.returncode == 3
    assert "the disk is full" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert listing(disk) == ["out.onnx"]
    assert (disk / "out.onnx").read_bytes() == b"what was there"


def test_a_read_only_disk_is_named(tmp_path: Path, disk: Path) -> None:
    save(layer_norm_model(), tmp_path / "in.onnx")
    remount(disk, "ro")
    done = run("optimize", "in.onnx", "-o", str(disk / "out.onnx"), folder=tmp_path)
    assert done.returncode == 3
    assert "cannot be written" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert listing(disk) == []


def _meddle(what: str, folder: Path) -> None:
    if what == "model":
        (folder / "in.onnx").write_bytes((folder / "in.onnx").read_bytes())
        os.utime(folder / "in.onnx", ns=(1, 1))
    elif what == "data":
        os.utime(folder / "in.data", ns=(1, 1))
    elif what == "replaced":
        shutil.copy2(folder / "in.data", folder / "copy")
        os.replace(folder / "copy", folder / "in.data")
    else:
        (folder / "in.data").unlink()


@pytest.mark.parametrize("what", ["model", "data", "replaced", "gone"])
def test_an_input_that_changes_during_the_check_stops_the_publication(
    tmp_path: Path, what: str
) -> None:
    source = save(large_model(), tmp_path / "in.onnx", "in.data")
    out = tmp_path / "out"
    out.mkdir()

    meddled = False

    def progress(stage: str, done: float) -> None:
        nonlocal meddled
        if (stage, done, meddled) == ("verify", 1.0, False):
            meddled = True
            _meddle(what, tmp_path)

    message = "it was there" if what == "gone" else "has changed since it was loaded"
    with pytest.raises(ModelError, match=message):
        onnxfold.optimize(source, out / "out.onnx", progress=progress)
    assert listing(out) == []


@pytest.mark.parametrize("stage", ["save", "verify"])
def test_an_output_folder_that_goes_away_is_an_error_of_one_line(
    tmp_path: Path, stage: str
) -> None:
    source = save(large_model(), tmp_path / "in.onnx", "in.data")
    before = source.read_bytes()
    out = tmp_path / "out"
    out.mkdir()

    def progress(name: str, done: float) -> None:
        if (name, done) == (stage, 1.0) and out.exists():
            shutil.rmtree(out)

    with pytest.raises(ModelError, match=r"out\.onnx") as caught:
        onnxfold.optimize(source, out / "out.onnx", progress=progress)
    assert str(caught.value).isprintable()
    assert not out.exists()
    assert source.read_bytes() == before


@pytest.mark.campaign
@pytest.mark.parametrize("external", [False, True])
def test_of_two_runs_to_one_output_one_wins_whole(tmp_path: Path, external: bool) -> None:
    """Two models of other weights, whose mixture would be seen."""
    options = ("--save-as-external-data",) if external else ()
    alone = {}
    for names in ("AB", "CD"):
        model = linear(*(weight(name, 64, 64) for name in names))
        given = Subject(names, model, (), options)
        alone[tmp_path / names / "in.onnx"] = result_of(given, tmp_path / names)
    out = tmp_path / "out"
    out.mkdir()
    for _ in range(3):
        assert two_at_once(alone, out / "o.onnx", options) is None


def test_data_of_another_run_is_not_replaced_even_at_the_last_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = save(large_model(), tmp_path / "in.onnx", "in.data")
    link = os.link

    def late(staged: Path, final: Path) -> None:
        final.write_bytes(b"of another run")
        link(staged, final)

    out = tmp_path / "out"
    out.mkdir()
    with model_io.stage(model_io.load(source), out / "o.onnx") as staged:
        monkeypatch.setattr(os, "link", late)
        with pytest.raises(ModelError, match="another process has written it meanwhile"):
            staged.commit()
    assert listing(out) == ["o.onnx.data"]
    assert (out / "o.onnx.data").read_bytes() == b"of another run"


def test_where_no_links_can_be_made_data_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = save(large_model(), tmp_path / "in.onnx", "in.data")

    def refused(staged: Path, final: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    with model_io.stage(model_io.load(source), tmp_path / "o.onnx") as staged:
        staged.commit()
    assert contents(tmp_path / "o.onnx") == contents(source)
    assert np.frombuffer(contents(source)["W"], np.float32).size == WIDTH * WIDTH


@pytest.mark.campaign
def test_a_kill_before_any_step_of_the_command_leaves_all_or_nothing(tmp_path: Path) -> None:
    given = subject("in.data")
    result = result_of(given, tmp_path / "whole")
    outcomes = []
    while not outcomes or outcomes[-1].reached:
        folder = tmp_path / f"run{len(outcomes)}"
        source = given.lay(folder)
        original = whole(source)
        outcomes.append(command(given.arguments("out/o.onnx"), folder, len(outcomes), kill))
        assert broken(outcomes[-1], folder / "out/o.onnx", None, [result]) is None
        assert whole(source) == original
    assert [ended.code for ended in outcomes] == [None] * (len(outcomes) - 1) + [0]
    assert len(outcomes) > 20


@pytest.mark.campaign
@pytest.mark.parametrize("what", CHANGES)
def test_an_input_that_changes_before_any_step_gives_one_of_two_results_or_none(
    tmp_path: Path, what: str
) -> None:
    given = subject("in.data")
    results = [result_of(given, tmp_path / "before")]
    if what == "other numbers":
        results.append(result_of(given, tmp_path / "after", what))
    codes = []
    for step in range(0, 60, 6):
        folder = tmp_path / f"run{step}"
        data = given.lay(folder).with_name("in.data")
        act = partial(change, what, data)
        ended = command(given.arguments("out/o.onnx"), folder, step, act)
        assert broken(ended, folder / "out/o.onnx", None, results) is None
        codes.append(ended.code)
        if not ended.reached:
            break
    assert 3 in codes
    assert codes[-1] == 0
