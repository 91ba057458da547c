"""Deferral in blocks of known architectures: exact in float64 and proved, in every opset."""

from __future__ import annotations

from itertools import product

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from onnxfold import pipeline
from onnxfold.check.reference import Precision, run
from onnxfold.options import Defer
from onnxfold.passes.base import Settings
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.passes.split_skip_norms import residual_calls
from onnxfold.pipeline.folding import Folded
from onnxfold.pipeline.stage_timer import StageTimer
from onnxfold.target import Target
from tests.lanes import some
from tests.pairs import pairwise
from tests.passes.deferral.architectures import ARCHITECTURES
from tests.passes.deferral.deferral_graphs import defer

BOUND = 1e-9  # relative, in float64
SIZES = (1.0, 1e4, 1e-4)
# The opsets at which operators of these blocks change: norms, Split, the axes of means.
OPSETS = (13, 14, 17, 18, 21, 23)


@pytest.mark.parametrize(
    ("name", "opset", "epsilon"),
    some(pairwise(product(ARCHITECTURES, OPSETS, (1e-12, 1e-2))), each=4),
)
def test_an_architecture_is_deferred_exactly(name: str, opset: int, epsilon: float) -> None:
    kind = ARCHITECTURES[name]
    found = defer(kind.model(opset, epsilon))
    norms = found.plan.norms
    cancelled = sum(len(norm.cancelled) for norm in norms)
    assert (len(norms), cancelled) == (kind.deferred, kind.cancelled)
    assert not found.shown.failures
    rng = np.random.default_rng(0)
    for size in SIZES:
        x = rng.standard_normal((2, 5, 5)) * size
        x[0, 1] = 0  # a row of zeros
        feeds = {"x": x, "p": rng.integers(0, 9, (2, 5))} if kind.rope else {"x": x}
        first, second = (
            run(m, feeds, precision=Precision.FLOAT64)["y"] for m in (found.before, found.after)
        )
        assert np.abs(first - second).max() <= BOUND * np.abs(first).max()


NARROW = ("Llama", "Qwen3", "Gemma 3", "GPT-2")


@pytest.mark.parametrize("name", NARROW)
def test_bfloat16_is_deferred_with_the_roundings_of_as_many_products(name: str) -> None:
    """Exact in float64.  The norm's result is rounded once, and so is each product in its place."""
    kind = ARCHITECTURES[name]
    found = defer(kind.model(23, 1e-5, "bfloat16"))
    assert len(found.plan.norms) == kind.deferred
    assert not found.shown.failures
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 5, 5)).astype(ml_dtypes.bfloat16)
    feeds = {"x": x, "p": rng.integers(0, 9, (2, 5))} if kind.rope else {"x": x}
    truth, exact = (
        run(m, feeds, precision=Precision.FLOAT64)["y"] for m in (found.before, found.after)
    )
    assert np.abs(truth - exact).max() <= BOUND * np.abs(truth).max()
    before, after = (
        run(m, feeds, precision=Precision.NATIVE)["y"].astype(np.float64) - truth
        for m in (found.before, found.after)
    )
    # Roundings are as many and as large, and add up at random: four times covers their spread.
    assert np.sqrt((after**2).mean()) <= 4 * np.sqrt((before**2).mean())


@pytest.mark.parametrize("name", NARROW)
def test_float16_is_deferred_behind_first_layers(name: str) -> None:
    """A power of two in their weights, and as many roundings; see readers.py."""
    kind = ARCHITECTURES[name]
    found = defer(kind.model(23, 1e-5, "float16"))
    assert len(found.plan.norms) == kind.deferred
    assert not found.shown.failures
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 5, 5)) * np.array([1, 1, 0, 1e2, 1e3])[:, None]
    feeds = {"x": x.astype(np.float16)}
    feeds |= {"p": rng.integers(0, 9, (2, 5))} if kind.rope else {}
    truth = run(found.before, feeds, precision=Precision.FLOAT64)["y"]
    before, after = (
        run(m, feeds, precision=Precision.NATIVE)["y"].astype(np.float64) - truth
        for m in (found.before, found.after)
    )
    # Roundings are as many and as large, and add up at random: four times covers their spread.
    assert np.sqrt((after**2).mean()) <= 4 * np.sqrt((before**2).mean())


@pytest.mark.parametrize("dtype", ["float", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_second_run_changes_nothing(name: str, dtype: str) -> None:
    first = _all_deferred(ARCHITECTURES[name].model(23, 1e-5, dtype))
    assert first.changed
    assert first.findings.plan.deferred
    assert not _all_deferred(ir.from_proto(ir.to_proto(first.model))).changed


def _all_deferred(model: ir.Model) -> Folded:
    before = residual_calls(model)
    settings = Settings(Target.KERNELS, defer=Defer.ALL, fused_before=before)
    return pipeline.fold(prepare(model), model, settings, StageTimer(None), prove=False)
