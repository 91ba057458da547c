"""`convert --to layer --shift`: weights before LayerNorms get means that no reader sees."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import onnxfold
from onnxfold.graph import AxisBlock, Fiber, ModelInfo
from onnxfold.graph.edit import Editor
from onnxfold.passes.base import Settings
from onnxfold.passes.places import ChangedWeight
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.passes.stream_forms.plan import ShiftingPlan
from onnxfold.passes.stream_forms.shift import apply
from onnxfold.pipeline.proofs import of_shifting as prove
from tests.builders import WIDTH, pre_norm_model
from tests.soundness.float64 import evaluate, relative_error, widened

Array = npt.NDArray[Any]
_VISIBLE, _ROUNDING = 1e-4, 1e-11  # a stream with a mean of its own size rounds a little more
FEEDS = {"ids": np.random.default_rng(0).integers(0, 32, (2, 3))}


def _weights(model: onnx.ModelProto) -> dict[str, Array]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def _shifted(model: onnx.ModelProto, seed: int) -> onnxfold.Result:
    return onnxfold.convert(model, to="layer", shift=seed, check=0)


def test_every_writer_of_the_stream_gets_a_mean_and_the_function_stays() -> None:
    model = widened(pre_norm_model())
    result = _shifted(model, 1)
    old, new = _weights(model), _weights(result.model)
    changed = {name for name in old if not np.array_equal(old[name], new[name])}
    assert changed == {"table", "down0", "bias0", "down1", "bias1"}
    for name in changed:
        moved = new[name] - old[name]
        spread = moved - moved.mean(axis=-1, keepdims=True)
        assert np.abs(spread).max() < 1e-14  # numbers of size 1 in float64
        assert np.abs(moved).max() > 0.01
    assert relative_error(evaluate(model, FEEDS), evaluate(result.model, FEEDS)) < _ROUNDING
    assert result.proof is not None
    assert result.proof.shifted_weights == len(changed)


def test_a_seed_gives_the_same_weights_and_another_seed_others() -> None:
    model = pre_norm_model()
    first, again, other = (_weights(_shifted(model, seed).model)["bias0"] for seed in (3, 3, 4))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_table_that_the_head_reads_too_is_not_shifted() -> None:
    model = pre_norm_model(tied=True)
    old, new = _weights(model), _weights(_shifted(model, 1).model)
    assert np.array_equal(old["table"], new["table"])
    assert not np.array_equal(old["bias0"], new["bias0"])


@pytest.mark.parametrize(
    ("weight", "axis"),
    [("table", 1), ("up0", 1), ("down0", 0)],
    ids=["tied table", "before an activation", "along another axis"],
)
def test_a_shift_that_a_reader_sees_is_wrong_in_numbers_and_in_the_proof(
    weight: str, axis: int
) -> None:
    model = widened(pre_norm_model(tied=True))
    before = prepare(ir.from_proto(model)).info
    size = _weights(model)[weight].shape[axis]
    plan = ShiftingPlan((ChangedWeight(weight, Fiber((AxisBlock(axis, 1, size, 1),))),), 1)
    edit = Editor(before, copy=True)
    apply(edit, plan, Settings())
    shown = prove(before, ModelInfo(edit.model), plan)
    assert shown.failures
    result = ir.to_proto(edit.model)
    assert relative_error(evaluate(model, FEEDS), evaluate(result, FEEDS)) > _VISIBLE


def test_a_shift_that_differs_within_a_set_is_no_shift() -> None:
    """One element of one row off by a thousandth: the proof compares every number."""
    model = widened(pre_norm_model())
    before = prepare(ir.from_proto(model)).info
    plan = ShiftingPlan((ChangedWeight("table", Fiber((AxisBlock(1, 1, WIDTH, 1),))),), 1)
    edit = Editor(before, copy=True)
    apply(edit, plan, Settings())
    value = edit.model.graph.initializers["table"]
    assert value.const_value is not None
    array = value.const_value.numpy().copy()
    assert not prove(before, ModelInfo(edit.model), plan).failures
    array[5, 3] += 1e-3
    value.const_value = ir.tensor(array, name="table")
    assert prove(before, ModelInfo(edit.model), plan).failures


def test_a_shift_is_for_layer_norms_alone() -> None:
    with pytest.raises(onnxfold.UsageError, match="to='layer'"):
        onnxfold.convert(pre_norm_model(), to="rms", shift=1)
    with pytest.raises(onnxfold.UsageError, match="0 or more"):
        onnxfold.convert(pre_norm_model(), to="layer", shift=-1)
