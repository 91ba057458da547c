"""Norms that are left to ONNX Runtime's transformers optimizer, which fuses what they read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from onnxruntime.transformers.float16 import convert_float_to_float16

import onnxfold
from tests.optimized import optimized

WIDTH, LONGEST = 8, 16
POSITIONS = """
 shape = Shape(ids)  length = Gather<axis=0>(shape, ONE)  end = Unsqueeze(length, ZEROS)
 at = Slice(PLACES, ZEROS, end, ONES, ONES)  placed = Gather(PLACE_TABLE, at)
"""
EMBEDDING = """
 words = Gather(WORD_TABLE, ids)  kinds = Gather(KIND_TABLE, segments)
 known = Add(words, kinds)  total = Add(known, placed)
 n = LayerNormalization<axis=-1, epsilon=1e-5>(total, GAMMA, BETA)
"""
TWO_TABLES = (  # as dynamo exports DistilBERT
    POSITIONS.replace("Unsqueeze(length, ZEROS)", "Shape<start=1>(ids)")
    + EMBEDDING.replace("Add(known, placed)", "Add(words, placed)")
)
ANOTHER = "other = LayerNormalization<axis=-1, epsilon=1e-5>(total, BETA, GAMMA)"
READERS = """
 q = MatMul(n, WQ)  k = MatMul(n, WK)  v = MatMul(n, WV)
 qk = Add(q, k)  qkv = Add(qk, v)  y = Add(n, qkv)
"""
TABLES = {"WORD_TABLE": 32, "PLACE_TABLE": LONGEST, "KIND_TABLE": 2}


def embedding(body: str = POSITIONS + EMBEDDING, outputs: str = "y") -> onnx.ModelProto:
    """The input of BERT, by TorchScript, with attention-like nodes after it."""
    made = ", ".join(f"float[B,S,{WIDTH}] {name}" for name in outputs.split())
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]>\n'
        f"graph (int64[B,S] ids, int64[B,S] segments) => ({made}) {{{body}{READERS}}}"
    )
    rng = np.random.default_rng(0)
    weights = {
        "ONE": np.array(1),
        "ONES": np.array([1]),
        "ZEROS": np.array([0]),
        "PLACES": np.arange(LONGEST)[None],
        **{name: rng.standard_normal((rows, WIDTH)) for name, rows in TABLES.items()},
        **{name: rng.standard_normal((WIDTH, WIDTH)) for name in ("WQ", "WK", "WV")},
        **{name: rng.standard_normal(WIDTH) for name in ("GAMMA", "BETA")},
    }
    for name, array in weights.items():
        dtype = np.int64 if array.dtype.kind == "i" else np.float32
        model.graph.initializer.append(numpy_helper.from_array(array.astype(dtype), name))
    return model


def folds(model: onnx.ModelProto, target: str = "onnx") -> int:
    norms = onnxfold.optimize(model, target=target).report["inspect"]["norms"]
    return sum(norm["action"] == "rms" for norm in norms)


def fused(model: onnx.ModelProto) -> Counter[str]:
    """Return the optimizer's fused operators of a model."""
    made = optimized(model, "bert", 0, num_heads=2, hidden_size=WIDTH)
    return Counter(node.op_type for node in made.graph.node)


def test_the_optimizer_still_fuses_the_embedding() -> None:
    model = embedding()
    made = onnxfold.optimize(model)
    for each in (model, made.model):
        assert fused(each)["EmbedLayerNormalization"] == 1
    (row,) = made.report["inspect"]["norms"]
    assert row["reason"]["code"] == "not_worth"
    assert "EmbedLayerNormalization" in row["reason"]["sentence"]


@pytest.mark.torch
@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_what_the_optimizer_has_fused_stays_fused(target: str) -> None:
    """It reads positions as int32, which says no more where they come from."""
    made = optimized(embedding(TWO_TABLES), "bert", 1, num_heads=2, hidden_size=WIDTH)
    (before,) = (node for node in made.graph.node if node.op_type == "EmbedLayerNormalization")
    result = onnxfold.optimize(made, target=target)
    assert [node.op_type for node in result.model.graph.node].count(before.op_type) == 1
    (row,) = result.report["inspect"]["norms"]
    assert row["reason"]["code"] == "not_worth"
    assert folds(made, "kernels") == 1


def test_two_tables_are_left_at_any_length() -> None:
    assert folds(embedding(TWO_TABLES)) == 0


