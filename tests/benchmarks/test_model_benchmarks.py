"""Benchmarks of whole models: rows and bars from made-up times; no test asserts a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import onnxfold
from benchmarks.models import bars, rows_of
from benchmarks.subjects import File, prepare
from models import skeleton
from onnxfold.runtime.interleaved_timing import (
    OperatorTime,
    RunCounts,
    Variant,
    operators,
    take_turns,
)
from tests.builders import pre_norm_model

_ABOUT = {
    "onnxruntime": "1",
    "threads": 1,
    "clock": "wall",
    "sessions": 1,
    "load": 0.0,
    "subject": "minilm",
    "axis": "sequence",
    "size": 16,
}
_FILES = {
    "original": File(Path("a.onnx"), 10),
    "folded": File(Path("b.onnx"), 7, folded=3, gamma_fused=2),
    "affine-kept": File(Path("c.onnx"), 8, folded=3),
    "target-ort": File(Path("d.onnx"), 9, folded=3),
}


def _seconds() -> np.ndarray:
    """Three rounds on a machine that slows down; stock 4, the better baseline 2, folded 1 ..."""
    base = np.array([4.0, 2.0, 1.0, 5.0, 2.0, 4.0])
    return base[:, None] * np.array([1.0, 3.0, 10.0]) * 1e-3


def test_ratios_are_taken_round_by_round_against_stock_and_the_better_baseline() -> None:
    profiles = [[OperatorTime("Add", 4, 1.0), OperatorTime("LayerNormalization", 2, 0.5)]] * 6
    rows = {row.method: row for row in rows_of(_ABOUT, _FILES, profiles, _seconds())}
    folded = rows["onnxfold"]
    assert (folded.to_stock, folded.to_stock_p10, folded.to_stock_p90) == (4.0, 4.0, 4.0)
    assert folded.to_better == 2.0
    assert folded.median_ms == 3.0
    assert (folded.nodes, folded.removed, folded.executed) == (7, 3, 6)
    assert (folded.norm_ms, folded.folded, folded.gamma_fused) == (0.5, 3, 2)
    assert rows["stock"].to_better == 0.5
    assert rows["without library"].to_stock == 0.8


def test_a_bar_is_judged_by_its_worst_case() -> None:
    rows = list(rows_of(_ABOUT, _FILES, None, _seconds()))
    slower = list(rows_of({**_ABOUT, "size": 128}, _FILES, None, _seconds()[:, :1] * [[1.0]]))
    slower[2].to_better = 0.5
    found = {bar.what: bar.reached for bar in bars([*rows, *slower])}
    assert found["minilm over stock, sequence 128"] == 4.0
    assert found["onnxfold to_better, worst: minilm, sequence 128"] == 0.5
    assert found["without library to_stock, worst: minilm, sequence 16"] == 0.8
    assert not [what for what in found if "bert-base" in what or "onnx " in what]


def test_turns_end_with_the_budget_but_not_before_the_least_rounds() -> None:
    ticks = iter(range(1000))
    runs: list[int] = []
    turns = RunCounts(50, least=3, budget_s=0.0, turn_s=0.0, clock=lambda: float(next(ticks)))
    seconds = take_turns([lambda: runs.append(0), lambda: runs.append(1)], turns)
    assert seconds.shape == (2, 3)
    assert np.all(seconds == 1.0)
    assert runs[-6:] == [0, 1, 1, 0, 0, 1]


def test_a_run_that_waits_for_another_program_makes_no_turns_of_other_lengths() -> None:
    """Single runs begin with cold caches: one of two equal models seemed nine times as slow."""
    now, ran = 0.0, [0, 0]

    def run(index: int) -> None:
        nonlocal now
        ran[index] += 1
        now += 1.0 if (index, ran[index]) == (0, 2) else 0.001

    take_turns([lambda: run(0), lambda: run(1)], RunCounts(10, clock=lambda: now))
    assert ran[0] == ran[1] > 100


def test_forms_of_a_model_are_what_the_methods_run(tmp_path: Path) -> None:
    onnx.save(pre_norm_model(), tmp_path / "a.onnx")
    files = prepare(tmp_path / "a.onnx", tmp_path, {"original": None, "folded": {}})
    assert files["original"].folded == 0
    assert files["folded"].folded == 3
    assert files["folded"].nodes < files["original"].nodes
    feeds = {"ids": np.zeros((1, 8), np.int64)}
    ran = operators(
        Variant(files["folded"].path, kernels=True), 1, ("CPUExecutionProvider",), feeds
    )
    counts = {operator.name: operator.nodes for operator in ran}
    assert counts["AddBiasRMSNormAffineWithSum"] + counts.get("AddBiasRMSNormAffine", 0) >= 1


def test_dynamic_quantisation_keeps_the_calls_and_their_functions(tmp_path: Path) -> None:
    onnx.save(pre_norm_model(), tmp_path / "a.onnx")
    file = prepare(tmp_path / "a.onnx", tmp_path, {"folded": {}}, int8=True)["folded"]
    model = onnx.load(file.path)
    called = {node.op_type for node in model.graph.node if node.domain == "onnxfold"}
    assert called
    assert called == {function.name for function in model.functions}
    assert any(node.op_type == "MatMulInteger" for node in model.graph.node)
    feeds = {"ids": np.arange(8)[None]}
    plain = ort.InferenceSession(str(file.path)).run(None, feeds)
    kernels = onnxfold.session(file.path).run(None, feeds)
    # Both round activations to 8 bits, where a last bit of a norm may decide: one step of 127.
    limit = 2 * float(np.abs(plain[0]).max()) / 127
    np.testing.assert_allclose(kernels[0], plain[0], rtol=0, atol=limit)


def test_a_filled_skeleton_has_the_shapes_types_and_moments_of_the_model(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    model = pre_norm_model()
    array = rng.normal(0.3, 0.05, (64, 128)).astype(np.float16)
    model.graph.initializer.append(onnx.numpy_helper.from_array(array, "large"))
    onnx.save(model, tmp_path / "a.onnx")
    skeleton.strip(tmp_path / "a.onnx", tmp_path / "bones.onnx")
    assert skeleton.is_skeleton(tmp_path / "bones.onnx")
    assert (tmp_path / "bones.onnx").stat().st_size < (tmp_path / "a.onnx").stat().st_size
    skeleton.fill(tmp_path / "bones.onnx", tmp_path / "b.onnx")
    before, after = ir.load(tmp_path / "a.onnx"), ir.load(tmp_path / "b.onnx")
    assert not skeleton.is_skeleton(tmp_path / "b.onnx")
    assert [n.op_type for n in before.graph] == [n.op_type for n in after.graph]
    for name, value in before.graph.initializers.items():
        old, new = value.const_value, after.graph.initializers[name].const_value
        assert (old.dtype, tuple(old.shape)) == (new.dtype, tuple(new.shape))
    filled = after.graph.initializers["large"].const_value.numpy().astype(np.float64)
    # 8192 draws: four standard errors of a mean and of a standard deviation.
    assert filled.mean() == pytest.approx(array.astype(np.float64).mean(), abs=4 * 0.05 / 90)
    assert filled.std() == pytest.approx(array.astype(np.float64).std(), abs=4 * 0.05 / 128)
    assert not np.array_equal(filled, array)
    feeds = {"ids": np.zeros((1, 8), np.int64)}
    ort.InferenceSession(str(tmp_path / "b.onnx")).run(None, feeds)


def test_a_skeleton_needs_no_file_beside_it(tmp_path: Path) -> None:
    model, small = pre_norm_model(), np.arange(100)
    model.graph.initializer.append(onnx.numpy_helper.from_array(small, "small"))
    source = tmp_path / "source" / "a.onnx"
    source.parent.mkdir()
    ir.save(ir.from_proto(model), source, external_data="a.onnx.data")
    assert isinstance(ir.load(source).graph.initializers["small"].const_value, ir.ExternalTensor)
    skeleton.strip(source, tmp_path / "bones.onnx")
    skeleton.fill(tmp_path / "bones.onnx", tmp_path / "b.onnx")
    filled = ir.load(tmp_path / "b.onnx").graph.initializers["small"].const_value
    np.testing.assert_array_equal(filled.numpy(), small)


def test_only_a_skeleton_can_be_filled(tmp_path: Path) -> None:
    onnx.save(pre_norm_model(), tmp_path / "a.onnx")
    with pytest.raises(onnxfold.ModelError, match="is no skeleton"):
        skeleton.fill(tmp_path / "a.onnx", tmp_path / "b.onnx")
