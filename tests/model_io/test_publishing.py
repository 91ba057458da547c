from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold import model_io
from onnxfold.errors import InvariantError, ModelError, UsageError
from onnxfold.model_io import copying
from tests.model_io.files import contents, linear, listing, rich_model, run, save, weight


def doubled(path: Path) -> ir.Model:
    """A model whose first weight, of three, is edited."""
    model = model_io.load(path)
    doubled = ir.tensor(constant(model, "W1").numpy() * 2)
    model.graph.initializers["W1"].const_value = doubled
    return model


def constant(model: ir.Model, name: str) -> ir.TensorProtocol:
    value = model.graph.initializers[name].const_value
    assert value is not None
    return value


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save(rich_model(), tmp_path / "in.onnx", "in.data")


def fails(code: int) -> Callable[..., None]:
    """A call of the system that fails."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def data_of(files: model_io.OutputFiles) -> Path:
    assert files.data is not None
    return files.data


def publish(model: ir.Model, path: Path, source: Path | None = None) -> model_io.OutputFiles:
    with model_io.stage(model, path, source=source, force=source is not None) as staged:
        return staged.commit()


@pytest.mark.parametrize("data", [(), ("in.data",)], ids=["embedded", "external"])
def test_nothing_is_left_of_a_model_that_is_not_committed(
    tmp_path: Path, data: tuple[str, ...]
) -> None:
    source = save(rich_model(), tmp_path / "in.onnx", *data)
    before = listing(tmp_path)
    with model_io.stage(model_io.load(source), tmp_path / "out.onnx") as staged:
        (folder,) = set(listing(tmp_path)) - set(before)
        assert folder.startswith(".")
        assert staged.path.parent.name == folder
        assert staged.path.name == "out.onnx"
    assert listing(tmp_path) == before
    with pytest.raises(InvariantError):
        staged.commit()
    with pytest.raises(KeyError), model_io.stage(model_io.load(source), tmp_path / "out.onnx"):
        raise KeyError
    assert listing(tmp_path) == before


def test_a_model_is_committed_once(tmp_path: Path, source: Path) -> None:
    with model_io.stage(model_io.load(source), tmp_path / "out.onnx") as staged:
        result = staged.commit()
        with pytest.raises(InvariantError, match="committed twice"):
            staged.commit()
    assert (result.model, result.data) == (tmp_path / "out.onnx", tmp_path / "out.onnx.data")
    assert listing(tmp_path) == ["in.data", "in.onnx", "out.onnx", "out.onnx.data"]


def test_an_output_is_replaced_together_with_its_data(tmp_path: Path, source: Path) -> None:
    output, data = tmp_path / "out.onnx", tmp_path / "out.onnx.data"
    wrote = []
    for made in (model_io.load, model_io.load, doubled, model_io.load):
        result = publish(made(source), output)
        assert (result.model, result.data) == (output, data)
        assert listing(tmp_path) == ["in.data", "in.onnx", "out.onnx", "out.onnx.data"]
        assert result.nbytes == output.stat().st_size + data.stat().st_size
        wrote.append((output.read_bytes(), data.read_bytes()))
    assert wrote[0] == wrote[1] == wrote[3]
    assert wrote[2] != wrote[0]
    np.testing.assert_array_equal(run(output), run(source))


def test_data_that_is_there_already_is_not_written_again(tmp_path: Path, source: Path) -> None:
    first = publish(model_io.load(source), tmp_path / "out.onnx")
    inode = data_of(first).stat().st_ino
    publish(model_io.load(source), tmp_path / "out.onnx")
    assert data_of(first).stat().st_ino == inode
    # As a kill between the data and the model leaves it.
    first.model.unlink()
    assert publish(model_io.load(source), tmp_path / "out.onnx") == first
    # Runtimes refuse data with two hard links.
    os.link(data_of(first), tmp_path / "another")
    assert publish(model_io.load(source), tmp_path / "out.onnx") == first
    assert data_of(first).stat().st_nlink == 1
    np.testing.assert_array_equal(run(tmp_path / "out.onnx"), run(source))


def test_a_disk_that_is_full_for_the_second_copy_leaves_the_new_model_whole(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(model_io.load(source), tmp_path / "out.onnx")

    with model_io.stage(doubled(source), tmp_path / "out.onnx") as staged:
        monkeypatch.setattr(shutil, "copyfile", fails(errno.ENOSPC))
        result = staged.commit()
    assert result.data == tmp_path / "out.onnx.1.data"
    assert listing(tmp_path) == ["in.data", "in.onnx", "out.onnx", "out.onnx.1.data"]
    monkeypatch.undo()
    assert contents(result.model)["W1"] != contents(source)["W1"]
    assert publish(doubled(source), tmp_path / "out.onnx").data == tmp_path / "out.onnx.data"
    assert listing(tmp_path) == ["in.data", "in.onnx", "out.onnx", "out.onnx.data"]


def test_data_that_something_else_wrote_is_neither_taken_nor_deleted(
    tmp_path: Path, source: Path
) -> None:
    output = save(rich_model(), tmp_path / "out.onnx", "weights.bin")
    (tmp_path / "out.onnx.data").write_text("precious")
    for model in (model_io.load(source), doubled(source), model_io.load(source)):
        assert publish(model, output).data == tmp_path / "out.onnx.1.data"
    assert (tmp_path / "out.onnx.data").read_text() == "precious"
    assert (tmp_path / "weights.bin").exists()


@pytest.mark.parametrize("data", [(), ("in.onnx.data",), ("a", "b")], ids=["one", "two", "shards"])
def test_the_input_is_replaced_only_by_force_and_then_whole(
    tmp_path: Path, data: tuple[str, ...]
) -> None:
    source = save(rich_model(200), tmp_path / "in.onnx", *data)
    expected = run(source, 200)
    before = listing(tmp_path), contents(source)
    with pytest.raises(UsageError, match="it is the input; choose another output, or force=True"):
        model_io.stage(model_io.load(source), source, source=source)
    assert (listing(tmp_path), contents(source)) == before
    model = model_io.load(source)
    W1, W2 = (constant(model, name) for name in ("W1", "W2"))
    kept = W1.numpy()
    model.graph.initializers["b"].const_value = ir.tensor(np.zeros(200, np.float32))
    result = publish(model, source, source)
    # Data under other names than ours was written by another program.
    ours = (path.name for path in (result.model, result.data) if path)
    assert listing(tmp_path) == sorted({*ours, *(name for name in data if len(name) == 1)})
    assert contents(source)["b"] == bytes(800)
    assert contents(source)["W1"] == kept.tobytes() == weight("W1", 200, 200).raw_data
    assert not np.array_equal(run(source, 200), expected)
    # The caller's model still names the old file, which is gone: no wrong bytes are given for it.
    if len(data) < 2:
        with pytest.raises(ModelError, match=r"No such file|has changed since"):
            W2.numpy()


@pytest.mark.parametrize(("link", "error"), [("gone", "which is missing"), ("in.data", "oo many")])
def test_data_of_the_input_that_a_link_loses_is_told(
    tmp_path: Path, source: Path, link: str, error: str
) -> None:
    output = save(rich_model(), tmp_path / "out.onnx")
    (tmp_path / "in.data").unlink()
    (tmp_path / "in.data").symlink_to(link)
    with pytest.raises(ModelError, match=error):
        onnxfold.optimize(source, output, force=True)


@pytest.mark.parametrize("target", ["blobs/hash", "hash", "hash.onnx"])
def test_a_link_at_the_destination_is_replaced_and_its_target_kept(
    tmp_path: Path, target: str
) -> None:
    (tmp_path / "blobs").mkdir()
    source = save(rich_model(), tmp_path / target, "hash.data")
    before = contents(source)
    link = tmp_path / "model.onnx"
    link.symlink_to(source)
    result = publish(doubled(link), link, link)
    assert not link.is_symlink()
    assert result.data == tmp_path / "model.onnx.data"
    assert contents(source) == before
    assert contents(link)["W1"] != before["W1"]


def test_another_name_of_the_old_output_stays_whole(tmp_path: Path, source: Path) -> None:
    old = publish(model_io.load(source), tmp_path / "out.onnx")
    os.link(old.model, tmp_path / "hard.onnx")
    publish(doubled(source), tmp_path / "out.onnx")
    assert contents(tmp_path / "hard.onnx") == contents(source)
    # A symbolic link leads to the new model, so it does not need the old data.
    (tmp_path / "link.onnx").symlink_to("out.onnx")
    (tmp_path / "hard.onnx").unlink()
    second = publish(doubled(source), tmp_path / "out.onnx", tmp_path / "link.onnx")
    third = publish(model_io.load(source), tmp_path / "out.onnx", tmp_path / "link.onnx")
    assert not data_of(second).exists()
    assert third.data is not None
    assert contents(tmp_path / "link.onnx") == contents(source)


def test_data_that_another_model_uses_is_neither_taken_nor_deleted(
    tmp_path: Path, source: Path
) -> None:
    first = publish(model_io.load(source), tmp_path / "out.onnx")
    shutil.copy(first.model, tmp_path / "copy.ONNX")
    expected = run(source)
    second = publish(doubled(source), tmp_path / "out.onnx")
    assert data_of(first).exists()
    assert second.data == tmp_path / "out.onnx.1.data"
    np.testing.assert_array_equal(run(tmp_path / "copy.ONNX"), expected)
    # A model that was renamed keeps the data of its old name.
    (tmp_path / "copy.ONNX").unlink()
    second.model.rename(tmp_path / "best.onnx")
    best = run(tmp_path / "best.onnx")
    third = publish(model_io.load(source), tmp_path / "out.onnx")
    assert third.data == tmp_path / "out.onnx.data"  # which nothing uses, and has these bytes
    third.model.rename(tmp_path / "good.onnx")
    assert publish(doubled(source), tmp_path / "out.onnx").data == tmp_path / "out.onnx.2.data"
    np.testing.assert_array_equal(run(tmp_path / "best.onnx"), best)


def test_data_is_kept_where_it_is_unclear_who_uses_it(tmp_path: Path, source: Path) -> None:
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(source.read_bytes()[:-5])
    first = publish(model_io.load(source), tmp_path / "out.onnx")
    publish(model_io.load(source), tmp_path / "out.onnx")
    assert data_of(first).exists()
    # The input, when it lies elsewhere, may share what the old output used.
    damaged.unlink()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.data").write_bytes((tmp_path / "in.data").read_bytes())
    here = save(rich_model(), tmp_path / "sub" / "out.onnx", "w.data")
    above = save(rich_model(), tmp_path / "above.onnx", "w.data")
    (tmp_path / "w.data").unlink()
    (tmp_path / "w.data").symlink_to("sub/w.data")
    publish(model_io.load(above), here, above)
    np.testing.assert_array_equal(run(above), run(source))


def test_an_embedded_output_replaces_an_external_one_and_its_data(tmp_path: Path) -> None:
    source = save(rich_model(), tmp_path / "in.onnx")
    model = model_io.load(source)
    with model_io.stage(model, tmp_path / "out.onnx", external_data=True) as staged:
        staged.commit()
    publish(model, tmp_path / "out.onnx")
    assert listing(tmp_path) == ["in.onnx", "out.onnx"]


def test_the_mode_of_a_replaced_model_is_kept(tmp_path: Path) -> None:
    source = save(rich_model(), tmp_path / "in.onnx")
    mask = os.umask(0o027)
    try:
        result = publish(model_io.load(source), tmp_path / "out.onnx")
        assert stat.S_IMODE(result.model.stat().st_mode) == 0o640
        result.model.chmod(0o604)
        result = publish(model_io.load(source), tmp_path / "out.onnx")
        assert stat.S_IMODE(result.model.stat().st_mode) == 0o604
    finally:
        os.umask(mask)


def test_data_names_avoid_everything_in_the_folder(tmp_path: Path, source: Path) -> None:
    (tmp_path / "m.onnx.data").mkdir()
    (tmp_path / "m.onnx.1.data").symlink_to("nowhere")
    (tmp_path / "m.onnx.2.data").symlink_to("in.data")
    result = publish(model_io.load(source), tmp_path / "m.onnx")
    assert result.data == tmp_path / "m.onnx.3.data"
    assert publish(doubled(source), tmp_path / "m.onnx").data == result.data
    name = os.fsdecode(b"\xff.onnx")
    result = publish(model_io.load(source), tmp_path / name)
    assert result.data == tmp_path / "?.onnx.data"
    assert contents(result.model)["W1"] == weight("W1", 64, 64).raw_data


def test_two_that_write_the_same_output_do_not_mix(tmp_path: Path, source: Path) -> None:
    with (
        model_io.stage(model_io.load(source), tmp_path / "out.onnx") as first,
        model_io.stage(doubled(source), tmp_path / "out.onnx") as second,
    ):
        first.commit()
        with pytest.raises(ModelError, match="another process has written it meanwhile"):
            second.commit()
    np.testing.assert_array_equal(run(tmp_path / "out.onnx"), run(source))
    assert listing(tmp_path) == ["in.data", "in.onnx", "out.onnx", "out.onnx.data"]


def test_an_output_that_another_is_publishing_stays(tmp_path: Path, source: Path) -> None:
    output = publish(model_io.load(source), tmp_path / "out.onnx").model
    before = listing(tmp_path), contents(output)
    with output.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ModelError, match="another process has written it meanwhile"):
            publish(doubled(source), output)
    assert before == (listing(tmp_path), contents(output))
    publish(doubled(source), output)
    twice = 2 * constant(model_io.load(source), "W1").numpy()
    assert np.array_equal(constant(model_io.load(output), "W1").numpy(), twice)


def test_a_folder_that_refuses_new_files_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = save(rich_model(), tmp_path / "in.onnx")

    monkeypatch.setattr(tempfile, "mkdtemp", fails(errno.EROFS))
    with pytest.raises(ModelError, match=r"out.onnx: it cannot be written: Read-only file system"):
        model_io.stage(model_io.load(source), tmp_path / "out.onnx")


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("after", [0, 20_000, 900_000])
def test_a_full_disk_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, external: bool, after: int
) -> None:
    source = save(linear(weight("W1", 500, 500)), tmp_path / "in.onnx", "in.data")
    publish(model_io.load(source), tmp_path / "out.onnx")
    before = listing(tmp_path), contents(tmp_path / "out.onnx")
    space = after

    def write(_: copying.OutputFile, __: BinaryIO, data: bytes | memoryview, *___: int) -> None:
        nonlocal space
        space -= len(data)
        if space < 0:
            raise OSError(errno.ENOSPC, "No space left on device")

    model = doubled(source) if after else model_io.load(source)
    monkeypatch.setattr(copying.OutputFile, "_copy_in_kernel", lambda self, piece: piece.start)
    monkeypatch.setattr(copying.OutputFile, "_write", write)
    with pytest.raises(ModelError, match=r"the disk is full: 1.0 MB are needed and .* MB are free"):
        model_io.stage(model, tmp_path / "out.onnx", external_data=external)
    assert (listing(tmp_path), contents(tmp_path / "out.onnx")) == before


def test_an_error_of_the_system_while_writing_is_told_in_one_line(tmp_path: Path) -> None:
    source = save(linear(weight("W1", 500, 500)), tmp_path / "in.onnx", "in.data")
    before = listing(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for external in (False, True):
        # The kernel refuses what grows beyond the limit, in copies and in writes.
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, limits[1]))
        try:
            with pytest.raises(ModelError, match="it cannot be written: File too large") as caught:
                model_io.stage(model_io.load(source), tmp_path / "out.onnx", external_data=external)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert str(caught.value).isprintable()
        assert listing(tmp_path) == before


@pytest.mark.parametrize("failing", ["link", "replace"])
def test_a_rename_that_fails_leaves_what_was_there(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    publish(model_io.load(source), tmp_path / "out.onnx")
    before = listing(tmp_path), contents(tmp_path / "out.onnx")

    with model_io.stage(doubled(source), tmp_path / "out.onnx") as staged:
        monkeypatch.setattr(os, failing, fails(errno.EPERM))
        if failing == "link":
            # A file system without hard links; the data is renamed then.
            monkeypatch.setattr(os, "rename", fails(errno.EPERM))
        with pytest.raises(ModelError, match="cannot be written: Operation not permitted"):
            staged.commit()
    assert (listing(tmp_path), contents(tmp_path / "out.onnx")) == before


def _touched(data: Path) -> None:
    data.write_bytes(data.read_bytes())
    os.utime(data, ns=(1, 1))


def test_a_source_that_goes_away_or_shrinks_is_named(tmp_path: Path) -> None:
    path = tmp_path / "in.onnx"
    for damage in (Path.unlink, _touched, lambda data: os.truncate(data, 5000)):
        source = save(rich_model(), path, "in.data")
        model = model_io.load(source)
        data = tmp_path / "in.data"
        damage(data)
        with pytest.raises(ModelError, match=r"in.data: (No such file|the file has changed)"):
            model_io.stage(model, tmp_path / "out.onnx")
        assert not (tmp_path / "out.onnx").exists()


def test_a_foreign_file_that_is_too_short_is_named(tmp_path: Path) -> None:
    model = model_io.load(save(rich_model(), tmp_path / "in.onnx"))
    (tmp_path / "raw.bin").write_bytes(bytes(1000))
    tensor = ir.ExternalTensor(
        "raw.bin", 0, None, ir.DataType.FLOAT, shape=ir.Shape([400]), name="F", base_dir=tmp_path
    )
    model.graph.register_initializer(ir.Value(name="F", const_value=tensor))
    with pytest.raises(ModelError, match=r"raw.bin: the file became shorter"):
        model_io.stage(model, tmp_path / "out.onnx")
    tensor.invalidate()
    with pytest.raises(InvariantError, match="after it was invalidated"):
        model_io.stage(model, tmp_path / "out.onnx")


def test_a_copy_is_the_same_bytes_and_leaves_nothing_else(tmp_path: Path) -> None:
    source = save(rich_model(), tmp_path / "in.onnx")
    with pytest.raises(UsageError):
        model_io.stage_copy(source, source)
    with model_io.stage_copy(source, tmp_path / "out.onnx") as staged:
        written = staged.commit()
    assert (tmp_path / "out.onnx").read_bytes() == source.read_bytes()
    assert written.nbytes == source.stat().st_size
    assert set(listing(tmp_path)) == {"in.onnx", "out.onnx"}
