"""Residual additions and the norms after them become one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest

import onnxfold
from onnxfold.operators.functions import DOMAIN
from tests import graphs
from tests.graphs import untyped, weights
from tests.pairs import pairs

B, T, C = 2, 3, 8
FLATTEN = "[flatten] flat = Reshape(t, target)"
READ = "z = Relu(t)"
FLAT = ("flat", "computed", "of the sum")


def branch_model(
    nodes: str,
    *outputs: str,
    biased: bool = False,
    exchanged: bool = False,
    given: str = "",
    **numbers: Any,
) -> onnx.ModelProto:
    """t = x V + r W [+ b], in either order, and then the nodes given."""
    order = slice(None, None, -1 if exchanged else 1)
    made = weights(V=(C, C), W=(C, C), b=(C,), gamma=(C,), beta=(C,))
    arrays = {name: array.astype(np.float32) for name, array in made.items()}
    arrays |= {name: np.asarray(number) for name, number in numbers.items()}
    body = (
        f"[skip] skip = MatMul(r, V) [linear] {'product' if biased else 'linear'} = MatMul(x, W) "
    )
    if biased:
        body += f"[bias] linear = Add({', '.join(['b', 'product'][order])}) "
    body += f"[residual] t = Add({', '.join(['skip', 'linear'][order])}) {nodes}"
    rows = f"float[batch,{T},{C}]"
    names = ", ".join(f"float {name}" for name in outputs)
    return untyped(graphs.model(body, f"{rows} x, {rows} r{given}", names, arrays))


def norm(x: str = "t", y: str = "y", axis: int = -1, affine: str = "gamma, beta") -> str:
    return f"[{y}] {y} = LayerNormalization<axis={axis}>({x}, {affine})"


def flattened(target: str) -> str:
    """t, its rows as a matrix `flat`, and y, the norm of that; the target of the Reshape varies."""
    measured = {"flat": "", "computed": "x", "of the sum": "t"}[target]
    computed = f"width = Shape<start=2>({measured}) target = Concat<axis=0>(minus, width) "
    return f"{computed if measured else ''} {FLATTEN} {norm('flat')}"


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
    outputs = ["y", "z"] if read else ["y"]
    nodes = f"{norm()} {READ if read else ''}"
    model = branch_model(nodes, *outputs, biased=biased, exchanged=exchanged)
    kind = "LayerNormAffine" if read else "RMSNormAffine"
    name = f"Add{'Bias' if biased else ''}{kind}{'WithSum' if read else ''}"
    assert ours(fused(model)) == [name]


@pytest.mark.parametrize("read", [False, True])
def test_additions_stay_where_they_shall_not_be_fused(read: bool) -> None:
    model = branch_model(
        f"{norm()} {READ if read else ''}", *(["y", "z"] if read else ["y"]), biased=True
    )
    plain = fused(model, fuse_residual=False)
    assert not any(name.startswith("Add") for name in ours(plain))
    assert [node.op_type for node in plain.graph.node].count("Add") == 2


def test_identities_between_the_additions_and_the_norm_cost_no_fusion() -> None:
    """Paddle2ONNX puts one behind most operators."""
    model = branch_model(f"u = Identity(t) {norm('u')}", "y", biased=True)
    assert ours(fused(model)) == ["AddBiasRMSNormAffine"]


def test_a_sum_of_two_inputs_is_fused() -> None:
    """No node computes a value that could have its own bias."""
    model = branch_model(norm(), "y")
    del model.graph.node[:2]
    model.graph.node[0].input[:] = ["x", "r"]
    assert ours(fused(model)) == ["AddLayerNormAffine"]


@pytest.mark.parametrize("opset", [14, 17])
def test_skip_operators_of_onnxruntime_become_ours(opset: int) -> None:
    body = 'y, "", "", s = com.microsoft.SkipLayerNormalization<epsilon=1e-5>(x, r, gamma, beta, b)'
    made = {"gamma": np.full(C, 2.0), "beta": np.ones(C), "b": np.arange(C, dtype=np.float64)}
    rows = f"float[batch,{T},{C}]"
    inputs, outputs = f"{rows} x, {rows} r", f"{rows} y, {rows} s"
    model = graphs.model(body, inputs, outputs, made, opset, dtype=np.float32)
    assert ours(fused(model)) == ["AddBiasLayerNormAffineWithSum"]


@pairs(target=FLAT, biased=[False, True], sum_read=[False, True], rows_read=[False, True])
def test_a_reshape_that_keeps_rows_changes_places_with_the_norm(
    target: str, biased: bool, sum_read: bool, rows_read: bool
) -> None:
    nodes, outputs = flattened(target), ["y"]
    if sum_read:
        nodes += f" {READ}"
        outputs.append("z")
    if rows_read:
        outputs.append("flat")
    numbers = {"target": [-1, C]} if target == "flat" else {"minus": [-1]}
    model = branch_model(nodes, *outputs, biased=biased, **numbers)
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
    nodes = f"{FLATTEN} {norm('flat', 'n')} h = MatMul(n, W) u = Add(flat, h) " + (
        f"[restore] restored = Reshape(u, back) {norm('restored')}"
    )
    model = branch_model(nodes, "y", "restored", target=[-1, C], back=[-1, T, C])
    found = ours(fused(model))
    assert [name.replace("Layer", "RMS") for name in found] == ["AddRMSNormAffineWithSum"] * 2


def test_norms_over_several_axes_change_places_with_a_reshape_in_front_of_them() -> None:
    nodes = f"flat = Reshape(t, target) {norm('flat', axis=-2, affine='one')}"
    one = np.ones((T, C), np.float32)
    result = fused(branch_model(nodes, "y", target=[-1, 1, T, C], one=one))
    assert ours(result) == ["AddLayerNormAffine"]


@pytest.mark.parametrize(
    ("target", "affine"),
    [
        ([-1, C // 2], "half, half"),
        ([-1, T * C], "long, long"),
        ([-1, 1, T * C], "long, long"),
        ([-1, C, 1], "one, one"),
    ],
)
def test_a_reshape_that_cuts_or_joins_rows_stays_where_it_is(
    target: Sequence[int], affine: str
) -> None:
    nodes = f"flat = Reshape(t, target) {norm('flat', affine=affine)}"
    sizes = {"half": C // 2, "long": T * C, "one": 1}
    ones = {name: np.ones(size, np.float32) for name, size in sizes.items()}
    model = branch_model(nodes, "y", target=target, **ones)
    assert not any(name.startswith("Add") for name in ours(fused(model)))


def test_rows_of_unknown_size_are_left_alone() -> None:
    nodes = "flat = Reshape(t, target) y = LayerNormalization<axis=-1>(flat, scale)"
    model = branch_model(nodes, "y", given=", int64[2] target, float[width] scale")
    assert not any(name.startswith("Add") for name in ours(fused(model, check=None)))