def test_two_tables_in_front_of_attention_are_left_wherever_positions_come_from() -> None:
    """BART and MPNet compute them from the ids; the optimizer takes them as an input then."""
    body = "at = Add(segments, ONE)  placed = Gather(PLACE_TABLE, at)" + EMBEDDING
    model = embedding(body.replace("Add(known, placed)", "Add(words, placed)"))
    for each in (model, onnxfold.optimize(model).model):
        assert fused(each)["EmbedLayerNormalization"] == 1


def test_ids_of_a_fixed_length_are_left_too() -> None:
    """TorchScript computes the length from them all the same, and the optimizer looks for that."""
    model = embedding()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[1].dim_value = LONGEST // 2
    made = onnxfold.optimize(model)
    for each in (model, made.model):
        assert fused(each)["EmbedLayerNormalization"] == 1


@pytest.mark.parametrize("target", ["ort", "kernels"])
def test_other_targets_fold_it(target: str) -> None:
    assert folds(embedding(), target) == 1


def test_a_conversion_is_of_every_norm() -> None:
    result = onnxfold.convert(embedding(), to="rms")
    assert result.report["inspect"]["summary"]["foldable"] == 1


def test_positions_that_attributes_cut_are_of_a_length_that_nothing_computes() -> None:
    """As every Slice is before opset 10."""
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 9]>\n'
        "graph (int64[2,4] ids, int64[1,16] places) => (float[2,4,16] y) {"
        " at = Slice<axes=[1], starts=[0], ends=[4]>(places)"
        " rows = Gather(TABLE, ids)  more = Gather(TABLE, at)  x = Add(rows, more)"
        " mean = ReduceMean<axes=[-1]>(x)  d = Sub(x, mean)  square = Mul(d, d)"
        " v = ReduceMean<axes=[-1]>(square)  e = Add(v, TINY)  root = Sqrt(e)  y = Div(d, root) }"
    )
    table = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    for name, array in (("TABLE", table), ("TINY", np.float32(1e-5))):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    assert folds(model) == 1


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        (POSITIONS.replace("end, ONES", "ONES, ONES") + EMBEDDING, "y"),  # at a fixed length
        (POSITIONS + EMBEDDING.replace("(known, placed)", "(known, kinds)"), "y"),  # no positions
        (POSITIONS + EMBEDDING + ANOTHER, "y other"),  # two norms of one sum
        (POSITIONS.replace("Unsqueeze(length, ZEROS)", "Shape<start=1>(ids)") + EMBEDDING, "y"),
    ],
)
def test_what_the_optimizer_does_not_fuse_folds(body: str, outputs: str) -> None:
    assert folds(embedding(body, outputs)) == len(outputs.split())


def heads(name: str, order: str) -> str:
    return (
        f"{name}0 = MatMul(n, W{name.upper()})  {name}1 = Add({name}0, B{name.upper()})\n"
        f"{name}2 = Reshape({name}1, HEADS)  {name} = Transpose<perm={order}>({name}2)\n"
    )


