"""The steps of our own compute what the model did, and leave what they would change."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx.printer
import onnx_ir as ir
import pytest

from onnxfold.graph.operands import known_tensor
from onnxfold.tuning.rewritings import NotRewritten, rewritten, tied_again, unflatten, untie
from tests.sessions import outputs

# Sums of 4 to 6 products of numbers below 4, in float32 and another order.
_ROUNDING = 1e-5
_FEEDS = {
    "x": np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32),
    "i": np.array([[5, 0, 2], [1, 1, 4]]),
}
_W = np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32)


def _model(body: str, inputs: str = "float[B,T,4] x") -> onnx.ModelProto:
    weights = ", ".join(
        f"float[{','.join(map(str, array.shape))}] {name} = {{{','.join(map(str, array.flat))}}}"
        for name, array in (("w", _W), ("wt", _W.T), ("square", _W[:, :4]), ("b", _W[0]))
    )
    sizes = "int64[2] rows = {-1,4}, int64[3] back = {2,3,6}, int64[3] mixed = {3,2,6}"
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
    g ({inputs}) => (float[P,Q,R] y) <{weights}, {sizes}> {{ {body} }}"""
    model = onnx.parser.parse_model(text)
    onnx.checker.check_model(model)
    return model


def _outputs(model: onnx.ModelProto) -> np.ndarray:
    return outputs(model, {value.name: _FEEDS[value.name] for value in model.graph.input})[0]


_FLAT = "f = Reshape (x, rows)  p = Gemm {attributes} (f, {operands})  y = Reshape (p, back)"
_OF_SIZES = """s = Shape (x)  zero = Constant <value_ints = [0]> ()
    two = Constant <value_ints = [2]> ()  lead = Slice (s, zero, two)
    six = Constant <value_ints = [6]> ()
    to = Concat <axis = 0> (lead, six)  f = Reshape (x, rows)  p = Gemm (f, w, b)
    y = Reshape (p, to)"""


@pytest.mark.parametrize(
    "body",
    [
        _FLAT.format(attributes="", operands="w, b"),
        _FLAT.format(attributes="", operands="w"),
        _FLAT.format(attributes="<transB = 1>", operands="wt, b"),
        _OF_SIZES,
    ],
)
def test_a_product_of_flattened_rows_becomes_one_of_rows(body: str) -> None:
    model = _model(body, "float[2,3,4] x")
    changed = ir.from_proto(model)
    assert unflatten(changed) == 1
    made = ir.to_proto(changed)
    assert "Gemm" not in {node.op_type for node in made.graph.node}
    np.testing.assert_allclose(_outputs(made), _outputs(model), rtol=0, atol=_ROUNDING)


@pytest.mark.parametrize(
    "body",
    [
        _FLAT.format(attributes="<alpha = 2.0>", operands="w, b"),
        _FLAT.format(attributes="<beta = 0.5>", operands="w, b"),
        "f = Reshape (x, rows)  t = Transpose (f)  p = Gemm <transA = 1> (t, w, b)"
        "  y = Reshape (p, back)",
        "f = Reshape (x, rows)  p = Gemm (f, w, b)  q = Reshape (p, back)  r = Reshape (p, back)"
        "  y = Add (q, r)",
    ],
    ids=["scaled", "half a bias", "turned", "read twice"],
)
def test_other_products_of_flattened_rows_stay(body: str) -> None:
    assert unflatten(ir.from_proto(_model(body, "float[2,3,4] x"))) == 0


def test_rows_that_come_back_in_another_shape_stay_right() -> None:
    body = "f = Reshape (x, rows)  p = Gemm (f, w, b)  y = Reshape (p, mixed)"
    model = _model(body, "float[2,3,4] x")
    changed = ir.from_proto(model)
    unflatten(changed)
    made = ir.to_proto(changed)
    np.testing.assert_allclose(_outputs(made), _outputs(model), rtol=0, atol=_ROUNDING)


_TIED = "e = Gather (wt, i)  t = Transpose <perm = [1, 0]> (wt)  y = MatMul (e, t)"


