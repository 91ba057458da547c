"""What a killed process left is removed, and nothing that this program did not make."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import onnxfold
from onnxfold.geometry.accumulate import Totals
from onnxfold.geometry.measuring_state import Progress, load, save
from onnxfold.model_io import staging
from onnxfold.model_io.staging import StagingFolder, remove_left_by

MODEL = Path(__file__).resolve().parents[2] / "models" / "digits_vit" / "digits_vit.onnx"
MARKER = staging._MARKER
_LEAVE = """
import os, signal, sys
from pathlib import Path
from onnxfold.model_io.staging import StagingFolder
folder = StagingFolder(Path(sys.argv[1]), sys.argv[2])
(folder.path / "out.onnx").touch()
print(folder.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def left(parent: Path, prefix: str = ".onnxfold-") -> Path:
    """A folder that a killed process left behind."""
    command = [sys.executable, "-c", _LEAVE, str(parent), prefix]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    return Path(done.stdout.strip())


def age(folder: Path) -> None:
    os.utime(folder, (time.time() - 600,) * 2)


def clean(parent: Path, prefix: str = ".onnxfold-") -> None:
    StagingFolder(parent, prefix).close()


@pytest.mark.parametrize("prefix", [".onnxfold-", "~onnxfold-"])
def test_what_a_killed_process_left_is_removed(tmp_path: Path, prefix: str) -> None:
    first, second = left(tmp_path, prefix), left(tmp_path, prefix)
    clean(tmp_path, prefix)
    assert list(tmp_path.iterdir()) == []
    assert first != second
    third = left(tmp_path, prefix)
    remove_left_by(int(third.name.split("-")[1]), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [".onnxfold-notes", ".onnxfold-12-notes", ".onnxfold-"])
def test_a_folder_of_the_user_is_kept(tmp_path: Path, name: str) -> None:
    notes = tmp_path / name / "sub"
    notes.mkdir(parents=True)
    (notes / "thesis.txt").write_text("precious")
    age(tmp_path / name)
    onnxfold.optimize(MODEL, tmp_path / "out.onnx", check=None)
    remove_left_by(12, tmp_path)
    assert (notes / "thesis.txt").read_text() == "precious"


def test_a_folder_that_another_process_holds_is_kept(tmp_path: Path) -> None:
    held = StagingFolder(tmp_path)
    age(held.path)
    remove_left_by(os.getpid(), tmp_path)
    clean(tmp_path)
    assert held.path.is_dir()
    held.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_the_one_of_its_marker_is_kept(tmp_path: Path) -> None:
    made = left(tmp_path)
    shutil.copytree(made, tmp_path / "copy")
    renamed = left(tmp_path).rename(tmp_path / ".onnxfold-1-mine")
    made_too = tmp_path / made.name
    assert not made_too.exists()  # the second process removed it
    copied = (tmp_path / "copy").rename(made_too)
    other = left(tmp_path)
    marker = json.loads((other / MARKER).read_text())
    (other / MARKER).write_text(json.dumps(marker | {"host": socket.gethostname() + "2"}))
    for folder in (renamed, copied, other):
        age(folder)
    clean(tmp_path)
    assert {renamed, copied, other} == set(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["gone", "torn", "link", "folder"])
def test_a_folder_without_a_whole_marker_of_its_own_is_kept(tmp_path: Path, damage: str) -> None:
    folder = left(tmp_path)
    marker, elsewhere = folder / MARKER, tmp_path / "elsewhere"
    text = marker.read_bytes()
    elsewhere.write_bytes(text)
    marker.unlink()
    if damage == "torn":
        marker.write_bytes(text[:-1])
    elif damage == "link":
        marker.symlink_to(elsewhere)
    elif damage == "folder":
        marker.mkdir()
    clean(tmp_path)
    assert (folder / "out.onnx").exists()


def test_a_link_to_a_left_folder_is_kept(tmp_path: Path) -> None:
    (tmp_path / "parent").mkdir()
    (tmp_path / "elsewhere").mkdir()
    folder = left(tmp_path / "elsewhere")
    link = tmp_path / "parent" / folder.name
    link.symlink_to(folder)
    clean(tmp_path / "parent")
    assert link.is_symlink()
    assert (folder / "out.onnx").exists()


def test_a_disowned_folder_stays_where_its_process_is_killed(tmp_path: Path) -> None:
    folder = StagingFolder(tmp_path)
    (folder.path / "theirs").touch()
    folder.disown()
    os.close(folder._lock)  # as the system does with a killed process
    clean(tmp_path)
    assert (folder.path / "theirs").exists()


def test_the_progress_of_a_measurement_replaces_no_other_file(tmp_path: Path) -> None:
    path, notes = tmp_path / "state.json", tmp_path / "state.json.new"
    notes.write_text("precious")
    save(path, "mark", Progress(0, Totals.none([])))
    assert load(path, "mark") is not None
    assert notes.read_text() == "precious"
    assert sorted(tmp_path.iterdir()) == [path, notes]
