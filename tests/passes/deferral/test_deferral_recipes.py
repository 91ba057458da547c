"""Deferral in graphs of real exporters: how many norms, which cancel, and the same function."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnxfold.check.reference import Precision, run
from onnxfold.inputs import InputSpec, make_inputs
from tests.passes.deferral.deferral_graphs import MEANS, defer

RECIPES = Path(__file__).parents[2] / "recipes"


@dataclass(frozen=True)
class Expected:
    """How many norms are deferred, and how many others they make cancel; saved per row, in all."""

    deferred: int
    cancelled: int
    saved: int


EXPECTED = {
    # Two layers with rows of 48: cos and sin of q and k (12 + 12) and v (24), the gate (96), the
    # scale of the other branch after the last linear layer (48), and the head (160).
    "llama-small": Expected(5, 0, -2 * 96 + 48 - 160),
    "gemma-small": Expected(5, 0, -2 * 96 + 48 - 160),
    # Only v receives the scale of the norm before q, k and v: 24 of 48. The gamma of q (48) moves
    # into separate tables (12 + 12); the gamma of k (24) would gain nothing.
    "qwen3-small": Expected(5, 4, 2 * (24 + 24) - 2 * 96 + 48 - 160),
    # Behind the ReLU the scale passes where the norm's width does.
    "t5-small": Expected(4, 0, -2 * 96),
    # Norms on both sides of a branch: the norm after the feed-forward layers cancels the one
    # before, except for the gate.
    "gemma2-small": Expected(5, 2, -2 * 48 + 48 - 160),
    # Folded LayerNorms, whose layers have biases: q, k, v (144 of 48), the hidden layer (192, 96).
    "gpt2": Expected(4, 0, -2 * 96 - 2 * 144),
    "opt-125m": Expected(4, 0, -2 * 96 - 2 * 48),
    "vit-b16": Expected(4, 0, -2 * 96 - 2 * 48),
    # LayerNorms that keep their mean, before the first layer of each block and the last of all.
    "convnext-t": Expected(5, 0, -2 * 48 - 2 * 96 + 22),
    # Before feed-forward layers, two of them with their mean; windows mix rows before q, k and v.
    "swin-t": Expected(4, 0, -2 * 48 - 2 * 96),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_deferred_recipes_compute_the_same(name: str) -> None:
    model = ir.load(RECIPES / f"{name}.onnx")
    found = defer(model, MEANS)
    norms = found.plan.norms
    cancelled = sum(len(norm.cancelled) for norm in norms)
    saved = sum(norm.multiplications_saved for norm in norms)
    assert Expected(len(norms), cancelled, saved) == EXPECTED[name]
    assert not found.shown.failures
    (feeds,) = make_inputs(model, InputSpec(), count=1, seed=0)
    first, second = (
        run(m, feeds, precision=Precision.FLOAT64) for m in (found.before, found.after)
    )
    # Centred weights are rounded to float32, once for each of the few layers.
    bound = 1e-9 + 2**-24 * sum(bool(norm.centred) for norm in norms)
    for output, before in first.items():
        size = float(np.abs(before).max())
        assert np.abs(before - second[output]).max() <= bound * size
