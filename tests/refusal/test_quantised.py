"""A norm fed by a quantized layer says: fold before quantizing, whatever spelled the quantizing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfold

C = 16


def _mlp() -> onnx.ModelProto:
    """x + MLP(LN(x W)), LN, W: two norms, of which only the first folds."""
    rng = np.random.default_rng(0)
    shapes = {"W": (C, C), "A": (C, 32), "a": (32,), "B": (32, C), "b": (C,), "head": (C, 4)}
    weights = {
        name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }
    for name in ("g1", "b1", "g2", "b2"):
        weights[name] = rng.random(C).astype(np.float32) + 0.5
    nodes = [
        ("MatMul", ["x", "W"], "h", {}),
        ("LayerNormalization", ["h", "g1", "b1"], "ln1", {"axis": -1}),
        ("MatMul", ["ln1", "A"], "up", {}),
        ("Add", ["up", "a"], "up_bias", {}),
        ("Relu", ["up_bias"], "relu", {}),
        ("MatMul", ["relu", "B"], "down", {}),
        ("Add", ["down", "b"], "down_bias", {}),
        ("Add", ["h", "down_bias"], "stream", {}),
        ("LayerNormalization", ["stream", "g2", "b2"], "ln2", {"axis": -1}),
        ("MatMul", ["ln2", "head"], "y", {}),
    ]
    graph = helper.make_graph(
        [helper.make_node(op, ins, [out], name=out, **kw) for op, ins, out, kw in nodes],
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4, C])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4, 4])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class _Samples:
    """What quantize_static reads: a few inputs."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self._rest: Iterator[dict[str, Any]] = iter(
            [{"x": rng.standard_normal((2, 4, C)).astype(np.float32)} for _ in range(3)]
        )

    def get_next(self) -> dict[str, Any] | None:
        return next(self._rest, None)


def _quantised(how: str, folder: Path) -> Path:
    quantization = pytest.importorskip("onnxruntime.quantization")
    source, target = folder / "model.onnx", folder / f"{how}.onnx"
    onnx.save(_mlp(), source)
    if how.startswith("dynamic"):
        quantization.quantize_dynamic(source, target, per_channel="channel" in how)
        return target
    formats = quantization.QuantFormat
    quantization.quantize_static(
        source,
        target,
        _Samples(),
        quant_format=formats.QDQ if "pairs" in how else formats.QOperator,
        per_channel="channel" in how,
    )
    return target


@pytest.mark.parametrize(
    "how",
    [
        "dynamic",
        "dynamic by channel",
        "static pairs",
        "static pairs by channel",
        "static operators",
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_remedy_is_to_fold_before_quantising(how: str, tmp_path: Path) -> None:
    assert onnxfold.inspect(_mlp())["summary"]["foldable"] == 2
    norms = onnxfold.inspect(str(_quantised(how, tmp_path)))["norms"]
    assert len(norms) == 2
    for norm in norms:
        assert not norm["foldable"]
        assert norm["reason"]["code"] == "quantised", norm["reason"]
        assert "fold before quantizing" in norm["reason"]["sentence"]


@pytest.mark.parametrize("how", ["dynamic", "static pairs"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_gamma_does_not_move_into_a_quantised_weight(how: str, tmp_path: Path) -> None:
    summary = onnxfold.inspect(str(_quantised(how, tmp_path)))["summary"]
    assert summary["gamma_fused"] == summary["beta_fused"] == 0


def _integer_product(bias: str, beta: str) -> onnx.ModelProto:
    """LN((x W + bias) scale + b) with an integer product, as ONNX Runtime quantizes."""
    rng = np.random.default_rng(2)
    weights = {
        "W": rng.integers(-100, 100, (C, C)).astype(np.int8),
        "c": rng.integers(-100, 100, C).astype(np.int32),
        "scale": np.float32(0.01),
        "b": rng.standard_normal(C).astype(np.float32),
        "beta": rng.standard_normal(C).astype(np.float32),
        "gamma": np.ones(C, np.float32),
    }
    nodes = [
        ("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        ("MatMulInteger", ["q", "W", "z"], ["p"]),
        ("Add", ["p", "c"], ["with_bias"]),
        ("Cast", [bias], ["wide"]),
        ("Mul", ["s", "scale"], ["step"]),
        ("Mul", ["wide", "step"], ["h"]),
        ("Add", ["b", "h"], ["k"]),
        ("LayerNormalization", ["k", "gamma", beta], ["y"]),
    ]
    graph = helper.make_graph(
        [
            helper.make_node(op, ins, outs, name=outs[0], **({"to": 1} if op == "Cast" else {}))
            for op, ins, outs in nodes
        ],
        "integers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4, C])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4, C])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("bias", ["p", "with_bias"])
@pytest.mark.parametrize("beta", ["beta", "b"], ids=["own bias", "bias that is the norm's too"])
def test_an_integer_product_is_named_whatever_stands_beside_it(bias: str, beta: str) -> None:
    """A bias that has another reader could be stored twice, so it is not what forbids the fold."""
    (norm,) = onnxfold.inspect(_integer_product(bias, beta))["norms"]
    assert norm["reason"]["code"] == "quantised"
    assert norm["reason"]["nodes"] == ["p"]
