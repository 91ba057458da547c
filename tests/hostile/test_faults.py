"""Faults around a run: full disk, read-only folder, folder or input gone, two runs at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfold
from onnxfold import model_io
from onnxfold.errors import ModelError
from tests.hostile.seeds import WIDTH, layer_norm_model
from tests.model_io.files import contents, linear, listing, save, weight

ROOT = Path(__file__).parents[2]
MOUNT, UMOUNT = (shutil.which(name) or name for name in ("mount", "umount"))


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
    """A model with a weight of a megabyte beside what folds."""
    model = layer_norm_model()
    model.graph.initializer.append(weight("large", 512, 512))
    model.graph.node.append(onnx.helper.make_node("ReduceMax", ["large"], ["z"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("z", 1, [1, 1]))
    return model


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = [MOUNT, "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)]
    try:
        allowed = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        allowed = False
    if not allowed:
        pytest.skip("no file system can be mounted here")
    yield disk
    subprocess.run([UMOUNT, str(disk)], check=True)


@pytest.mark.parametrize("data", [(), ("in.data",)], ids=["embedded", "external"])
def test_a_full_disk_is_named_and_nothing_stays_on_it(
    tmp_path: Path, small_disk: Path, data: tuple[str, ...]
) -> None:
    save(large_model(), tmp_path / "in.onnx", *data)
    (small_disk / "out.onnx").write_bytes(b"what was there")
    done = run("optimize", "in.onnx", "-o", str(small_disk / "out.onnx"), folder=tmp_path)
    assert done.returncode == 3
    assert "the disk is full" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert listing(small_disk) == ["out.onnx"]
    assert (small_disk / "out.onnx").read_bytes() == b"what was there"


def test_a_read_only_disk_is_named(tmp_path: Path, small_disk: Path) -> None:
    save(layer_norm_model(), tmp_path / "in.onnx")
    subprocess.run([MOUNT, "-o", "remount,ro", str(small_disk)], check=True)
    done = run("optimize", "in.onnx", "-o", str(small_disk / "out.onnx"), folder=tmp_path)
    assert done.returncode == 3
    assert "cannot be written" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert listing(small_disk) == []


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


@pytest.mark.parametrize("external", [False, True])
def test_of_two_runs_to_one_output_one_wins_whole(tmp_path: Path, external: bool) -> None:
    """Two models of other weights, whose mixture would be seen."""
    models = [linear(*(weight(name, 64, 64) for name in names)) for names in ("AB", "CD")]
    sources = [save(m, tmp_path / f"in{i}.onnx") for i, m in enumerate(models)]
    out = tmp_path / "out"
    out.mkdir()
    options = ["--save-as-external-data"] if external else []
    for _ in range(3):
        runs = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "onnxfold",
                    "optimize",
                    source,
                    "-o",
                    out / "o.onnx",
                    *options,
                ],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stderr=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                text=True,
            )
            for source in sources
        ]
        ended = [(process.communicate()[1], process.returncode) for process in runs]
        assert 0 in [code for _, code in ended]
        for said, code in ended:
            assert code == 0 or (code == 3 and "another process has written it" in said), said
        assert contents(out / "o.onnx") in [contents(source) for source in sources]
        assert not [name for name in listing(out) if name.startswith(".")]


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
