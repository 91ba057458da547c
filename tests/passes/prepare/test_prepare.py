"""The working copy: foreign functions inlined, skip forms split, the original untouched."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator
from rich.console import Console

import onnxfold
from onnxfold.errors import ModelError
from onnxfold.norms import NormKind
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.recognition import find_norms
from onnxfold.report.printed import print_norms
from onnxfold.shapes import infer
from tests.recognition.replay import random_feeds
from tests.sessions import outputs

BOUND = 2e-6  # float32: sums in another order, then about ten roundings of 6e-8


def skip_model(body: str, inputs: str, outputs: str, opset: int = 17) -> onnx.ModelProto:
    head = f'<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]>'
    return parser.parse_model(f"{head}\nagraph ({inputs}) => ({outputs})\n{{\n{body}\n}}")


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return outputs(model, feeds, level="none")


def check(proto: onnx.ModelProto, expected_ops: str, feeds=None):
    """Prepare, compare the results of both models, and return the copy with its sites."""
    model = ir.from_proto(proto)
    before = ir.to_proto(model)
    prepared = prepare(model)
    assert ir.to_proto(model) == before
    ops = [node.op_type for node in prepared.model.graph if node.op_type != "Constant"]
    assert ops == expected_ops.split()
    feeds = feeds or random_feeds(proto)
    twin = ir.to_proto(prepared.model)
    for mine, theirs in zip(run(twin, feeds), run(proto, feeds), strict=True):
        assert np.max(np.abs(mine.astype(np.float64) - theirs)) < BOUND
    assert [value.name for value in twin.graph.output] == [v.name for v in proto.graph.output]
    return prepared, find_norms(infer(prepared.model))


def test_skip_layer_norm_is_bias_then_residual_then_norm():
    proto = skip_model(
        "y, mean, inv, z = com.microsoft.SkipLayerNormalization<epsilon=1e-5>(x, s, g, b, c)",
        "float[B,3,8] x, float[B,3,8] s, float[8] g, float[8] b, float[8] c",
        "float[B,3,8] y, float[B,3,8] z",
    )
    prepared, (site,) = check(proto, "Add Add LayerNormalization")
    assert prepared.split == ("com.microsoft.SkipLayerNormalization->y",)
    assert (site.input.name, site.output.name) == ("z", "y")
    assert site.epsilon == float(np.float32(1e-5))
    first, second = list(prepared.model.graph)[:2]
    assert [value.name for value in first.inputs] == ["x", "c"]
    assert second.inputs[1].name == "s"


@pytest.mark.parametrize("skip", ["1,3,8", "3,8"])
def test_a_skip_may_broadcast_and_has_its_own_default_epsilon(skip):
    proto = skip_model(
        "y = com.microsoft.SkipLayerNormalization(x, s, g)",
        f"float[B,3,8] x, float[{skip}] s, float[8] g",
        "float[B,3,8] y",
    )
    _, (site,) = check(proto, "Add LayerNormalization")
    assert np.isclose(site.epsilon, 1e-12, rtol=1e-6, atol=0)


def test_skip_rms_norm_gives_its_sum():
    proto = skip_model(
        "y, , , z = com.microsoft.SkipSimplifiedLayerNormalization<epsilon=1e-6>(x, s, g)\n"
        "w = Neg(z)",
        "float[B,3,8] x, float[B,3,8] s, float[8] g",
        "float[B,3,8] y, float[B,3,8] w",
    )
    _, (site,) = check(proto, "Add SimplifiedLayerNormalization Neg")
    assert site.kind is NormKind.RMS_NORM


EMBED = "float[5,8] words, float[7,8] places, float[4,8] kinds, float[8] g, float[8] b"


@pytest.mark.parametrize("opset", [10, 11, 12, 13, 17])
def test_embedding_norm_is_gathers_and_additions(opset: int):
    proto = skip_model(
        "y, index, total = com.microsoft.EmbedLayerNormalization<epsilon=1e-5>"
        "(ids, segments, words, places, kinds, g, b, mask)",
        f"int32[B,3] ids, int32[B,3] segments, int32[B,3] mask, {EMBED}",
        "float[B,3,8] y, int32[B] index, float[B,3,8] total",
        opset,
    )
    feeds = random_feeds(proto)
    feeds["mask"] = np.array([[1, 1, 0], [1, 0, 0]], np.int32)
    ops = "Gather Shape Slice Slice Gather Add Add LayerNormalization Equal Cast ReduceSum"
    _, (site,) = check(proto, ops, feeds)
    assert site.input.name == "total"


def test_embedding_norm_stays_where_slice_takes_no_inputs():
    proto = skip_model(
        "y, index = com.microsoft.EmbedLayerNormalization(ids, , words, places, , g, b)",
        f"int32[B,3] ids, {EMBED}",
        "float[B,3,8] y",
        9,
    )
    prepared = prepare(ir.from_proto(proto))
    assert [left.sentence.rsplit(": ")[-1] for left in prepared.unsplit] == [
        "its parts need opset 10"
    ]


def test_embedding_norm_with_position_ids_gathers_them():
    proto = skip_model(
        "y, index = com.microsoft.EmbedLayerNormalization<epsilon=1e-5>"
        "(ids, , words, places, , g, b, , positions)",
        f"int32[B,3] ids, int32[B,3] positions, {EMBED}",
        "float[B,3,8] y",
    )
    check(proto, "Gather Gather Add LayerNormalization")


def test_what_cannot_be_split_is_left_and_says_why():
    proto = skip_model(
        "y, index = com.microsoft.EmbedLayerNormalization(ids, , words, places, , g, b)",
        f"int32[B,3] ids, {EMBED}",
        "float[B,3,8] y, int32[B] index",
    )
    prepared, sites = check(proto, "EmbedLayerNormalization")
    assert prepared.split == ()
    assert sites == ()
    assert "no mask" in prepared.unsplit[0].sentence
    (said,) = onnxfold.inspect(proto)["unsplit"]
    assert said == prepared.unsplit[0].to_json()
    assert onnxfold.optimize(proto).report["inspect"]["unsplit"] == [said]
    console = Console(width=200, record=True)
    print_norms(console, onnxfold.inspect(proto))
    assert said["sentence"] in console.export_text()


OWN = """<ir_version: 8, opset_import: ["" : 17, "onnxfold" : 1]>
agraph (float[B,3,8] x, float[B,3,8] r, float[8] c, float[8] g, float[8] b)
    => (float[B,3,8] y, float[B,3,8] sum)
{
    y, sum = onnxfold.AddBiasLayerNormAffineWithSum<axis=-1, epsilon=1e-5>(x, r, c, g, b)
}
<domain: "onnxfold", opset_import: ["" : 17]>
AddBiasLayerNormAffineWithSum<axis, epsilon>
    (X, residual, linear_bias, scale, bias) => (Y, Sum)
{
    biased = Add(X, linear_bias)  Sum = Add(biased, residual)
    Y = LayerNormalization<axis=-1, epsilon=1e-5>(Sum, scale, bias)
}
"""


def test_a_skip_form_behind_another_is_split_too() -> None:
    """Its types are known only when the one before it has been split."""
    norm = "com.microsoft.SkipGroupNorm<groups=1, channels_last=1, activation=0, epsilon=0.01>"
    proto = skip_model(
        f"n, s = {norm}(x, g, b, r)  m = Identity(n)  y, t = {norm}(x, g, b, m)",
        "float[2,1,1,4] x, float[2,1,1,4] r, float[4] g, float[4] b",
        "float[2,1,1,4] y",
    )
    prepared = prepare(ir.from_proto(proto))
    assert len(prepared.split) == 2
    assert not prepared.unsplit
    assert len(find_norms(infer(prepared.model))) == 2
    assert not prepare(prepared.model).split


def test_own_skip_forms_are_split_into_own_plain_forms():
    prepared = prepare(ir.from_proto(parser.parse_model(OWN)))
    ops = [(node.domain, node.op_type) for node in prepared.model.graph]
    assert ops == [("", "Add"), ("", "Add"), ("onnxfold", "LayerNormAffine")]
    assert not prepared.model.functions  # lowering gives every call its body again
    (site,) = find_norms(infer(prepared.model))
    assert (site.input.name, site.output.name) == ("sum", "y")
    assert (site.gamma.name, site.beta.name) == ("g", "b")
    assert site.fiber.axes == (2,)


FUNCTIONS = """<ir_version: 8, opset_import: ["" : 17, "pkg" : 1]>
agraph (float[B,8] x, float[8] g) => (float[B,8] y)
{
    h = pkg.Block<epsilon=1e-4>(x, g)  y = pkg.Norm<epsilon=1e-3>(h, g)
}
<domain: "pkg", opset_import: ["" : 17]>
Norm<epsilon>(X, scale) => (Y)
{
    e = Constant<value_float: float = @epsilon>()  u = ReduceMean<axes=[-1]>(X)  d = Sub(X, u)
    q = Mul(d, d)  v = ReduceMean<axes=[-1]>(q)  ve = Add(v, e)  s = Sqrt(ve)  n = Div(d, s)
    Y = Mul(n, scale)
}
<domain: "pkg", opset_import: ["" : 17, "pkg" : 1]>
Block<epsilon>(X, scale) => (Y)
{
    n = pkg.Norm<epsilon: float = @epsilon>(X, scale)  Y = Relu(n)
}
<domain: "pkg", opset_import: ["" : 17]>
Unused(X) => (Y) { Y = Neg(X) }
"""


def test_foreign_functions_are_inlined_with_their_attributes():
    proto = parser.parse_model(FUNCTIONS)
    prepared = prepare(ir.from_proto(proto))
    assert sorted(prepared.inlined) == ["pkg.Block", "pkg.Norm", "pkg.Unused"]
    assert len(prepared.model.functions) == 0
    sites = find_norms(infer(prepared.model))
    assert [site.kind for site in sites] == [NormKind.LAYER_NORM] * 2
    assert [site.epsilon for site in sites] == [float(np.float32(1e-4)), float(np.float32(1e-3))]
    feeds = random_feeds(proto)
    (mine,) = ReferenceEvaluator(ir.to_proto(prepared.model)).run(None, feeds)
    (theirs,) = ReferenceEvaluator(proto).run(None, feeds)
    assert np.array_equal(mine, theirs)


def in_opset(version: int) -> onnx.ModelProto:
    """The functions in another opset than the graph, which is in 17."""
    proto = parser.parse_model(FUNCTIONS)
    for function in proto.functions:
        function.opset_import[0].version = version
    return proto


def test_a_function_of_another_opset_with_the_same_operators_is_inlined():
    proto = in_opset(14)
    prepared = prepare(ir.from_proto(proto))
    assert len(prepared.model.functions) == 0
    assert len(find_norms(infer(prepared.model))) == 2
    feeds = random_feeds(proto)
    (mine,) = ReferenceEvaluator(ir.to_proto(prepared.model)).run(None, feeds)
    (theirs,) = ReferenceEvaluator(proto).run(None, feeds)
    assert np.array_equal(mine, theirs)


def test_a_function_of_another_opset_with_other_operators_stays_a_call():
    """The axes of ReduceMean are an attribute up to opset 17; Add is another since 14."""
    for version in (18, 13):
        prepared = prepare(ir.from_proto(in_opset(version)))
        assert "pkg.Norm" not in prepared.inlined
        assert "Norm" in {name for _, name, _ in prepared.model.functions}
        said = {each["sentence"] for each in onnxfold.inspect(in_opset(version))["unsplit"]}
        whole = "function 'pkg.Norm' stays whole, with the norms in it"
        assert f"{whole}: it is of opset {version}, and the model of 17" in said


def test_functions_are_inlined_whatever_version_names_their_domain():
    """jax2onnx imports the domain of functions as 1 in the model and as 23 in functions."""
    proto = parser.parse_model(FUNCTIONS)
    (domain,) = (each for each in proto.functions[1].opset_import if each.domain == "pkg")
    domain.version = 17
    assert len(prepare(ir.from_proto(proto)).model.functions) == 0


def test_operands_of_identities_are_read_directly_and_outputs_keep_their_names():
    proto = skip_model(
        "a = Identity(x)\ny = Identity(a)\nu = Relu(y)\nc = Identity(u)\nz = Neg(c)",
        "float[B,8] x",
        "float[B,8] y, float[B,8] z",
    )
    prepared, _ = check(proto, "Identity Relu Neg")
    _, relu, neg = prepared.model.graph
    assert [relu.inputs[0].name, neg.inputs[0].name] == ["x", "u"]


def test_functions_that_call_themselves_are_an_error():
    proto = parser.parse_model(FUNCTIONS.replace("n = pkg.Norm", "n = pkg.Block"))
    with pytest.raises(ModelError, match="call themselves"):
        prepare(ir.from_proto(proto))


def test_a_model_without_any_of_this_is_copied_as_it_is():
    proto = skip_model("y = Relu(x)", "float[B,8] x", "float[B,8] y")
    model = ir.from_proto(proto)
    prepared = prepare(model)
    assert prepared.inlined == prepared.split == prepared.unsplit == ()
    assert ir.to_proto(prepared.model) == ir.to_proto(model)
    assert prepared.model is not model
