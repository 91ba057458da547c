"""Outlying gammas stay where the norm multiplies anyway: moved, they spoil a later int8."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from onnxruntime.quantization import quantize_dynamic

import onnxfold
from onnxfold.passes.affine.wanted import SPREAD, spread_of
from tests.sessions import outputs

WIDTH, ROWS = 128, 96
FOLDS = "h = MatMul(x, V)  n = LayerNormalization<axis=-1, epsilon=1e-5>(h, G, B)"
DYT = "s = Mul(x, alpha)  t = Tanh(s)  p = Mul(t, G)  n = Add(p, B)"


def model(
    outliers: int, times: float, *, inverse: bool = False, body: str = FOLDS
) -> onnx.ModelProto:
    """A layer, a norm and a layer; ``inverse``: whose rows are as small as gamma is large."""
    rng = np.random.default_rng(1)
    gamma = rng.normal(1, 0.15, WIDTH)
    gamma[rng.choice(WIDTH, outliers, replace=False)] *= times
    W = rng.normal(0, 0.05, (WIDTH, 2 * WIDTH))
    arrays = {
        "V": rng.normal(0, 0.1, (WIDTH, WIDTH)),
        "G": gamma,
        "B": rng.normal(0, 0.05, WIDTH),
        "W": W / gamma[:, None] if inverse else W,
        "c": rng.normal(0, 0.05, 2 * WIDTH),
        "alpha": np.array(0.7),
    }
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]>\n'
        f"g (float[N,{WIDTH}] x) => (float[N,{2 * WIDTH}] y) {{ {body} y = Gemm(n, W, c) }}"
    )
    read = {operand for node in proto.graph.node for operand in node.input}
    for name, array in ((name, arrays[name]) for name in sorted(read & arrays.keys())):
        proto.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    return proto


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
@pytest.mark.parametrize("outliers", [1, 3])
def test_an_outlying_gamma_moves_for_kernels_alone(target: str, outliers: int) -> None:
    result = onnxfold.optimize(model(outliers, 15), target=target)
    (fusion,) = result.plan.fusions
    assert fusion.beta  # its addition goes away
    assert fusion.gamma is (target == "kernels")
    assert len(result.plan.folds) == 1
    (norm,) = result.report["inspect"]["norms"]
    reason = norm["affine_reason"]
    if target == "kernels":
        assert reason is None
    else:
        assert reason["code"] == "outlying_gamma"
        assert "int8" in reason["sentence"]
    assert not onnxfold.optimize(result.model, target=target).changed
    moved = onnxfold.optimize(result.model, target=target, fuse_affine="always")
    assert [each.gamma for each in moved.plan.fusions] == [True] * (target != "kernels")


def test_many_outliers_in_heavy_weights_stay() -> None:
    """They are much of the root mean square themselves, and double the error."""
    proto = model(16, 15)
    rng = np.random.default_rng(0)
    (W,) = (each for each in proto.graph.initializer if each.name == "W")
    heavy = (0.05 * rng.standard_t(4, (WIDTH, 2 * WIDTH))).astype(np.float32)
    W.CopyFrom(numpy_helper.from_array(heavy, "W"))
    (fusion,) = onnxfold.optimize(proto).plan.fusions
    assert not fusion.gamma


@pytest.mark.parametrize("times", [1, 2])
def test_a_gamma_as_trained_ones_are_moves(times: float) -> None:
    (fusion,) = onnxfold.optimize(model(3, times)).plan.fusions
    assert fusion.gamma


def test_an_outlying_gamma_moves_where_the_weights_make_up_for_it() -> None:
    (fusion,) = onnxfold.optimize(model(3, 15, inverse=True)).plan.fusions
    assert fusion.gamma


def test_the_gamma_of_a_norm_without_an_operator_moves() -> None:
    """Of DyT, the product goes away."""
    (fusion,) = onnxfold.optimize(model(3, 15, body=DYT), target="ort").plan.fusions
    assert fusion.gamma


def test_spread() -> None:
    assert spread_of(np.zeros(4)) == spread_of(np.full(8, -3.0)) == 1.0
    assert spread_of(np.array([15.0] + [1.0] * 127)) > SPREAD


@pytest.mark.parametrize("outliers", [1, 3])
def test_int8_suffers_where_it_moves_all_the_same(outliers: int, tmp_path: Path) -> None:
    """With one scale for each tensor; with one for each channel it gains."""
    original = model(outliers, 15)
    truth = _run(original)
    errors: dict[tuple[str, bool], float] = {}
    for chosen in ("auto", "always"):
        made = onnxfold.optimize(original, target="ort", fuse_affine=chosen).model
        onnx.save(made, tmp_path / "float.onnx")
        for per_channel in (False, True):
            quantize_dynamic(
                tmp_path / "float.onnx",
                tmp_path / "int8.onnx",
                per_channel=per_channel,
                extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
            )
            difference = _run(onnx.load(tmp_path / "int8.onnx")) - truth
            errors[chosen, per_channel] = float(np.linalg.norm(difference))
    assert errors["auto", False] < errors["always", False]
    assert errors["always", True] < errors["auto", True]


def _run(proto: onnx.ModelProto) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)
    return outputs(proto, {"x": x})[0]
