"""docs/adding_an_op.md names one place: with a row alone, a new operator folds."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfold.check.reference import kernel
from onnxfold.check.reference.kernel import Kernel, find_kernel
from onnxfold.operators.functions import DOMAIN
from onnxfold.operators.row import Elements, Family, Operator, Shapes
from onnxfold.operators.table import ROWS
from onnxfold.target import Target
from tests.soundness.folding import Folded, evaluate, fold, relative_error

_C = 8
# toy.Mirror turns the order of the tokens around; rows of channels stay as they are.
ROW = Operator(
    "Mirror",
    "toy",
    family=Family.SPATIAL_AVERAGE,
    law="P mirror(x) = mirror(P x) on batch and tokens",
    elements=Elements.PERMUTES,
    shape=Shapes.SAME,
)


def _model() -> onnx.ModelProto:
    """MatMul, Mirror, LayerNormalization, Mirror and MatMul, of x: [batch, C, tokens]."""
    rng = np.random.default_rng(0)
    weights = {"W": rng.standard_normal((_C, _C)), "V": rng.standard_normal((5, _C, 1))}
    weights |= {"gamma": 1 + rng.random(_C), "beta": rng.random(_C), "b": rng.random(5)}
    nodes = [
        helper.make_node("MatMul", ["W", "x"], ["m"]),
        helper.make_node("Mirror", ["m"], ["t"], domain="toy"),
        helper.make_node("Transpose", ["t"], ["last"], perm=[0, 2, 1]),
        helper.make_node("LayerNormalization", ["last", "gamma", "beta"], ["n"], axis=-1),
        helper.make_node("Transpose", ["n"], ["first"], perm=[0, 2, 1]),
        helper.make_node("Mirror", ["first"], ["u"], domain="toy"),
        helper.make_node("Conv", ["u", "V", "b"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "toy",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["batch", _C, 4])],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
        value_info=[
            helper.make_tensor_value_info(name, TensorProto.DOUBLE, ["batch", _C, 4])
            for name in ("t", "u")
        ],
    )
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("toy", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def _spelled_out(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with toy.Mirror as what it means, a Slice that runs backwards."""
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    for name, number in (("from", -1), ("to", -(1 << 30)), ("axis", 2), ("step", -1)):
        plain.graph.initializer.append(
            numpy_helper.from_array(np.array([number]), f"mirror.{name}")
        )
    for node in plain.graph.node:
        if node.domain == "toy":
            node.op_type, node.domain = "Slice", ""
            node.input.extend(f"mirror.{name}" for name in ("from", "to", "axis", "step"))
    return plain


def _add(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the row, and the kernel that a module of check/reference/kernels would register."""
    monkeypatch.setitem(ROWS, ROW.key, ROW)
    monkeypatch.setitem(kernel._KERNELS, ROW.key, Kernel(lambda _, x: x[..., ::-1]))


def _folded() -> Folded:
    return fold(_model(), Target.ORT, fuse_affine=True)


def test_an_operator_with_a_row_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    _add(monkeypatch)
    folded = _folded()
    assert folded.proof.passed, folded.proof.failures
    assert len(folded.plan.folds) == 1
    (fusion,) = folded.plan.fusions
    assert (fusion.gamma, fusion.beta) == (True, True)
    feeds = {"x": np.random.default_rng(1).standard_normal((2, _C, 4))}
    models = [_spelled_out(model) for model in (_model(), folded.model)]
    expected, told = (evaluate(model, feeds) for model in models)
    assert relative_error(expected, told) <= 1e-12  # float64, a few hundred roundings of 2^-53


def test_without_its_row_it_does_not_and_the_refusal_says_so() -> None:
    folded = _folded()
    assert not folded.plan.folds
    sentences = " ".join(refusal.sentence for _, refusal in folded.plan.refusals)
    assert "toy.Mirror" in sentences
    assert "has no row in the table of operators" in sentences


def test_the_proof_can_compute_every_operator_that_a_fiber_is_followed_through() -> None:
    """It trusts no row: without a kernel a right fold would be left out, with all others.

    Those of our own domain have bodies.
    """
    claiming = [row for row in ROWS.values() if row.family is not None and row.domain != DOMAIN]
    assert len(claiming) > 40
    missing = [row.key for row in claiming if find_kernel(*row.key) is None]
    assert not missing
