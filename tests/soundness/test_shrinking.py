"""A failure is made small, saved and read back; a wrong law gives the failures."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from onnxfold.operators.table import find
from onnxfold.target import Target
from tests.operators.mutants import AlwaysZeroMean
from tests.operators.rows import transfer_for, with_transfer
from tests.soundness import corpus
from tests.soundness.checking import Settings, check
from tests.soundness.random_graphs import RandomGraph, stream_graph
from tests.soundness.shrinking import shrunk

_SETTINGS = Settings(Target.ONNX, 1 << 20, fuse=False, fuse_affine=False, exclude=None)


def _fails(graph: RandomGraph) -> bool:
    failure = check(graph, _SETTINGS).failure
    return failure is not None and failure.startswith("proof")


def test_a_wrong_law_is_shrunk_to_a_few_nodes_that_go_through_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    law = find("", "MatMul")
    with monkeypatch.context() as patch:
        with_transfer(patch, law, AlwaysZeroMean(transfer_for(law)))
        graph = next(g for seed in range(100) if _fails(g := _large(seed)))
        small = shrunk(graph, _fails)
        assert _fails(small)
        size = len(small.model.graph.node)
        assert size <= 12 < len(graph.model.graph.node)
        assert len(small.model.graph.output) == 1
        name = corpus.save(small, _SETTINGS, 7, "proof: off", tmp_path)
        assert list(corpus.names(tmp_path)) == [name] == ["proof_7"]
        again, settings = corpus.load(name, tmp_path)
        assert settings == _SETTINGS
        assert _fails(again)
    assert check(again, settings).failure is None


def _large(seed: int) -> RandomGraph:
    return stream_graph(random.Random(seed))  # noqa: S311 # no secret


def test_a_seed_that_does_not_fail_is_not_saved(tmp_path: Path) -> None:
    assert corpus.shrink_seed(0, tmp_path) is None
    assert not list(corpus.names(tmp_path))