def test_a_tied_table_is_stored_as_the_product_reads_it() -> None:
    model = _model(_TIED, "int64[2,3] i")
    changed = ir.from_proto(model)
    assert untie(changed) == 1
    made = ir.to_proto(changed)
    assert [node.op_type for node in made.graph.node] == ["Gather", "MatMul"]
    assert {tensor.name for tensor in made.graph.initializer} >= {"wt", "t_stored"}
    np.testing.assert_array_equal(_outputs(made), _outputs(model))


@pytest.mark.parametrize(
    "body",
    [
        "t = Transpose (square)  y = MatMul (t, x)",
        "t = Transpose (square)  p = MatMul (x, t)  q = Reshape (t, rows)  y = Add (p, q)",
        "t = Transpose <perm = [0, 2, 1]> (x)  y = MatMul (x, t)",
    ],
    ids=["read on the left", "read elsewhere", "not a weight"],
)
def test_other_transposes_stay(body: str) -> None:
    assert untie(ir.from_proto(_model(body))) == 0


def test_a_sound_rewriting_is_proved_and_a_model_without_such_a_place_is_returned() -> None:
    flat = ir.from_proto(_model(_FLAT.format(attributes="", operands="w, b"), "float[2,3,4] x"))
    assert "Gemm" not in {node.op_type for node in rewritten(flat, unflatten).graph}
    tied = ir.from_proto(_model(_TIED, "int64[2,3] i"))
    made = rewritten(tied, untie, tied_again)
    assert {node.op_type for node in made.graph} == {"Gather", "MatMul"}
    assert rewritten(flat, untie, tied_again) is flat
    assert rewritten(tied, unflatten) is tied


def _with_another_bias(model: ir.Model) -> int:
    count = unflatten(model)
    bias = model.graph.initializers["b"]
    bias.const_value = ir.tensor(known_tensor(bias).numpy() + 1, name="b")
    return count


def _with_a_wrong_copy(model: ir.Model) -> int:
    count = untie(model)
    copy = model.graph.initializers["t_stored"]
    array = known_tensor(copy).numpy().copy()
    array[0, 0] += 1
    copy.const_value = ir.tensor(array, name="t_stored")
    return count


def test_an_unsound_rewriting_is_not_proved() -> None:
    flat = ir.from_proto(_model(_FLAT.format(attributes="", operands="w, b"), "float[2,3,4] x"))
    with pytest.raises(NotRewritten, match="not proved: output"):
        rewritten(flat, _with_another_bias)
    tied = ir.from_proto(_model(_TIED, "int64[2,3] i"))
    with pytest.raises(NotRewritten, match="'t_stored' is not the transpose of 'wt'"):
        rewritten(tied, _with_a_wrong_copy, tied_again)


_FUSED = (
    """y = com.microsoft.FusedMatMul <alpha = {alpha}, transA = 0, transB = {turned}> (x, {w})"""
)


def _fused(alpha: float, turned: int, w: str) -> onnx.ModelProto:
    body = _FUSED.format(alpha=alpha, turned=turned, w=w)
    text = onnx.printer.to_text(_model("y = MatMul (x, w)", "float[2,3,4] x"))
    text = text.replace("y = MatMul (x, w)", body)
    text = text.replace('["" : 18]', '["" : 18, "com.microsoft" : 1]')
    return onnx.parser.parse_model(text)


def test_a_fused_product_that_turns_its_weight_becomes_a_plain_one_for_quantizers() -> None:
    model = _fused(1.0, 1, "wt")
    made = ir.to_proto(rewritten(ir.from_proto(model), untie, tied_again))
    assert [node.op_type for node in made.graph.node] == ["MatMul"]
    np.testing.assert_allclose(_outputs(made), _outputs(model), rtol=0, atol=_ROUNDING)


@pytest.mark.parametrize(("alpha", "turned", "w"), [(0.5, 1, "wt"), (1.0, 0, "w")])
def test_other_fused_products_stay(alpha: float, turned: int, w: str) -> None:
    assert untie(ir.from_proto(_fused(alpha, turned, w))) == 0
