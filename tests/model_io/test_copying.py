from __future__ import annotations

import os
import re
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnxfold import model_io
from onnxfold.errors import InvariantError
from onnxfold.model_io import copying
from tests.model_io.files import (
    Array,
    contents,
    lazily,
    linear,
    listing,
    save,
    typed_weights,
    weight,
    written,
)


def test_edited_weights_are_computed_once_and_freed(tmp_path: Path) -> None:
    count = 12
    source = save(
        linear(*(weight(f"w{i}", 512, 512) for i in range(count))), tmp_path / "in.onnx", "in.data"
    )
    model = model_io.load(source)
    alive: list[weakref.ref[Array]] = []
    most = 0

    def centre(W: Array) -> Array:
        nonlocal most
        result: Array = W - W.mean(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
        alive.append(weakref.ref(result))
        most = max(most, sum(ref() is not None for ref in alive))
        return result

    expected = {}
    for initializer in list(model.graph.initializers.values())[::2]:
        assert initializer.const_value is not None
        assert initializer.name is not None
        W = initializer.const_value.numpy()
        expected[initializer.name] = W - W.mean(1, keepdims=True, dtype=np.float64).astype("f")
        initializer.const_value = lazily(initializer.const_value, centre)
    # Larger batches would hold more of these small tensors.
    result = written_in_batches(model, tmp_path / "out.onnx", 512 * 512 * 4)
    assert len(alive) == count // 2
    assert most <= 2
    read = contents(result.model)
    for name, array in expected.items():
        assert read[name] == array.tobytes()
    assert read["w1"] == weight("w1", 512, 512).raw_data


def written_in_batches(model: ir.Model, path: Path, nbytes: int) -> model_io.OutputFiles:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copying, "_BATCH_BYTES", nbytes)
        patch.setattr(copying, "_LARGE_BYTES", 0)
        return written(model, path)


@pytest.mark.parametrize("batch", [1, 1000, 4096, 1 << 24])
def test_batches_of_any_size_give_the_same_bytes(tmp_path: Path, batch: int) -> None:
    source = save(linear(*typed_weights()), tmp_path / "in.onnx", "in.0", "in.1")
    model = model_io.load(source)
    model.graph.initializers["half"].const_value = ir.tensor(np.ones(1000, np.float16))
    reference = written(model, tmp_path / "a.onnx")
    (tmp_path / "b").mkdir()
    result = written_in_batches(model, tmp_path / "b" / "a.onnx", batch)
    assert result.data is not None
    assert reference.data is not None
    assert result.data.read_bytes() == reference.data.read_bytes()
    assert result.model.read_bytes() == reference.model.read_bytes()


def cannot(*_: object) -> int:
    raise OSError(18, "Invalid cross-device link")


COPY = os.copy_file_range


def short(source: int, target: int, count: int, start: int, place: int) -> int:
    return COPY(source, target, min(count, 1000), start, place)


def stops(source: int, target: int, count: int, start: int, place: int) -> int:
    return 0 if start > 5000 else short(source, target, count, start, place)


def fails_late(source: int, target: int, count: int, start: int, place: int) -> int:
    return cannot() if start > 5000 else short(source, target, count, start, place)


@pytest.mark.parametrize("copy", [None, cannot, short, stops, fails_late])
def test_files_are_copied_whatever_the_kernel_can_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copy: Callable[..., int] | None
) -> None:
    proto = linear(*(weight(f"w{i}", 700, 700) for i in range(3)))
    source = save(proto, tmp_path / "in.onnx", "in.data")
    model = model_io.load(source)

    monkeypatch.setattr(os, "copy_file_range", copy)
    result = written(model, tmp_path / "out.onnx")
    assert result.data is not None
    assert result.data.read_bytes() == (tmp_path / "in.data").read_bytes()


EDITS: list[tuple[Callable[[Array], Array], str]] = [
    (lambda W: W.astype(np.float64), "gave float64 [64, 32]"),
    (lambda W: W.view(np.int32), "gave int32 [64, 32]"),
    (lambda W: W.T, "gave float32 [32, 64]"),
    (lambda W: W[1:], "gave float32 [63, 32]"),
]


@pytest.mark.parametrize(("edit", "message"), EDITS)
@pytest.mark.parametrize("external", [False, True])
def test_a_computed_weight_of_another_kind_is_a_defect(
    tmp_path: Path, external: bool, edit: Callable[[Array], Array], message: str
) -> None:
    model = model_io.load(save(linear(weight("W", 64, 32)), tmp_path / "in.onnx"))
    initializer = model.graph.initializers["W"]
    assert initializer.const_value is not None
    initializer.const_value = lazily(initializer.const_value, edit)
    for threshold in (0, 10**6):
        with pytest.raises(InvariantError, match=re.escape(message)):
            model_io.stage(
                model, tmp_path / "out", external_data=external, threshold_bytes=threshold
            )
        assert listing(tmp_path) == ["in.onnx"]
    with pytest.raises(InvariantError, match=re.escape(message)):
        model_io.materialise(model)


def test_progress_rises_to_the_whole(tmp_path: Path) -> None:
    source = save(linear(*(weight(f"w{i}", 900, 900) for i in range(6))), tmp_path / "in.onnx")
    for external in (False, True):
        steps: list[tuple[int, int]] = []
        model_io.stage(
            model_io.load(source),
            tmp_path / "out.onnx",
            external_data=external,
            progress=lambda done, total, steps=steps: steps.append((done, total)),  # type: ignore[misc]  # bound here
        ).close()
        assert steps == sorted(steps)
        assert steps[-1] == (6 * 900 * 900 * 4,) * 2
