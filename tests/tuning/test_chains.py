"""Chains: their notation, and which are tried."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from models.outlier_twins import gamma_twin
from onnxfold.errors import UsageError
from onnxfold.options import Device
from onnxfold.tuning.chains import chains, needs_kernels, parse, precision_of, spelled
from onnxfold.tuning.facts import ModelFacts
from onnxfold.tuning.options import TargetPrecision, TuneOptions
from onnxfold.tuning.steps import STEPS, Context
from tests.passes.basis.wide_streams import wide_stream

_ALL = (TargetPrecision.FP32, TargetPrecision.FP16, TargetPrecision.INT8, TargetPrecision.INT4)


@pytest.mark.parametrize(
    "text", ["fusions > optimizer", "fusions,optimizer", " fusions>optimizer "]
)
def test_a_chain_is_read(text: str) -> None:
    assert parse(text) == ("fusions", "optimizer")
    assert parse(spelled(parse(text))) == parse(text)


def test_an_unknown_step_is_named_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"no step 'fussions'.*optimizer"):
        parse("fussions > optimizer")


@pytest.mark.parametrize("device", Device)
def test_chains_are_of_known_steps_and_reduce_once(device: Device) -> None:
    options = TuneOptions(device=device, precision=_ALL, data=Path("data"))
    found = chains(options)
    assert len(set(found)) == len(found)
    for chain in found:
        reducing = [n for n in chain if STEPS[n].precision is not TargetPrecision.FP32]
        assert len(reducing) <= 1
    assert {precision_of(chain) for chain in found} == set(_ALL)


def test_precisions_take_turns_so_that_an_early_end_has_seen_all() -> None:
    first = chains(TuneOptions(precision=_ALL))[: len(_ALL)]
    assert {precision_of(chain) for chain in first} == set(_ALL)


def test_only_what_the_user_allows_is_tried() -> None:
    assert not any(map(needs_kernels, chains(TuneOptions(kernels=False, precision=_ALL))))
    without = chains(TuneOptions(precision=(TargetPrecision.INT8,)))
    with_data = chains(TuneOptions(precision=(TargetPrecision.INT8,), data=Path("data")))
    assert not any("int8-static" in chain for chain in without)
    assert any("int8-static" in chain for chain in with_data)
    assert chains(TuneOptions(chains=("fusions > int8",))) == (("fusions", "int8"),)


def test_other_precisions_stay_out() -> None:
    assert {precision_of(c) for c in chains(TuneOptions())} == {TargetPrecision.FP32}
    only = chains(TuneOptions(precision=(TargetPrecision.INT8,)))
    assert {precision_of(c) for c in only} == {TargetPrecision.INT8}


@pytest.mark.parametrize(
    "options",
    [
        {"budget": 0.0},
        {"budget": float("nan")},
        {"samples": 0},
        {"threads": 0},
        {"jobs": 0},
        {"step_seconds": -1.0},
        {"max_error": -0.1},
        {"memory": 0.0},
        {"precision": ()},
    ],
)
def test_numbers_that_make_no_sense_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        TuneOptions(**options)  # type: ignore[arg-type]


def test_streams_are_scaled_before_float16_and_rotated_before_integers() -> None:
    expected = {
        TargetPrecision.FP16: ("scale-streams", "fp16"),
        TargetPrecision.INT8: ("rotate", "int8"),
        TargetPrecision.INT4: ("rotate", "int4-blocks32"),
    }
    for precision, chain in expected.items():
        assert chain in chains(TuneOptions(precision=(precision,)))
    exact = chains(TuneOptions())
    assert not any({"scale-streams", "rotate", "split-gammas"} & {*chain} for chain in exact)
    assert ("split-gammas", "int8") in chains(TuneOptions(precision=(TargetPrecision.INT8,)))
    bfloat = TuneOptions(device=Device.CUDA, precision=(TargetPrecision.BF16,))
    assert {precision_of(chain) for chain in chains(bfloat)} == {TargetPrecision.BF16}


def test_the_steps_of_a_basis_change_the_weights(tmp_path: Path) -> None:
    source, context = tmp_path / "model.onnx", Context(ModelFacts("bert"))
    onnx.save(wide_stream("rms pieces"), source)
    for name in ("scale-streams", "rotate"):
        STEPS[name].apply(source, tmp_path / f"{name}.onnx", context)
    before, *others = (
        {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
        for path in (source, tmp_path / "scale-streams.onnx", tmp_path / "rotate.onnx")
    )
    factors = others[0]["table"] / before["table"]
    assert len(np.unique(factors)) == 1
    assert factors[0, 0] < 1
    split = tmp_path / "split.onnx"
    onnx.save(gamma_twin(onnx.load(source)), source)
    STEPS["split-gammas"].apply(source, split, context)
    gammas = [
        [onnx.numpy_helper.to_array(t).max() for t in onnx.load(path).graph.initializer
         if t.name == "norm0.gamma"]
        for path in (source, split)
    ]  # fmt: skip
    assert gammas[1] < gammas[0]
    sizes = [np.square(each["table"], dtype=np.float64).sum() for each in (before, others[1])]
    assert np.isclose(*sizes)
    assert not np.allclose(before["table"], others[1]["table"])


@pytest.mark.parametrize(
    ("step", "operator"), [("int8", "MatMulInteger"), ("int4-blocks32", "MatMulNBits")]
)
def test_quantizers_take_gemms_but_those_that_are_to_stay(
    step: str, operator: str, tmp_path: Path
) -> None:
    gemms = [
        onnx.helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="first"),
        onnx.helper.make_node("Gemm", ["y", "w", "b"], ["z"], name="second"),
    ]
    values = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4, 32]) for name in "xz"
    ]
    stored = np.random.default_rng(0).normal(size=(33, 32)).astype(np.float32)
    weights = [
        onnx.numpy_helper.from_array(a, n) for n, a in (("w", stored[:32]), ("b", stored[32]))
    ]
    graph = onnx.helper.make_graph(gemms, "gemms", values[:1], values[1:], weights)
    source = tmp_path / "model.onnx"
    opset = onnx.helper.make_opsetid("", 18)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10), source)
    counts = []
    for exclude in ((), ("second",)):
        context = Context(ModelFacts("bert"), exclude=exclude)
        STEPS[step].apply(source, tmp_path / "made.onnx", context)
        kinds = [node.op_type for node in onnx.load(tmp_path / "made.onnx").graph.node]
        counts.append((kinds.count(operator), kinds.count("MatMul"), kinds.count("Gemm")))
    assert counts == [(2, 0, 0), (1, 1, 0)]
