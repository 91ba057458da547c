"""Where an output may not be written: said before any work."""

from __future__ import annotations

import errno
import os
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from onnxfold import model_io
from onnxfold.errors import ModelError, UsageError
from tests.model_io.files import rich_model, save


def test_the_input_is_known_by_any_of_its_names(tmp_path: Path) -> None:
    source = save(rich_model(), tmp_path / "in.onnx", "in.data")
    (tmp_path / "link.onnx").symlink_to(source)
    (tmp_path / "sub").mkdir()
    (tmp_path / "folder").symlink_to(".")
    os.link(source, tmp_path / "hard.onnx")
    for name in ("link.onnx", "hard.onnx", "folder/in.onnx", "sub/../in.onnx"):
        with pytest.raises(UsageError, match="it is the input"):
            model_io.check_destination(tmp_path / name, source=source, force=False)
        with pytest.raises(UsageError, match="it is the input"):
            model_io.check_destination(source, source=tmp_path / name, force=False)
        model_io.check_destination(tmp_path / name, source=source, force=True)


def test_the_data_of_the_input_is_never_an_output(tmp_path: Path) -> None:
    source = save(rich_model(), tmp_path / "in.onnx", "in.0", "in.1")
    for name, force in product(("in.0", "in.1"), (False, True)):
        with pytest.raises(UsageError, match="contains the weights of the input"):
            model_io.stage(model_io.load(source), tmp_path / name, source=source, force=force)


def test_a_destination_that_cannot_be_written_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(path: Path, message: str) -> None:
        with pytest.raises(ModelError, match=message) as caught:
            model_io.check_destination(path, source=None, force=True)
        assert str(caught.value).startswith(str(path))

    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    made = tmp_path / "no"
    check(made / "out.onnx", rf"does not exist; create it first \(mkdir -p {made}\)")
    check(tmp_path / "file" / "out.onnx", "is not a folder")
    check(tmp_path, "it is a directory; name a file in it")
    check(Path("/"), "it is a directory")
    check(tmp_path / "pipe", "it is not a regular file")
    check(Path("/dev/null"), "it is not a regular file")
    check(Path("/dev/not-there"), "it is not a regular file")
    check(Path("/proc/self/fd/1"), "it is not a regular file")
    check(tmp_path / ("a" * 300), "File name too long; choose another output path")
    monkeypatch.setattr(os, "access", lambda *_: False)
    check(tmp_path / "out.onnx", "cannot be written; choose another output folder")
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    model_io.check_destination("out.onnx", source=None, force=False)
    (tmp_path / "out.onnx").symlink_to("nowhere")
    model_io.check_destination("out.onnx", source=Path("in.onnx"), force=False)


def test_a_folder_that_may_not_be_searched_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulated, for root may search every folder."""
    closed, stat_of = tmp_path / "closed", os.stat

    def refused(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        if Path(path).parent == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat_of(path, *args, **kwargs)

    closed.mkdir()
    monkeypatch.setattr(os, "stat", refused)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ModelError, match="closed cannot be written; choose another"):
        model_io.check_destination(closed / "out.onnx", source=None, force=False)
