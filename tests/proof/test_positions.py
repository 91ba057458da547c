"""A test on tensors that end before a position shows nothing about the elements after it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.proof import Certificate
from onnxfold.proof import prove as prove_models
from onnxfold.proof.region import positions
from onnxfold.proof.sizes import reduced
from onnxfold.shapes import infer

_BEYOND = 2**63 - 1
Dims = Sequence[int | str]


def _model(
    nodes: list[onnx.NodeProto], dims: Dims, constants: dict[str, object]
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "positions",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
    )
    imports = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def _slice(dims: Dims, starts: int) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Slice", ["x", "starts", "ends", "axes"], ["part"]),
        helper.make_node("Relu", ["part"], ["y"]),
    ]
    bounds = {"starts": np.int64([starts]), "ends": np.int64([starts + 100])}
    return _model(nodes, dims, bounds | {"axes": np.int64([1])})


def _pad(dims: Dims, before: int) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Pad", ["x", "pads"], ["wide"]),
        helper.make_node("Slice", ["wide", "starts", "ends"], ["y"]),
    ]
    bounds = {"starts": np.int64([0, 200]), "ends": np.int64([_BEYOND, 300])}
    return _model(nodes, dims, {"pads": np.int64([0, before, 0, 0])} | bounds)


def _gather(dims: Dims, first: int) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Gather", ["x", "indices"], ["part"], axis=1),
        helper.make_node("Relu", ["part"], ["y"]),
    ]
    return _model(nodes, dims, {"indices": np.int64([first, first + 5])})


def _trilu(dims: Dims, k: int) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Trilu", ["x", "k"], ["upper"], upper=1),
        helper.make_node("Relu", ["upper"], ["y"]),
    ]
    return _model(nodes, dims, {"k": np.int64(k)})


def _topk(dims: Dims, k: int) -> onnx.ModelProto:
    nodes = [
        helper.make_node("TopK", ["x", "k"], ["largest", ""]),
        helper.make_node("ReduceSum", ["largest", "axes"], ["y"]),
    ]
    return _model(nodes, dims, {"k": np.int64([k]), "axes": np.int64([1])})


def _step(dims: Dims, step: int) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Slice", ["x", "starts", "ends", "axes", "steps"], ["part"]),
        helper.make_node("ReduceSum", ["part", "axes"], ["y"]),
    ]
    bounds = {"starts": np.int64([0]), "ends": np.int64([_BEYOND]), "axes": np.int64([1])}
    return _model(nodes, dims, bounds | {"steps": np.int64([step])})


def _pool(dims: Dims, kernel: int) -> onnx.ModelProto:
    pads = [(kernel - 1) // 2, 0] * 2
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axes"], ["image"]),
        helper.make_node("AveragePool", ["image"], ["mean"], kernel_shape=[kernel, 1], pads=pads),
        helper.make_node("Relu", ["mean"], ["y"]),
    ]
    return _model(nodes, dims, {"axes": np.int64([0, 1])})


def _threshold(dims: Dims, least: int) -> onnx.ModelProto:
    """x at the positions above ``least``, otherwise 0: positions as floating-point numbers."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node(
            "ConstantOfShape", ["shape"], ["ones"], value=helper.make_tensor("one", 1, [1], [1.0])
        ),
        helper.make_node("CumSum", ["ones", "axis"], ["position"]),
        helper.make_node("Greater", ["position", "least"], ["behind"]),
        helper.make_node("Where", ["behind", "x", "zero"], ["y"]),
    ]
    numbers = {"least": np.float32(least), "zero": np.float32(0)}
    return _model(nodes, dims, numbers | {"axis": np.int64(1)})


_STATIC = {
    "slice": (_slice, 100, 300),
    "pad": (_pad, 10, 20),
    "gather": (_gather, 100, 300),
    "trilu": (_trilu, 100, 200),
    "topk": (_topk, 100, 200),
    "step": (_step, 300, 400),
    "pool": (_pool, 31, 61),
    "threshold": (_threshold, 100, 200),
}


@pytest.mark.parametrize("kind", _STATIC)
def test_other_positions_of_long_axes_are_not_taken_for_the_same(kind: str) -> None:
    build, one, other = _STATIC[kind]
    dims = (1024, 1000)
    assert not _proved(build(dims, one), build(dims, other))
    assert _proved(build(dims, one), build(dims, one))


@pytest.mark.parametrize("kind", [kind for kind in _STATIC if kind != "threshold"])
def test_other_positions_of_symbolic_axes_are_not_taken_for_the_same(kind: str) -> None:
    build, one, other = _STATIC[kind]
    assert not _proved(build(("N", "M"), one), build(("N", "M"), other))


def _proved(before: onnx.ModelProto, after: onnx.ModelProto) -> bool:
    views = [infer(prepare(ir.from_proto(side)).model) for side in (before, after)]
    return prove_models(*views, Certificate()).passed


def test_integers_of_attributes_and_constants_may_be_positions() -> None:
    model = ir.from_proto(_pool((8, 8), 31))
    constants = [np.int64([-7, 3, _BEYOND]), np.float32([9]), np.float32([2.5])]
    assert positions(model.graph, constants) == {31, 15, 7}
    assert positions(model.graph, constants, floats=True) == {31, 15, 9, 7}


def test_reduced_sizes_stay_distinct_multiples_and_behind_positions() -> None:
    smaller = reduced([12, 64, 768, 1000, 3072], {12, 100}, keep=[1000])
    sizes = {size: smaller.get(size, size) for size in (12, 64, 768, 1000, 3072)}
    assert len(set(sizes.values())) == 5
    assert sizes[12] == 12 < sizes[64] < 64
    assert sizes[768] > 2 * 100
    assert sizes[768] % sizes[64] == sizes[3072] % sizes[768] == 0
    assert sizes[1000] == 1000
