"""Norms between Transposes, as of ConvNeXt: ONNX Runtime takes the written RMS form apart."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxfold
from onnxfold.passes.centring import decide
from onnxfold.pipeline import finalize
from onnxfold.report.sentences import totals
from tests import graphs
from tests.optimized import optimized
from tests.sessions import executed, outputs

WIDTH = 8
TURN, BACK = "Transpose<perm=[0,2,3,1]>", "Transpose<perm=[0,3,1,2]>"
NORM = "n = LayerNormalization<axis=-1>(t, G, B)"
BEHIND = f"u = {BACK}(n)  y = Conv<pads=[1,1,1,1]>(u, W1, B1)"


def channels_first(opset: int = 17, behind: str = BEHIND, norm: str = NORM) -> onnx.ModelProto:
    """A norm over the channels of an image between two convolutions."""
    body = f"h = Conv(x, W0, B0) t = {TURN}(h) {norm} {behind}"
    convolutions = {"W0": (WIDTH, 3, 2, 2), "W2": (WIDTH, 3, 2, 2), "W1": (WIDTH, WIDTH, 3, 3)}
    vectors = dict.fromkeys(("B0", "B1", "G", "B"), (WIDTH,))
    made = graphs.weights(**convolutions, W=(WIDTH, WIDTH), **vectors)
    return graphs.model(body, "float[B,3,6,6] x", "float[B,K,N,M] y", made, opset, dtype=np.float32)


def folds(model: onnx.ModelProto, **options: str) -> int:
    norms = onnxfold.optimize(model, **options).report["inspect"]["norms"]  # type: ignore[arg-type]
    return sum(norm["action"] == "rms" for norm in norms)


def operators(model: onnx.ModelProto, folder: Path) -> Counter[str]:
    """The operators that a session executes."""
    return Counter(node.op_type for node in executed(model, folder).graph.node)


def test_a_session_executes_no_more_than_for_the_original(tmp_path: Path) -> None:
    result = onnxfold.optimize(channels_first())
    assert operators(result.model, tmp_path) == operators(channels_first(), tmp_path)
    (row,) = result.report["inspect"]["norms"]
    assert row["reason"]["code"] == "no_cheaper_form"
    assert "Transposes" in row["reason"]["sentence"]
    assert row["foldable"]
    summary = result.report["inspect"]["summary"]
    assert (summary["foldable"], summary["left_foldable"]) == (1, 1)
    assert totals(summary).startswith("0 of 1 LayerNorm folds to RMSNorm, 1 could but stays")


def test_a_norm_that_could_not_fold_has_the_reason_for_that() -> None:
    model = channels_first(behind=f"{BEHIND.replace('y =', 'c =')}  y = Add(c, h)")
    (row,) = onnxfold.inspect(model)["norms"]
    assert (row["foldable"], row["reason"]["code"]) == (False, "graph_output")


def test_one_operator_is_not_taken_apart() -> None:
    assert folds(channels_first(), target="ort") == 1
    assert folds(channels_first(opset=23), norm_form="op") == 1
    assert folds(channels_first(opset=23)) == 0


@pytest.mark.parametrize("target", ["onnx", "kernels"])
def test_a_norm_behind_which_nothing_turns_back_folds(target: str) -> None:
    assert folds(channels_first(behind="y = Relu(n)"), target=target) == 1
    assert folds(channels_first(), target=target) == 0


def farther() -> onnx.ModelProto:
    """A norm between Transposes, with other operators on the way."""
    way = f"e = Mul(n, n)  r = Add(e, n)  u = {BACK}(r)"
    before = NORM.replace("(t", "(c").replace("n =", "c = Neg(t)  n =")
    return channels_first(behind=f"{way}  y = Conv<pads=[1,1,1,1]>(u, W1, B1)", norm=before)


def error(model: onnx.ModelProto, original: onnx.ModelProto) -> float:
    """The largest difference of an output, relative to its largest element."""
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 3, 6, 6)).astype(np.float32)}
    first, second = (outputs(each, feeds) for each in (model, original))
    pairs = zip(first, second, strict=True)
    return max(float(np.abs(ours - own).max() / np.abs(own).max()) for ours, own in pairs)


# A norm and a convolution of 72 products: 100 roundings of float32, generously.
ROUNDING = 100 * float(np.finfo(np.float32).eps)


@pytest.mark.torch
@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
@pytest.mark.parametrize("level", [0, 1, 2])
def test_the_optimizer_keeps_the_outputs_in_both_orders(target: str, level: int) -> None:
    for model in (channels_first(), farther()):
        folded = onnxfold.optimize(model, target=target).model
        assert error(optimized(folded, "vit", level), model) <= ROUNDING
        fused = optimized(model, "vit", level)
        again = onnxfold.optimize(fused, target=target).model
        assert error(again, model) <= ROUNDING
        assert error(optimized(again, "vit", level), model) <= ROUNDING


@pytest.mark.torch
@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
def test_the_optimizer_keeps_the_outputs_of_norms_that_fold_always(target: str) -> None:
    for model in (channels_first(), farther()):
        result = onnxfold.optimize(model, target=target, fold="always")
        assert result.report["inspect"]["summary"]["folded"] == 1
        assert error(optimized(result.model, "vit", 1), model) <= ROUNDING


@pytest.mark.torch
@pytest.mark.parametrize("target", ["onnx", "kernels"])
def test_the_optimizer_breaks_a_norm_that_is_not_left(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decide, "turned_norms", lambda *_: frozenset())
    monkeypatch.setattr(finalize, "turned_values", lambda *_: frozenset())
    for model in (channels_first(), farther()):
        folded = onnxfold.optimize(model, target=target).model
        assert error(optimized(folded, "vit", 1), model) > 1e3 * ROUNDING


@pytest.mark.torch
def test_a_norm_that_stays_stops_the_transpose() -> None:
    way = f"r = Mul(n, G)  o = LayerNormalization<axis=-1>(r, G, B)  u = {BACK}(o)"
    model = channels_first(behind=f"{way}  y = Conv<pads=[1,1,1,1]>(u, W1, B1)")
    assert folds(model) == 1  # the second lacks a reason to fold
    assert error(optimized(onnxfold.optimize(model).model, "vit", 1), model) <= ROUNDING


@pytest.mark.torch
def test_one_norm_that_stays_is_enough() -> None:
    way = "o = LayerNormalization<axis=-1>(n, G, B)"
    model = channels_first(behind=f"{way}  {BEHIND.replace('(n)', '(o)')}")
    for tensor in model.graph.initializer:
        if tensor.name in ("G", "B"):  # so that the second can fold
            number = np.full(WIDTH, tensor.name == "G", np.float32)
            tensor.CopyFrom(numpy_helper.from_array(number, tensor.name))
    first, second = onnxfold.optimize(model).report["inspect"]["norms"]
    assert (first["action"], second["action"]) == ("keep", "rms")
    assert error(optimized(onnxfold.optimize(model).model, "vit", 1), model) <= ROUNDING
    # The second is a function by now, which a session without the library spells out.
    again = onnxfold.optimize(onnxfold.optimize(model, target="kernels").model, target="kernels")
    assert not again.changed


@pytest.mark.torch
def test_a_sum_with_what_is_not_turned_stops_the_transpose() -> None:
    other = f"i = Conv(x, W2, B0)  v = {TURN}(i)  w = MatMul(v, W)"
    straight = f"{other}  s = Add(t, w)  {NORM.replace('(t', '(s')}"
    model = channels_first(norm=straight)
    assert folds(model) == 1
    folded = onnxfold.optimize(model).model
    assert error(optimized(folded, "vit", 1), model) <= ROUNDING
    turned = channels_first(norm=straight.replace("Add(t, w)", "Add(t, t)"))
    assert folds(turned) == 0


@pytest.mark.torch
@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
@pytest.mark.parametrize("to", ["rms", "crms", "layer"])
def test_a_conversion_is_of_every_norm_and_survives_the_optimizer(to: str, target: str) -> None:
    rms = onnxfold.convert(in_parts(), to="rms", target="ort").model  # opset 14: no operator behind
    for model in (channels_first(), farther(), rms):
        result = onnxfold.convert(model, to=to, target=target)
        folded = result.report["inspect"]["summary"]["foldable"]
        assert folded == (0 if to == "layer" or model is rms else 1)
        for level in (0, 1):
            assert error(optimized(result.model, "vit", level), model) <= ROUNDING


SQUARES = "two = Constant<value = float {2.0}>()  q = Pow(d, two)  v = ReduceMean<axes=[-1]>(q)"
ROOT = "p = Constant<value = float {1e-5}>()  w = Add(v, p)  r = Sqrt(w)"


IN_PARTS = (
    f"m = ReduceMean<axes=[-1]>(t)  d = Sub(t, m)  {SQUARES}  {ROOT}"
    "  o = Div(d, r)  s = Mul(o, G)  n = Add(s, B)"
)


def in_parts() -> onnx.ModelProto:
    return channels_first(opset=14, norm=IN_PARTS)


@pytest.mark.torch
@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
def test_a_norm_that_came_in_parts_survives_the_optimizer(target: str) -> None:
    model = in_parts()
    result = onnxfold.optimize(model, target=target)
    assert result.report["inspect"]["summary"]["foldable"] == 1
    for level in (0, 1):
        assert error(optimized(result.model, "vit", level), model) <= ROUNDING
    assert not onnxfold.optimize(result.model, target=target).changed


def test_a_product_with_a_reciprocal_becomes_no_quotient() -> None:
    norm = f"d = Identity(t)  {SQUARES}  {ROOT}  i = Reciprocal(r)  o = Mul(i, t)  n = Mul(o, G)"
    model = channels_first(norm=norm)
    assert not onnxfold.optimize(model).changed
    apart = channels_first(norm=norm, behind="y = Relu(n)")
    assert "Div" in {node.op_type for node in onnxfold.optimize(apart).model.graph.node}


@pytest.mark.torch
def test_the_norm_of_a_sum_is_fused_where_nothing_turns_back_but_the_sum(tmp_path: Path) -> None:
    """The call gives the sum too; a Transpose is moved behind that, and stays before the norm."""
    first = re.sub(r"\b(m|d|two|q|v|p|w|r|o|s|n)\b", r"\1_1", IN_PARTS).replace("t,", "a,")
    first = first.replace("(t)", "(a)")
    read = "h_1 = MatMul(n_1, W)  e = Relu(h_1)  c = ReduceMean<axes=[1, 2], keepdims=0>(e)"
    added = f"i = Conv(x, W2, B0)  b = {TURN}(i)  a = Add(t, b)"
    second = IN_PARTS.replace("(t)", "(a)").replace("t,", "a,")
    model = channels_first(opset=14, norm=f"{added}  {first}  {read}  {second}")
    mean = onnx.helper.make_tensor_value_info("c", onnx.TensorProto.FLOAT, ["B", WIDTH])
    model.graph.output.append(mean)
    folded = onnxfold.optimize(model, target="kernels").model
    calls = [node.op_type for node in folded.graph.node if node.domain == "onnxfold"]
    assert calls == ["AddRMSNormAffineWithSum", "RMSNormAffine"]
    assert operators(folded, tmp_path)["SimplifiedLayerNormalization"] == 1
    for level in (0, 1, 2):
        assert error(optimized(folded, "vit", level), model) <= ROUNDING