def post_norm(
    *, attention: bool = True, pre: bool = False, trained: bool = False
) -> onnx.ModelProto:
    """A layer of BERT that was never trained: its norms have one gamma, not 1, and a beta of 0.

    A trained one is of BART, which adds attention to the stream and not the stream to attention.
    """
    stream = "h" if pre else "n"
    body = (
        "h = MatMul(x, WX)  n = LayerNormalization<axis=-1, epsilon=1e-5>(h, GAMMA, BETA)\n"
        + heads("q", "[0,2,1,3]")
        + heads("k", "[0,2,3,1]")
        + heads("v", "[0,2,1,3]")
        + "qk = MatMul(q, k)  scaled = Div(qk, ROOT)\n"
        + f"weights = {'Softmax<axis=-1>' if attention else 'Relu'}(scaled)\n"
        + "mixed = MatMul(weights, v)  turned = Transpose<perm=[0,2,1,3]>(mixed)\n"
        + "joined = Reshape(turned, JOINED)  out = MatMul(joined, WO)  biased = Add(out, BO)\n"
        + f"sum = Add({f'{stream}, biased' if trained else f'biased, {stream}'})\n"
        + "m = LayerNormalization<axis=-1, epsilon=1e-5>(sum, GAMMA, BETA)  y = MatMul(m, WY)\n"
    )
    kind = f"float[B,4,{WIDTH}]"
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]>\ngraph ({kind} x) => ({kind} y) {{{body}}}'
    )
    rng = np.random.default_rng(0)
    weights = {
        "HEADS": np.array([0, 0, 2, WIDTH // 2]),
        "JOINED": np.array([0, 0, WIDTH]),
        "ROOT": np.array(2.0),
        "GAMMA": rng.standard_normal(WIDTH) if trained else np.full(WIDTH, 0.75),
        "BETA": rng.standard_normal(WIDTH) if trained else np.zeros(WIDTH),
        **{f"W{name}": rng.standard_normal((WIDTH, WIDTH)) for name in "XQKVOY"},
        **{f"B{name}": rng.standard_normal(WIDTH) for name in "QKVO"},
    }
    for name, array in weights.items():
        dtype = np.int64 if array.dtype.kind == "i" else np.float32
        model.graph.initializer.append(numpy_helper.from_array(array.astype(dtype), name))
    return model


def test_the_optimizer_still_fuses_attention() -> None:
    made = onnxfold.optimize(post_norm())
    for each in (post_norm(), made.model):
        assert fused(each)["Attention"] == 1
    first, behind = made.report["inspect"]["norms"]
    assert first["foldable"]
    assert behind["reason"]["code"] == "not_worth"
    assert "Attention" in behind["reason"]["sentence"]


def test_attention_is_found_whose_bias_is_the_first_operand() -> None:
    model = post_norm()
    (bias,) = (node for node in model.graph.node if node.output[0] == "biased")
    bias.input[:] = bias.input[::-1]
    assert fused(model)["Attention"] == 1
    assert folds(model) == folds(post_norm()) == 1


def test_attention_is_found_where_beta_would_be_added_first() -> None:
    """The optimizer would mistake the Add of beta for attention's bias."""
    made = onnxfold.optimize(post_norm(trained=True))
    for each in (post_norm(trained=True), made.model):
        assert fused(each)["Attention"] == 1
    first, _ = made.report["inspect"]["norms"]
    assert first["reason"]["code"] == "not_worth"
    assert "Attention" in first["reason"]["sentence"]
    assert folds(post_norm(trained=True), "ort") == 1


@pytest.mark.parametrize("changed", [{"attention": False}, {"pre": True}])
def test_a_norm_that_is_behind_no_such_attention_folds(changed: dict[str, bool]) -> None:
    assert folds(post_norm(**changed)) == 2
    assert folds(post_norm(), "ort") == 2


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
def test_attention_that_a_fold_excludes_is_reported(target: str, tmp_path: Path) -> None:
    """In pre-LN both norms fold; where the optimizer comes first, its Attention stays."""
    model, source, out = post_norm(pre=True), tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(model, source)
    report = onnxfold.optimize(source, out, target=target).report
    assert (fused(model)["Attention"], fused(onnx.load(out))["Attention"]) == (1, 0)
    pair = {"fusion": "Attention", "norms": ["LayerNormalization->n", "LayerNormalization->m"]}
    assert report["inspect"]["excluded_fusions"] == [pair]
    told = "run it before onnxfold: it fuses 1 attention" in report["output"]["advice"]
    assert told == (target == "onnx")
    first = optimized(model, "bert", 0, num_heads=2, hidden_size=WIDTH)
    after = onnxfold.optimize(first, target=target)
    assert len(after.plan.folds) == 2
    assert Counter(node.op_type for node in after.model.graph.node)["Attention"] == 1


def test_no_fusion_is_reported_where_no_norm_beside_attention_folds() -> None:
    kept = onnxfold.inspect(post_norm(pre=True), exclude=".")
    assert kept["excluded_fusions"] == []
    assert onnxfold.inspect(post_norm(pre=True, attention=False))["excluded_fusions"] == []


@pytest.mark.parametrize("pre", [True, False])
def test_sums_in_float16_that_a_fold_keeps_apart_are_reported(pre: bool, tmp_path: Path) -> None:
    """At this level the optimizer knows no RMSNorm with Casts; of float32 it joins each."""
    single = post_norm(pre=pre, attention=False)
    half, source, out = (
        convert_float_to_float16(single),
        tmp_path / "half.onnx",
        tmp_path / "o.onnx",
    )
    onnx.save(half, source)
    report = onnxfold.optimize(source, out).report
    joined = [fused(each)["SkipLayerNormalization"] for each in (half, onnx.load(out))]
    assert joined == [1, 0]
    sums = {"fusion": "SkipLayerNormalization", "norms": ["LayerNormalization->m"], "opt_level": 0}
    assert report["inspect"]["excluded_fusions"] == [sums]
    assert report["output"]["advice"].endswith("before onnxfold: it fuses sums in 16 bits")
    folded = onnxfold.optimize(single)
    assert folded.report["inspect"]["excluded_fusions"] == []
    assert fused(folded.model)["SkipSimplifiedLayerNormalization"] == 1
