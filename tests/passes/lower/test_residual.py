"""Residual additions and the norms after them become one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from onnxfold.operators.functions import DOMAIN
from tests.pairs import pairs

B, T, C = 2, 3, 8
FLAT = ("flat", "computed", "of the sum")


def branch_model(
    nodes: Sequence[onnx.NodeProto],
    outputs: Sequence[str],
    *,
    biased: bool = False,
    exchanged: bool = False,
    integers: Mapping[str, Sequence[int]] | None = None,
) -> onnx.ModelProto:
    """t = x V + r W [+ b], in either order, and then the nodes given."""
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((C, C)) for name in "VW"}
    weights |= {"b": rng.standard_normal(C), "gamma": 1 + rng.random(C), "beta": rng.random(C)}
    terms = ["skip", "linear"][:: -1 if exchanged else 1]
    front = [
        helper.make_node("MatMul", ["r", "V"], ["skip"], name="skip"),
        helper.make_node("MatMul", ["x", "W"], ["product" if biased else "linear"], name="linear"),
    ]
    if biased:
        operands = ["b", "product"][:: -1 if exchanged else 1]
        front.append(helper.make_node("Add", operands, ["linear"], name="bias"))
    front.append(helper.make_node("Add", terms, ["t"], name="residual"))
    constants = {name: a.astype(np.float32) for name, a in weights.items()}
    constants |= {name: np.asarray(a, np.int64) for name, a in (integers or {}).items()}
    used = {name for node in (*front, *nodes) for name in node.input}
    graph = helper.make_graph(
        [*front, *nodes],
        "residual",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", T, C]) for name in "xr"],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(a, name) for name, a in constants.items() if name in used],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def norm(x: str = "t", y: str = "y", axis: int = -1, affine: str = "gamma beta") -> onnx.NodeProto:
    return helper.make_node("LayerNormalization", [x, *affine.split()], [y], name=y, axis=axis)


def flattened(target: str) -> list[onnx.NodeProto]:
    """t, its rows as a matrix `flat`, and y, the norm of that; the target of the Reshape varies."""
    computed = {
        "flat": [],
        "computed": [
            helper.make_node("Shape", ["x"], ["width"], start=2),
            helper.make_node("Concat", ["minus", "width"], ["target"], axis=0),
        ],
        "of the sum": [
            helper.make_node("Shape", ["t"], ["width"], start=2),
            helper.make_node("Concat", ["minus", "width"], ["target"], axis=0),
        ],
    }
    reshape = helper.make_node("Reshape", ["t", "target"], ["flat"], name="flatten")
    return [*computed[target], reshape, norm("flat")]


def fused(model: onnx.ModelProto, **options: Any) -> onnx.ModelProto:
    """The optimized model, which its check found to compute the same."""
    result: onnx.ModelProto = onnxfold.optimize(model, target="kernels", **options).model
    return result


def ours(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node if node.domain == DOMAIN]


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("exchanged", [False, True])
def test_every_order_of_operands_is_fused(exchanged: bool, biased: bool, read: bool) -> None:
    # A norm whose input has another reader cannot be folded: it stays a LayerNorm.
    more = [helper.make_node("Relu", ["t"], ["z"])] if read else []
    outputs = ["y", "z"] if read else ["y"]
    model = branch_model([norm(), *more], outputs, biased=biased, exchanged=exchanged)
    kind = "LayerNormAffine" if read else "RMSNormAffine"
    name = f"Add{'Bias' if biased else ''}{kind}{'WithSum' if read else ''}"
    assert ours(fused(model)) == [name]


@pytest.mark.parametrize("read", [False, True])
def test_additions_stay_where_they_shall_not_be_fused(read: bool) -> None:
    more = [helper.make_node("Relu", ["t"], ["z"])] if read else []
    model = branch_model([norm(), *more], ["y", "z"] if read else ["y"], biased=True)
    plain = fused(model, fuse_residual=False)
    assert not any(name.startswith("Add") for name in ours(plain))
    assert [node.op_type for node in plain.graph.node].count("Add") == 2


def test_identities_between_the_additions_and_the_norm_cost_no_fusion() -> None:
    """Paddle2ONNX puts one behind most operators."""
    copy = helper.make_node("Identity", ["t"], ["u"])
    model = branch_model([copy, norm("u")], ["y"], biased=True)
    assert ours(fused(model)) == ["AddBiasRMSNormAffine"]


def test_a_sum_of_two_inputs_is_fused() -> None:
    """No node computes a value that could have its own bias."""
    model = branch_model([norm()], ["y"])
    del model.graph.node[:2]
    model.graph.node[0].input[:] = ["x", "r"]
    assert ours(fused(model)) == ["AddLayerNormAffine"]


@pytest.mark.parametrize("opset", [14, 17])
def test_skip_operators_of_onnxruntime_become_ours(opset: int) -> None:
    skip = helper.make_node(
        "SkipLayerNormalization",
        ["x", "r", "gamma", "beta", "b"],
        ["y", "", "", "s"],
        domain="com.microsoft",
        epsilon=1e-5,
    )
    constants = {"gamma": np.full(C, 2.0), "beta": np.ones(C), "b": np.arange(C)}
    graph = helper.make_graph(
        [skip],
        "skip",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", T, C]) for name in "xr"],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", T, C]) for n in "ys"],
        [numpy_helper.from_array(a.astype(np.float32), name) for name, a in constants.items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    assert ours(fused(model)) == ["AddBiasLayerNormAffineWithSum"]


@pairs(target=FLAT, biased=[False, True], sum_read=[False, True], rows_read=[False, True])
def test_a_reshape_that_keeps_rows_changes_places_with_the_norm(
    target: str, biased: bool, sum_read: bool, rows_read: bool
) -> None:
    nodes, outputs = flattened(target), ["y"]
    if sum_read:
        nodes.append(helper.make_node("Relu", ["t"], ["z"]))
        outputs.append("z")
    if rows_read:
        outputs.append("flat")
    integers = {"target": [-1, C]} if target == "flat" else {"minus": [-1]}
    model = branch_model(nodes, outputs, biased=biased, integers=integers)
    result = fused(model)
    found = [name for name in ours(result) if name.startswith("Add")]
    if target != "flat" and (sum_read or target == "of the sum"):
        # The target is computed after the addition, whose other reader the call must precede.
        assert not found
        return
    assert len(found) == 1
    assert found[0].startswith("AddBias" if biased else "Add")
    assert found[0].endswith("WithSum") == (sum_read or rows_read)
    assert [node.op_type for node in result.graph.node].count("Reshape") == 1 + rows_read
    assert biased or not onnxfold.optimize(result, target="kernels").changed


def test_a_model_may_flatten_before_each_block_and_restore_behind_it() -> None:
    flatten = helper.make_node("Reshape", ["t", "target"], ["flat"], name="flatten")
    nodes = [
        flatten,
        norm("flat", "n"),
        helper.make_node("MatMul", ["n", "W"], ["h"]),
        helper.make_node("Add", ["flat", "h"], ["u"]),
        helper.make_node("Reshape", ["u", "back"], ["restored"], name="restore"),
        norm("restored"),
    ]
    integers = {"target": [-1, C], "back": [-1, T, C]}
    model = branch_model(nodes, ["y", "restored"], integers=integers)
    found = ours(fused(model))
    assert [name.replace("Layer", "RMS") for name in found] == ["AddRMSNormAffineWithSum"] * 2


def test_norms_over_several_axes_change_places_with_a_reshape_in_front_of_them() -> None:
    flatten = helper.make_node("Reshape", ["t", "target"], ["flat"])
    model = branch_model([flatten, norm("flat", axis=-2, affine="one")], ["y"])
    for name, array in (("target", np.array([-1, 1, T, C])), ("one", np.ones((T, C), np.float32))):
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    result = fused(model)
    assert ours(result) == ["AddLayerNormAffine"]


@pytest.mark.parametrize(
    ("target", "affine"),
    [
        ([-1, C // 2], "half half"),
        ([-1, T * C], "long long"),
        ([-1, 1, T * C], "long long"),
        ([-1, C, 1], "one one"),
    ],
)
def test_a_reshape_that_cuts_or_joins_rows_stays_where_it_is(
    target: Sequence[int], affine: str
) -> None:
    nodes = [helper.make_node("Reshape", ["t", "target"], ["flat"]), norm("flat", affine=affine)]
    model = branch_model(nodes, ["y"], integers={"target": target})
    sizes = {"half": C // 2, "long": T * C, "one": 1}
    for name, size in sizes.items():
        tensor = numpy_helper.from_array(np.ones(size, np.float32), name)
        model.graph.initializer.append(tensor)
    assert not any(name.startswith("Add") for name in ours(fused(model)))


def test_rows_of_unknown_size_are_left_alone() -> None:
    nodes = [
        helper.make_node("Reshape", ["t", "target"], ["flat"]),
        helper.make_node("LayerNormalization", ["flat", "scale"], ["y"], axis=-1),
    ]
    model = branch_model(nodes, ["y"])
    for name, kind, shape in (("target", TensorProto.INT64, [2]), ("scale", 1, ["width"])):
        model.graph.input.append(helper.make_tensor_value_info(name, kind, shape))
    assert not any(name.startswith("Add") for name in ours(fused(model, check=None)))
