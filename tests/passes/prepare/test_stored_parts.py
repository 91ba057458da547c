"""Weights behind Splits, Slices, Gathers and Reshapes of stored constants are weights as others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import onnxfold
from onnxfold.model_io.load import open_source
from onnxfold.passes.prepare.working_copy import prepare

_NORM = "h = MatMul(x, A) n = LayerNormalization<axis=-1>(h, gamma, beta) "
_ROWS = np.random.default_rng(0).standard_normal

CASES = {
    "a vector": ("w = Reshape(W, sizes) p = MatMul(n, w) y = Add(p, b)", (128,)),
    "a vector of rows": (
        "r = Reshape(W, rows) w = Transpose(r) p = MatMul(n, w) y = Add(p, b)",
        (128,),
    ),
    "a flattened kernel": (
        "t = Transpose<perm=[0,2,1]>(n) w = Reshape(W, kernel) c = Conv(t, w, b) "
        "y = Transpose<perm=[0,2,1]>(c)",
        (128,),
    ),
    "columns": ("w = Slice(W, eight, sixteen, one) p = MatMul(n, w) y = Add(p, b)", (16, 24)),
    "one of a stack": ("w = Gather<axis=0>(W, first) p = MatMul(n, w) y = Add(p, b)", (3, 16, 8)),
    "parts": (
        "v, w = Split<axis=1>(W, halves) p = MatMul(n, v) s = Add(p, b) q = MatMul(n, w) "
        "r = Add(q, b) y = Add(s, r)",
        (16, 16),
    ),
}  # fmt: skip


def _model(body: str, shape: tuple[int, ...], output: str = "float[B,4,8] y") -> onnx.ModelProto:
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> g (float[B,4,16] x) => ({output})
        <int64[2] sizes = {{16, 8}}, int64[2] rows = {{8, 16}}, int64[3] kernel = {{8, 16, 1}},
        int64[1] eight = {{8}}, int64[1] sixteen = {{16}}, int64[1] one = {{1}},
        int64 first = {{1}}, int64[2] halves = {{8, 8}}, int64[1] zero = {{0}},
        int64[1] twelve = {{12}}> {{ {_NORM}{body} }}"""
    )
    read = {name for node in model.graph.node for name in node.input}
    for name, dims in {"A": (16, 16), "gamma": (16,), "beta": (16,), "b": (8,), "W": shape}.items():
        if name in read:
            numbers = _ROWS(dims).astype(np.float32)
            model.graph.initializer.append(numpy_helper.from_array(numbers, name))
    return model


@pytest.mark.parametrize("name", CASES)
def test_gamma_and_beta_move_into_a_part_of_a_weight(name: str) -> None:
    result = onnxfold.optimize(_model(*CASES[name]))
    summary = result.report["inspect"]["summary"]
    assert (summary["gamma_fused"], summary["beta_fused"]) == (1, 1)
    assert "left_out" not in result.report


def test_a_part_of_a_weight_is_centred() -> None:
    body = (
        "v, w = Split<axis=1>(W, halves) p = MatMul(n, v) y = LayerNormalization(p, g) "
        "z = MatMul(n, w)"
    )
    model = _model(body, (16, 16), "float[B,4,8] y, float[B,4,8] z")
    model.graph.initializer.append(numpy_helper.from_array(np.ones(8, np.float32), "g"))
    result = onnxfold.optimize(model, target="ort")
    assert [norm["action"] for norm in result.report["inspect"]["norms"]] == ["rms", "rms"]
    assert {"v", "w"} <= {tensor.name for tensor in result.model.graph.initializer}


@pytest.mark.parametrize(
    "body",
    [
        # Together the two are larger than the weight.
        "v = Slice(W, zero, twelve, one) w = Slice(W, eight, sixteen, one) "
        "p = MatMul(n, v) q = MatMul(n, w) y = Concat<axis=2>(p, q)",
        "w = Slice(W, eight, sixteen, one) p = MatMul(n, w) q = MatMul(n, W) "
        "y = Concat<axis=2>(p, q)",
        "w = Slice(W, eight, sixteen, one) y = MatMul(n, w)",
    ],
    ids=["overlapping parts", "a reader of all of it", "a part that the graph gives"],
)
def test_a_weight_that_would_be_stored_twice_stays_whole(body: str) -> None:
    model = _model(body, (16, 16), "float[B,4,S] y")
    if "q =" not in body:
        model.graph.output.append(onnx.helper.make_tensor_value_info("w", 1, [16, 8]))
    assert "W" in prepare(open_source(model).model).model.graph.initializers


def test_a_part_that_nothing_reads_is_not_stored() -> None:
    body = "v, w = Split<axis=1>(W, halves) p = MatMul(n, v) y = Add(p, b)"
    stored = prepare(open_source(_model(body, (16, 16))).model).model.graph.initializers
    assert {"W", "v", "w"} & set(stored) == {"v"}


def test_parts_of_external_data_are_written(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(
        _model(*CASES["parts"]), path, save_as_external_data=True, location="data", size_threshold=0
    )
    result = onnxfold.optimize(path, path.with_name("folded.onnx"))
    assert result.report["inspect"]["summary"]["gamma_fused"] == 1


def test_a_part_of_a_weight_is_stored_if_the_reader_of_all_of_it_gets_its_own() -> None:
    """A copy would leave the original with one reader, of a part."""
    body = (
        "p = MatMul(n, W) s = Add(p, beta) w = Slice(W, eight, sixteen, one) q = MatMul(x, w) "
        "y = Concat<axis=2>(s, q)"
    )
    result = onnxfold.optimize(_model(body, (16, 16), "float[B,4,24] y"))
    assert result.report["inspect"]["summary"]["gamma_fused"] == 1
    stored = {tensor.name: tensor.dims for tensor in result.model.graph.initializer}
    assert (stored["W"], stored["w"]) == ([16, 16], [16, 8])
    assert "W.fused" not in stored
    assert "left_out" not in result.report


@pytest.mark.parametrize("target", ["kernels", "onnx", "ort"])
def test_parts_of_a_weight_that_gets_a_centred_copy_take_gammas_at_once(target: str) -> None:
    body = (
        "v, w = Split<axis=1>(A, halves) p = MatMul(n, v) s = Add(p, b) q = MatMul(n, w) "
        "r = Add(q, b) y = Add(s, r)"
    )
    first = onnxfold.optimize(_model(body, (1,)), target=target, fuse_affine="always")
    summary = first.report["inspect"]["summary"]
    assert (summary["folded"], summary["gamma_fused"], summary["beta_fused"]) == (1, 1, 1)
    second = onnxfold.optimize(first.model, target=target, fuse_affine="always")
    assert not second.changed
