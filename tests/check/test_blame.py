"""Faults that converters make, planted: each is found, with the node's name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxfold.check import ModelSource
from onnxfold.check.blame import Blame, blame, rank
from onnxfold.check.truth import Truth, truth_of
from onnxfold.model_io import from_proto
from tests.check.converted import (
    change_weight,
    drop,
    dynamic,
    encoder,
    half,
    rename_values,
    rows,
    static,
)

pytest.importorskip("onnxruntime.quantization")


def source(model: onnx.ModelProto) -> ModelSource:
    return ModelSource(from_proto(model))


@pytest.fixture(scope="module")
def original() -> ModelSource:
    return source(encoder())


@pytest.fixture(scope="module")
def truth(original: ModelSource) -> Truth:
    return truth_of(original, samples=0, data=rows(4))


def blamed(original: ModelSource, changed: onnx.ModelProto, truth: Truth) -> tuple[Blame, ...]:
    return blame(original, source(changed), truth.feeds, truth.outputs)


def _qdq(scale: str) -> Callable[[Path], onnx.ModelProto]:
    return lambda folder: change_weight(
        static(encoder(), folder, rows(8, seed=1)), scale, lambda s: s / 10
    )


def _huge(w: np.ndarray) -> np.ndarray:
    w = w.copy()
    w[2, 3] = np.inf
    return w


def _broken(model: onnx.ModelProto) -> onnx.ModelProto:
    """A value that another part reads is taken for one of another name."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    next(n for n in changed.graph.node if n.name == "node_products").input[0] = "v"
    return changed


# What is planted, the node of the original, and that of the file.
PLANTED: dict[str, tuple[Callable[[Path], onnx.ModelProto], str, str]] = {
    "a scale of activations": (_qdq("bent_scale"), "node_down", "bent_DequantizeLinear"),
    "a scale of scores": (_qdq("scores_scale"), "node_weights", "scores_DequantizeLinear"),
    "a scale of a weight": (_qdq("Wup_scale"), "node_up", "Wup_DequantizeLinear"),
    "a scale of int8": (
        lambda f: change_weight(dynamic(encoder(), f), "Wdown_scale", lambda s: s / 10),
        "node_down",
        "node_down_quant_output_scale_mul",
    ),
    "a weight that overflows": (
        lambda _: change_weight(half(encoder()), "Wup", _huge),
        "node_up",
        "node_up",
    ),
    "a weight in float16 that is stored wrongly": (
        lambda _: change_weight(half(encoder()), "Wo", lambda w: -w),
        "node_out",
        "node_out",
    ),
    "a mask of the wrong sign": (
        lambda _: change_weight(encoder(), "far", lambda far: -far),
        "node_bar",
        "node_bar",
    ),
    "a bias dropped": (lambda _: drop(encoder(), "node_outb"), "node_outb", "node_sum"),
    "a bend dropped": (lambda _: drop(encoder(), "node_bent"), "node_bent", "node_down"),
    "a node dropped among other names": (
        lambda _: rename_values(drop(encoder(), "node_outb")),
        "node_outb",
        "MatMul_21",
    ),
    "a weight under other names": (
        lambda _: rename_values(change_weight(encoder(), "Wup", lambda w: 2 * w)),
        "node_up",
        "MatMul_18",
    ),
    "an operand of another node": (lambda _: _broken(encoder()), "node_products", "node_products"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found_with_its_node(
    tmp_path: Path, original: ModelSource, truth: Truth, name: str
) -> None:
    make, node, changed_node = PLANTED[name]
    found = blamed(original, make(tmp_path), truth)
    assert [one.node for one in found] == [node], found
    assert found[0].changed_node == changed_node
    assert found[0].error_out > 2 * found[0].error_in
    assert rank(original, source(make(tmp_path)), truth.feeds, truth.outputs)[0] == node
