"""Small models with seeded weights, one function per topology."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["chain_model", "model_of", "post_norm_model", "pre_norm_model"]

Array = npt.NDArray[Any]
WIDTH = 16


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Sequence[int | str]]],
    outputs: Mapping[str, tuple[int, Sequence[int | str]]],
    weights: Mapping[str, Array],
    *,
    opset: int = 17,
) -> onnx.ModelProto:
    """Put nodes and weights together; inner values have no declared types or shapes."""
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
        [helper.make_tensor_value_info(name, *kind) for name, kind in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def _norm_weights(rng: np.random.Generator, name: str, dtype: npt.DTypeLike) -> dict[str, Array]:
    return {
        f"{name}.gamma": (1 + 0.3 * rng.standard_normal(WIDTH)).astype(dtype),
        f"{name}.beta": (0.3 * rng.standard_normal(WIDTH)).astype(dtype),
    }


def chain_model(dtype: npt.DTypeLike = np.float32, opset: int = 17) -> onnx.ModelProto:
    """x -> MatMul -> Add -> LayerNormalization -> MatMul -> y: one norm that folds."""
    rng = np.random.default_rng(0)
    weights = {
        "W1": rng.standard_normal((WIDTH, WIDTH)).astype(dtype),
        "b1": rng.standard_normal(WIDTH).astype(dtype),
        "W2": rng.standard_normal((WIDTH, WIDTH)).astype(dtype),
        **_norm_weights(rng, "norm", dtype),
    }
    kind = (helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), ["batch", WIDTH])
    nodes = [
        helper.make_node("MatMul", ["x", "W1"], ["h"], name="linear"),
        helper.make_node("Add", ["h", "b1"], ["hb"], name="bias"),
        helper.make_node(
            "LayerNormalization", ["hb", "norm.gamma", "norm.beta"], ["n"], name="norm"
        ),
        helper.make_node("MatMul", ["n", "W2"], ["y"], name="head"),
    ]
    return model_of(nodes, {"x": kind}, {"y": kind}, weights, opset=opset)


def pre_norm_model(blocks: int = 2, *, tied: bool = False, vocabulary: int = 32) -> onnx.ModelProto:
    """A pre-LN residual stream over an embedding: every norm folds (tied: needs a copy)."""
    rng = np.random.default_rng(1)
    weights: dict[str, Array] = {
        "table": rng.standard_normal((vocabulary, WIDTH)).astype(np.float32),
        **_norm_weights(rng, "last", np.float32),
    }
    nodes = [helper.make_node("Gather", ["table", "ids"], ["x0"], name="embed")]
    for i in range(blocks):
        weights |= _norm_weights(rng, f"norm{i}", np.float32)
        weights[f"up{i}"] = rng.standard_normal((WIDTH, 24)).astype(np.float32)
        weights[f"down{i}"] = rng.standard_normal((24, WIDTH)).astype(np.float32)
        weights[f"bias{i}"] = rng.standard_normal(WIDTH).astype(np.float32)
        norm = [f"x{i}", f"norm{i}.gamma", f"norm{i}.beta"]
        nodes += [
            helper.make_node("LayerNormalization", norm, [f"n{i}"], name=f"norm{i}"),
            helper.make_node("MatMul", [f"n{i}", f"up{i}"], [f"u{i}"]),
            helper.make_node("Tanh", [f"u{i}"], [f"t{i}"]),
            helper.make_node("MatMul", [f"t{i}", f"down{i}"], [f"d{i}"]),
            helper.make_node("Add", [f"bias{i}", f"d{i}"], [f"b{i}"]),
            helper.make_node("Add", [f"x{i}", f"b{i}"], [f"x{i + 1}"]),
        ]
    last = [f"x{blocks}", "last.gamma", "last.beta"]
    nodes.append(helper.make_node("LayerNormalization", last, ["final"], name="last"))
    if tied:
        nodes.append(helper.make_node("Transpose", ["table"], ["head"], perm=[1, 0]))
    else:
        weights["head"] = rng.standard_normal((WIDTH, vocabulary)).astype(np.float32)
    nodes.append(helper.make_node("MatMul", ["final", "head"], ["logits"]))
    return model_of(
        nodes,
        {"ids": (TensorProto.INT64, ["batch", "time"])},
        {"logits": (TensorProto.FLOAT, ["batch", "time", vocabulary])},
        weights,
    )


def post_norm_model() -> onnx.ModelProto:
    """x + f(x) normalized after the addition, twice: gamma and beta stay in the stream."""
    rng = np.random.default_rng(2)
    weights: dict[str, Array] = {}
    nodes = []
    for i in range(2):
        weights |= _norm_weights(rng, f"norm{i}", np.float32)
        weights[f"W{i}"] = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32)
        norm = [f"s{i}", f"norm{i}.gamma", f"norm{i}.beta"]
        nodes += [
            helper.make_node("MatMul", [f"x{i}", f"W{i}"], [f"m{i}"]),
            helper.make_node("Add", [f"m{i}", f"x{i}"], [f"s{i}"]),
            helper.make_node("LayerNormalization", norm, [f"x{i + 1}"], name=f"norm{i}"),
        ]
    kind = (TensorProto.FLOAT, ["batch", WIDTH])
    return model_of(nodes, {"x0": kind}, {"x2": kind}, weights)
