"""A model shaped like GPT-J, small: shards, pieces, and work that grows with the nodes alone."""

from __future__ import annotations

import cProfile
import pstats
from pathlib import Path

import onnx
import pytest

import onnxfold
from benchmarks.gptj import Size, make
from onnxfold import model_io
from onnxfold.passes.base import Settings
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.pipeline import decide_all

TINY = Size(width=128, layers=2, words=300, shard_bytes=150_000)


def test_it_folds_shard_by_shard_and_is_checked_piece_by_piece(tmp_path: Path) -> None:
    source, *shards = make(tmp_path / "in.onnx", TINY)
    assert len(shards) > 3
    result = onnxfold.optimize(source, tmp_path / "out.onnx", memory=1.2e-3)
    assert result.report["inspect"]["summary"]["foldable"] == TINY.layers + 1
    assert result.verification is not None
    assert result.verification.passed
    assert result.verification.method == "float64"
    assert result.verification.pieces > 1
    written = [Path(name) for name in result.report["output"]["data_files"]]
    assert len(written) == len(shards)
    sizes = [[file.stat().st_size for file in files] for files in (shards, written)]
    # Mask and rotations, which the model itself held, follow the weight before them.
    constants = 2 * (64 * 64 + 2 * 64 * 32 + 32 * 32)
    assert sizes[1] == pytest.approx([sizes[0][0] + constants, *sizes[0][1:]], abs=2048)
    onnx.checker.check_model(result.model)


def test_its_parameters_are_counted(tmp_path: Path) -> None:
    source, *_ = make(tmp_path / "in.onnx", TINY)
    document = onnxfold.inspect(source)
    constants = 3000 + 64 * 64 + 2 * 64 * 32 + 32 * 32  # mask, rotations and numbers, at most
    assert 0 <= document["model"]["parameters"] - TINY.parameters <= constants


def _calls(tmp_path: Path, layers: int) -> int:
    """Function calls of analysis and plan."""
    source, *_ = make(tmp_path / f"{layers}.onnx", Size(64, layers, words=50, dtype="float32"))
    prepared = prepare(model_io.load(source))
    profile = cProfile.Profile()
    profile.enable()
    decided = decide_all(prepared, Settings())
    profile.disable()
    assert len(decided.plan.folds) == layers  # the first reads a table, which quantizers take
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]  # not in the stubs


def test_twice_the_layers_are_twice_the_work(tmp_path: Path) -> None:
    """Counted, not timed; what is done once per model is in both."""
    _calls(tmp_path, 2)  # fills caches
    first, second, third = (_calls(tmp_path, layers) for layers in (4, 8, 16))
    assert third - second < 2.2 * (second - first)
