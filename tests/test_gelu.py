"""GELU gets the spelling that ONNX Runtime fuses, bit for bit; what only looks like it stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import onnxfold
from onnxfold.prepare import prepare
from tests.builders import model_of

WIDTH = 8


def _gelu(
    *,
    half: float = 0.5,
    one: float = 1.0,
    gated: str = "x",
    shown: bool = False,
    kind: int = TensorProto.FLOAT,
    swapped: bool = False,
) -> onnx.ModelProto:
    """y = gated * (half * (one + erf(x / sqrt 2))), then a LayerNorm that folds."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    nodes = [
        helper.make_node("Div", ["x", "root"], ["scaled"]),
        helper.make_node("Erf", ["scaled"], ["erf"]),
        helper.make_node("Add", ["erf", "one"], ["sum"]),
        helper.make_node("Mul", ["sum", "half"] if swapped else ["half", "sum"], ["gate"]),
        helper.make_node("Mul", ["gate", gated] if swapped else [gated, "gate"], ["y"]),
        helper.make_node("MatMul", ["y", "w"], ["z"]),
        helper.make_node("LayerNormalization", ["z", "gamma", "beta"], ["out"]),
    ]
    rng = np.random.default_rng(0)
    weights = {
        "root": np.asarray(np.sqrt(2), dtype),
        "one": np.asarray(one, dtype),
        "half": np.asarray(half, dtype),
        "w": rng.standard_normal((WIDTH, WIDTH)).astype(dtype),
        "gamma": rng.standard_normal(WIDTH).astype(dtype),
        "beta": rng.standard_normal(WIDTH).astype(dtype),
    }
    shape = (kind, ["batch", WIDTH])
    outputs = {"out": shape, **({"gate": shape} if shown else {"y": shape})}
    return model_of(nodes, {"x": shape, "other": shape}, outputs, weights)


def _last_product_is_by_half(proto: onnx.ModelProto) -> bool:
    model = prepare(ir.from_proto(proto)).model
    (last,) = (n for n in model.graph if any(o.name == "y" for o in n.outputs))
    return any(value is not None and value.name == "half" for value in last.inputs)


@pytest.mark.parametrize("swapped", [False, True])
def test_the_factor_one_half_comes_last(swapped: bool) -> None:
    assert _last_product_is_by_half(_gelu(swapped=swapped))


@pytest.mark.parametrize(
    "proto",
    [
        _gelu(half=0.25),
        _gelu(one=2.0),
        _gelu(gated="other"),
        _gelu(shown=True),
        _gelu(kind=TensorProto.FLOAT16),
    ],
    ids=["another factor", "another summand", "another gated value", "gate read", "float16"],
)
def test_what_is_not_gelu_or_could_be_seen_or_overflow_stays(proto: onnx.ModelProto) -> None:
    assert not _last_product_is_by_half(proto)


def test_every_bit_stays_and_a_second_run_changes_nothing(tmp_path: Path) -> None:
    onnx.save(_gelu(), tmp_path / "a.onnx")
    result = onnxfold.optimize(tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert result.changed
    assert not onnxfold.optimize(tmp_path / "b.onnx", tmp_path / "c.onnx").changed
    x = np.random.default_rng(1).standard_normal((64, WIDTH)).astype(np.float32) * 3
    x[0] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e38, -1e38, 1e-40]
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    found = [
        ort.InferenceSession(str(tmp_path / name), options).run(["y"], {"x": x, "other": x})[0]
        for name in ("a.onnx", "b.onnx")
    ]
    np.testing.assert_array_equal(found[0], found[1])


def test_onnx_runtime_fuses_what_comes_out(tmp_path: Path) -> None:
    onnx.save(_gelu(), tmp_path / "a.onnx")
    onnxfold.optimize(tmp_path / "a.onnx", tmp_path / "b.onnx")
    ran = {}
    for name in ("a", "b"):
        options = ort.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / f"{name}.optimized.onnx")
        ort.InferenceSession(str(tmp_path / f"{name}.onnx"), options)
        ran[name] = [n.op_type for n in onnx.load(options.optimized_model_filepath).graph.node]
    assert "Erf" in ran["a"]
    assert "Gelu" in ran["b"]
    assert "Erf" not in ran["b"]
