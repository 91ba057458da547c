"""Data files of the output: sharded as the input is, and tensors that stay where they are."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxfold import model_io
from onnxfold.errors import ModelError, UsageError
from tests.model_io.files import (
    contents,
    lazily,
    linear,
    listing,
    refer,
    rich_model,
    run,
    save,
    weight,
    written,
)


def seven(folder: Path, *data: str) -> Path:
    return save(linear(*(weight(f"w{i}", 50, 7) for i in range(7))), folder / "in.onnx", *data)


def locations(path: Path) -> dict[str, str]:
    """Where every external initializer of a model on disk is."""
    proto = onnx.load(path, load_external_data=False)
    return {
        tensor.name: entry.value
        for tensor in proto.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }


def raised(tensor: ir.TensorProtocol) -> ir.LazyTensor:
    """A tensor that is computed from another one, as the rewriting makes them."""
    made = lazily(tensor, lambda array: array + np.float32(1))
    made.base = tensor  # type: ignore[attr-defined]  # what EditedTensor has
    return made


def test_shards_stay_shards_with_the_same_tensors_in_the_same_order(tmp_path: Path) -> None:
    source = seven(tmp_path, "a", "b", "c")
    result = written(model_io.load(source), tmp_path / "out.onnx")
    names = [f"out.onnx-0000{i}-of-00003.data" for i in (1, 2, 3)]
    assert [shard.name for shard in result.shards] == names
    for old, new in zip("abc", names, strict=True):
        assert (tmp_path / new).read_bytes() == (tmp_path / old).read_bytes()
    renamed = dict(zip("abc", names, strict=True))
    before = locations(source)
    assert locations(result.model) == {name: renamed[old] for name, old in before.items()}
    onnx.checker.check_model(result.model)


def test_changed_tensors_keep_their_shard_and_new_ones_follow_the_last(tmp_path: Path) -> None:
    source = seven(tmp_path, "a", "b")
    before = locations(source)
    model = changed(source, "w3")
    new = ir.tensor(np.ones(500, np.float32), name="new")
    model.graph.register_initializer(ir.Value(name="new", const_value=new))
    result = written(model, tmp_path / "out.onnx")
    after = locations(result.model)
    files = dict(zip("ab", (shard.name for shard in result.shards), strict=True))
    assert {name: after[name] for name in before} == {n: files[old] for n, old in before.items()}
    assert after["new"] == after["w6"]


def test_a_file_for_every_tensor_is_no_sharding(tmp_path: Path) -> None:
    source = seven(tmp_path, *"abcdefg")
    result = written(model_io.load(source), tmp_path / "out.onnx")
    assert [shard.name for shard in result.shards] == ["out.onnx.data"]
    assert contents(result.model) == contents(source)


def test_names_of_shards_that_are_taken_are_left_alone(tmp_path: Path) -> None:
    source = seven(tmp_path, "a", "b")
    first = written(model_io.load(source), tmp_path / "out.onnx")
    first.model.rename(tmp_path / "kept.onnx")
    second = written(model_io.load(source), tmp_path / "out.onnx")
    assert [shard.name for shard in second.shards] == [
        "out.onnx.1-00001-of-00002.data",
        "out.onnx.1-00002-of-00002.data",
    ]
    assert contents(tmp_path / "kept.onnx") == contents(second.model) == contents(source)


def test_replacing_a_sharded_model_keeps_the_names_of_its_shards(tmp_path: Path) -> None:
    source = seven(tmp_path, "a", "b")
    target = tmp_path / "out.onnx"
    first = written(model_io.load(source), target)
    before = listing(tmp_path), target.read_bytes()
    for model in (model_io.load(source), changed(source, "w3"), model_io.load(source)):
        again = written(model, target)
        assert again == first
        assert listing(tmp_path) == before[0]
    assert target.read_bytes() == before[1]
    assert contents(target) == contents(source)


def test_other_names_are_left_where_a_model_has_fewer_shards_than_the_old(tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    written(model_io.load(seven(tmp_path, "a", "b", "c")), target)
    second = written(model_io.load(seven(tmp_path, "a", "b")), target)
    assert [shard.name for shard in second.shards] == [
        "out.onnx-00001-of-00002.data",
        "out.onnx-00002-of-00002.data",
    ]
    names = [shard.name for shard in second.shards]
    assert set(listing(tmp_path)) == {"a", "b", "c", "in.onnx", "out.onnx", *names}


def test_a_shard_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    source = seven(tmp_path, "a", "b")
    theirs = tmp_path / "out.onnx-00002-of-00002.data"
    with model_io.stage(model_io.load(source), tmp_path / "out.onnx") as staged:
        theirs.write_bytes(b"theirs")
        result = staged.commit()
    assert theirs.read_bytes() == b"theirs"
    assert [shard.name for shard in result.shards] == [
        "out.onnx.1-00001-of-00002.data",
        "out.onnx.1-00002-of-00002.data",
    ]
    assert contents(result.model) == contents(source)


def changed(source: Path, name: str = "W1") -> ir.Model:
    model = model_io.load(source)
    value = model.graph.initializers[name]
    assert value.const_value is not None
    value.const_value = raised(value.const_value)
    return model


def shared(source: Path, target: Path, *, edit: str = "W1") -> model_io.OutputFiles:
    return written(changed(source, edit), target, share=True, source=source)


def test_only_changed_tensors_are_written_where_weights_are_shared(tmp_path: Path) -> None:
    source = save(rich_model(), tmp_path / "in.onnx", "a.data", "b.data")
    before = locations(source)
    result = shared(source, tmp_path / "out.onnx")
    after = locations(result.model)
    assert after.pop("W1") == "out.onnx.data"
    assert before.pop("W1") == "a.data"
    assert after == before
    assert result.data is not None
    # The branch has a weight of this size too, which was in the model's own file.
    assert result.data.stat().st_size == 2 * 64 * 64 * 4
    assert [path.name for path in result.shared] == ["b.data", "a.data"]
    assert all((tmp_path / name).stat().st_nlink == 1 for name in ("a.data", "b.data"))
    expected, given = contents(source), contents(result.model)
    assert {name for name in given if given[name] != expected[name]} == {"W1"}
    onnx.checker.check_model(result.model)


def test_a_model_with_shared_weights_runs_staged_and_published(tmp_path: Path) -> None:
    source = save(rich_model(), tmp_path / "in.onnx", "in.data")
    expected = run(written(changed(source), tmp_path / "whole.onnx").model)
    model = changed(source)
    with model_io.stage(model, tmp_path / "out.onnx", share=True, source=source) as staged:
        np.testing.assert_array_equal(run(staged.path), expected)
        model_io.load(staged.path)
        result = staged.commit()
    np.testing.assert_array_equal(run(result.model), expected)


def test_a_model_that_shares_can_be_shared_from(tmp_path: Path) -> None:
    source = save(rich_model(), tmp_path / "in.onnx", "in.data")
    first = shared(source, tmp_path / "first.onnx")
    second = shared(first.model, tmp_path / "second.onnx", edit="W2")
    assert {path.name for path in second.shared} == {"first.onnx.data", "in.data"}
    third = written(model_io.load(second.model), tmp_path / "third.onnx", share=True,
                    source=second.model)  # fmt: skip
    assert third.shards == ()
    assert contents(third.model) == contents(second.model)


def test_data_that_the_new_model_shares_survives_replacing_its_source(tmp_path: Path) -> None:
    source = save(rich_model(), tmp_path / "in.onnx", "in.data")
    expected = contents(written(changed(source), tmp_path / "whole.onnx").model)
    model = changed(source)
    result = written(model, source, share=True, source=source, force=True)
    assert contents(result.model) == expected
    assert "in.data" in listing(tmp_path)


def test_without_the_data_that_it_shares_a_model_is_refused(tmp_path: Path) -> None:
    source = save(rich_model(), tmp_path / "in.onnx", "in.data")
    result = shared(source, tmp_path / "out.onnx")
    (tmp_path / "in.data").unlink()
    with pytest.raises(ModelError, match=r"out\.onnx.* 'in\.data', which is missing"):
        model_io.load(result.model)
    (tmp_path / "in.data").write_bytes(b"short")
    with pytest.raises(ModelError, match=r"'in\.data', which has 5: it is truncated"):
        model_io.load(result.model)


def test_data_that_changed_since_it_was_read_is_not_shared(tmp_path: Path) -> None:
    source = save(rich_model(), tmp_path / "in.onnx", "in.data")
    model = changed(source)
    with open(tmp_path / "in.data", "ab") as file:
        file.write(b"more")
    with pytest.raises(ModelError, match="the file has changed since it was loaded"):
        written(model, tmp_path / "out.onnx", share=True, source=source)
    assert listing(tmp_path) == ["in.data", "in.onnx"]


def test_weights_cannot_be_shared_from_elsewhere(tmp_path: Path) -> None:
    source = save(rich_model(), tmp_path / "in.onnx", "in.data")
    whole = save(rich_model(), tmp_path / "whole.onnx")
    (tmp_path / "sub").mkdir()
    for model, given, target, message in (
        (source, source, tmp_path / "sub" / "out.onnx", "only from the folder of the input's data"),
        (whole, whole, tmp_path / "out.onnx", "has no data files"),
        (source, None, tmp_path / "out.onnx", "read from a file"),
    ):
        with pytest.raises(UsageError, match=message):
            written(model_io.load(model), target, share=True, source=given)
    assert not (tmp_path / "sub" / "out.onnx").exists()


def test_weights_in_the_model_itself_cannot_be_shared(tmp_path: Path) -> None:
    source = save(linear(weight("w", 400, 400)), tmp_path / "in.onnx")
    with pytest.raises(UsageError, match="has no data files, so there are no weights to share"):
        shared(source, tmp_path / "out.onnx", edit="w")


def test_data_behind_a_symbolic_link_is_not_shared(tmp_path: Path) -> None:
    """A cache has links in one folder that lead into its folder of blobs."""
    for folder in ("blobs", "snapshot"):
        (tmp_path / folder).mkdir()
    save(rich_model(), tmp_path / "blobs" / "in.onnx", "in.data")
    for name in ("in.onnx", "in.data"):
        (tmp_path / "snapshot" / name).symlink_to(f"../blobs/{name}")
    source = tmp_path / "snapshot" / "in.onnx"
    with pytest.raises(UsageError, match="only from the folder of the input's data"):
        written(model_io.load(source), tmp_path / "snapshot" / "o.onnx", share=True, source=source)


def test_where_files_cannot_be_linked_nothing_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = save(rich_model(), tmp_path / "in.onnx", "in.data")

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(ModelError, match="it cannot be linked, which sharing weights needs"):
        shared(source, tmp_path / "out.onnx")
    assert listing(tmp_path) == ["in.data", "in.onnx"]


def test_data_in_a_folder_below_is_shared(tmp_path: Path) -> None:
    proto = rich_model()
    (tmp_path / "weights").mkdir()
    with open(tmp_path / "weights" / "in.data", "wb") as file:
        for tensor in proto.graph.initializer:
            start, data = file.tell(), tensor.raw_data
            file.write(data)
            refer(tensor, "weights/in.data", start, len(data))
    source = tmp_path / "in.onnx"
    source.write_bytes(proto.SerializeToString())
    result = shared(source, tmp_path / "out.onnx")
    assert locations(result.model)["W2"] == "weights/in.data"
    assert contents(result.model).keys() == contents(source).keys()
