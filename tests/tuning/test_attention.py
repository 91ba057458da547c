"""Attention in pieces becomes one operator, of any exporter's spelling, and computes the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from onnxfold.graph import ModelInfo
from onnxfold.tuning import join_attention
from onnxfold.tuning.attention_sites import AttentionSite, find_attention
from onnxfold.tuning.join_attention import with_joined_attention
from onnxfold.tuning.rewritings import NotRewritten
from tests.sessions import outputs

_ROUNDING = 2e-6  # of means of numbers of the order of 1
_B, _N, _S, _T, _H, _P = 2, 3, 4, 4, 5, 6

_SPLIT = """heads = Constant <value_ints = [0, 0, 3, 5]> ()
    qa = Reshape (q, heads)  qt = Transpose <perm = [0, 2, 1, 3]> (qa)
    ka = Reshape (k, heads)  va = Reshape (v, heads)
    vt = Transpose <perm = [0, 2, 1, 3]> (va)"""
_JOIN = """yt = Transpose <perm = [0, 2, 1, 3]> (o)
    flat = Constant <value_ints = [0, 0, 15]> ()  y = Reshape (yt, flat)"""
_EAGER = f"""{_SPLIT}
    kt = Transpose <perm = [0, 2, 3, 1]> (ka)
    s = MatMul (qt, kt)  c = Constant <value = float {{0.25}}> ()  scaled = Mul (s, c)
    added = Add (scaled, mask)  p = Softmax <axis = -1> (added)
    o = MatMul (p, vt)  {_JOIN}"""
_DIVIDED = _EAGER.replace("{0.25}", "{4.0}").replace("Mul (s, c)", "Div (s, c)")
_UNMASKED = _EAGER.replace("added = Add (scaled, mask)", "added = Identity (scaled)")
_TWO_MASKS = _EAGER.replace("Add (scaled, mask)", "Add (scaled, mask)").replace(
    "p = Softmax <axis = -1> (added)", "twice = Add (row, added)  p = Softmax <axis = -1> (twice)"
)
_WIDE_MASK = _EAGER.replace("Add (scaled, mask)", "Add (row, scaled)")
_CHOSEN = _EAGER.replace(
    "added = Add (scaled, mask)",
    "low = Constant <value = float {-inf}> ()  added = Where (seen, scaled, low)",
)
_DYNAMO = f"""{_SPLIT}
    kh = Transpose <perm = [0, 2, 1, 3]> (ka)  shape = Shape (kh)
    joined = Constant <value_ints = [-1, 4, 5]> ()  kj = Reshape (kh, joined)
    kx = Transpose <perm = [0, 2, 1]> (kj)
    back = Constant <value_ints = [2, 3, 5, 4]> ()  kt = Reshape (kx, back)
    c = Constant <value = float {{0.66874}}> ()  qs = Mul (qt, c)  ks = Mul (kt, c)
    s = MatMul (qs, ks)
    zero = Constant <value = float {{0.0}}> ()  low = Constant <value = float {{-3.4e38}}> ()
    m = Where (seen, zero, low)  added = Add (s, m)  w = Softmax <axis = -1> (added)
    nan = IsNaN (w)  p = Where (nan, zero, w)  o = MatMul (p, vt)  {_JOIN}"""
_TORCHSCRIPT = _DYNAMO.replace("{-3.4e38}", "{-inf}")
_HEADS_FIRST = """kt = Transpose <perm = [0, 1, 3, 2]> (k4)  s = MatMul (q4, kt)
    added = Add (s, mask)  p = Softmax <axis = -1> (added)  y = MatMul (p, v4)"""
_GROUPED = """one = Constant <value_ints = [2]> ()  u = Unsqueeze (k1, one)
    wide = Constant <value_ints = [2, 1, 3, 4, 5]> ()  e = Expand (u, wide)
    three = Constant <value_ints = [2, 3, 4, 5]> ()  kr = Reshape (e, three)
    kt = Transpose <perm = [0, 1, 3, 2]> (kr)  s = MatMul (q4, kt)
    added = Add (s, mask)  p = Softmax <axis = -1> (added)  y = MatMul (p, v4)"""
_CACHED = f"""{_SPLIT}
    kh = Transpose <perm = [0, 2, 1, 3]> (ka)
    keys = Concat <axis = -2> (pk, kh)  values = Concat <axis = 2> (pv, vt)
    kt = Transpose <perm = [0, 1, 3, 2]> (keys)
    s = MatMul (qt, kt)  c = Constant <value = float {{0.25}}> ()  scaled = Mul (s, c)
    added = Add (scaled, long)  p = Softmax <axis = -1> (added)
    o = MatMul (p, values)  {_JOIN}"""
_RESHAPED = "back = Constant <value_ints = [2, 3, 5, 4]> ()  kt = Reshape (k4, back)"
_SPELLINGS = {
    "eager": _EAGER,
    "divided": _DIVIDED,
    "no mask": _UNMASKED,
    "two masks": _TWO_MASKS,
    "mask of rows": _WIDE_MASK,
    "chosen scores": _CHOSEN,
    "dynamo": _DYNAMO,
    "torchscript": _TORCHSCRIPT,
    "heads first": _HEADS_FIRST,
    "shared keys": _GROUPED,
    "cached": _CACHED,
}


def _model(body: str, outputs: str = "float[A,B,C] y") -> onnx.ModelProto:
    inputs = {
        "q": "float[2,S,15]", "k": "float[2,4,15]", "v": "float[2,4,15]",
        "q4": "float[2,3,S,5]", "k4": "float[2,3,4,5]", "v4": "float[2,3,4,5]",
        "k1": "float[2,1,4,5]", "mask": "float[2,1,S,4]", "row": "float[2,1,1,4]",
        "long": "float[2,1,S,10]", "seen": "bool[2,1,S,4]",
        "pk": "float[2,3,6,5]", "pv": "float[2,3,6,5]",
    }  # fmt: skip
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    given = ", ".join(f"{kind} {name}" for name, kind in inputs.items() if name in words)
    rank = "float[A,B,C,D] y" if "y = MatMul" in body else outputs
    caches = ", float[2,3,10,5] keys, float[2,3,10,5] values" if "keys" in words else ""
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 20]> g ({given}) => ({rank}{caches}) {{ {body} }}'
    )
    onnx.checker.check_model(model)
    return model


def _feeds(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng, feeds = np.random.default_rng(0), {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        sizes = [dim.dim_value or _S for dim in tensor.shape.dim]
        drawn = rng.normal(size=sizes).astype(np.float32)
        feeds[value.name] = drawn > 0 if tensor.elem_type == onnx.TensorProto.BOOL else drawn
    if "seen" in feeds:
        feeds["seen"][0, 0, 1] = False  # a query that sees no key
        feeds["seen"][1, 0, 0] = True
    return feeds


def _outputs(model: onnx.ModelProto) -> list[np.ndarray]:
    return outputs(model, _feeds(model))


@pytest.mark.parametrize("body", _SPELLINGS.values(), ids=_SPELLINGS)
def test_every_spelling_becomes_one_operator(body: str) -> None:
    model = _model(body)
    made = ir.to_proto(with_joined_attention(ir.from_proto(model)))
    kinds = [node.op_type for node in made.graph.node]
    assert kinds.count("MultiHeadAttention") == 1
    assert not {"Softmax", "MatMul"} & set(kinds)
    for old, new in zip(_outputs(model), _outputs(made), strict=True):
        np.testing.assert_allclose(new, old, rtol=0, atol=_ROUNDING)


def test_a_query_that_sees_no_key_still_gives_zero() -> None:
    made = ir.to_proto(with_joined_attention(ir.from_proto(_model(_TORCHSCRIPT))))
    assert np.array_equal(_outputs(made)[0][0, 1], np.zeros(15, np.float32))


def test_the_operator_appends_to_caches() -> None:
    made = with_joined_attention(ir.from_proto(_model(_CACHED)))
    node = next(node for node in made.graph if node.op_type == "MultiHeadAttention")
    assert [v.name for v in node.inputs[6:8] if v is not None] == ["pk", "pv"]
    assert [v.name for v in node.outputs[1:]] == ["keys", "values"]
    assert "Concat" not in {node.op_type for node in made.graph}


def test_a_mask_that_reads_the_cache_leaves_the_cache_outside() -> None:
    body = _CACHED.replace("long)", "more)").replace(
        "added = ", "sum = ReduceSum <keepdims = 0> (keys)  more = Add (long, sum)  added = "
    )
    model = _model(body)
    made = ir.to_proto(with_joined_attention(ir.from_proto(model)))
    kinds = [node.op_type for node in made.graph.node]
    assert kinds.count("MultiHeadAttention") == 1
    assert kinds.count("Concat") == 2
    for old, new in zip(_outputs(model), _outputs(made), strict=True):
        np.testing.assert_allclose(new, old, rtol=0, atol=_ROUNDING)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            _EAGER.replace("Mul (s, c)", "Identity (s)").replace(
                "p = Softmax <axis = -1> (added)", "late = Mul (added, c)  p = Softmax (late)"
            ),
            "scaled with the scores",
        ),
        (_EAGER.replace("<axis = -1>", "<axis = 2>"), "along keys"),
        (_EAGER.replace("MatMul (p, vt)", "MatMul (vt, p)"), "do more than multiply the values"),
        (_EAGER.replace("(p, vt)", "(p2, vt)  p2 = Relu (p)"), "do more than multiply the values"),
        (
            _HEADS_FIRST.replace("kt = Transpose <perm = [0, 1, 3, 2]> (k4)", _RESHAPED),
            "transposed",
        ),
        (_CHOSEN.replace("{-inf}", "{-9.0}"), "not proved"),
        (_HEADS_FIRST.replace("MatMul (q4, kt)", "Add (mask, mask)"), "queries and keys"),
    ],
    ids=[
        "late scale",
        "along queries",
        "values first",
        "cut off",
        "keys in a row",
        "low scores",
        "no keys",
    ],
)
def test_what_is_something_else_stays_and_says_why(body: str, reason: str) -> None:
    body = body.replace("o = MatMul (p2, vt)  p2 = Relu (p)", "p2 = Relu (p)  o = MatMul (p2, vt)")
    with pytest.raises(NotRewritten, match=f"no attention was joined: .*{reason}"):
        with_joined_attention(ir.from_proto(_model(body)))


def test_a_model_without_softmax_is_returned() -> None:
    model = ir.from_proto(_model("y = Relu (q4)", "float[A,B,C,D] y"))
    assert with_joined_attention(model) is model


_FAULTS = {
    "another scale": lambda site: replace(site, scale=site.scale * 1.001),
    "no mask": lambda site: replace(site, biases=()),
    "keys for values": lambda site: replace(site, value=site.key, key=site.value),
    "no guard": lambda site: replace(site, guarded=False),
}


@pytest.mark.parametrize("fault", _FAULTS)
def test_a_wrong_guess_is_not_proved(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(view: ModelInfo) -> Iterator[AttentionSite | str]:
        for site in find_attention(view):
            yield _FAULTS[fault](site) if isinstance(site, AttentionSite) else site

    monkeypatch.setattr(join_attention, "find_attention", wrong)
    with pytest.raises(NotRewritten, match="not proved"):
        with_joined_attention(ir.from_proto(_model(_TORCHSCRIPT)))


def test_of_two_attentions_the_one_that_is_proved_is_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    second = "k5 = Transpose <perm = [0, 1, 3, 2]> (k4)  s5 = MatMul (y4, k5)  p5 = Softmax (s5)"
    body = f"{_HEADS_FIRST.replace('y = ', 'y4 = ')}  {second}  y = MatMul (p5, v4)"

    def wrong(view: ModelInfo) -> Iterator[AttentionSite | str]:
        first, other = find_attention(view)
        assert isinstance(first, AttentionSite)
        yield replace(first, scale=2.0)
        yield other

    monkeypatch.setattr(join_attention, "find_attention", wrong)
    made = with_joined_attention(ir.from_proto(_model(body)))
    kinds = [node.op_type for node in made.graph]
    assert kinds.count("MultiHeadAttention") == kinds.count("Softmax") == 1
