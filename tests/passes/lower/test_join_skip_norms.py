"""Skip norms of an optimizer: whole again where no fold took their place."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import onnxfold
from onnxfold.graph.edit import change_constant
from onnxfold.options import Device
from onnxfold.passes.base import Settings
from onnxfold.passes.lower import join_skip_norms as module
from onnxfold.passes.lower.join_skip_norms import join_skip_norms
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.target import Target
from onnxfold.targets import sums
from tests.passes.lower.contrib_models import WIDTH, operators, with_weights
from tests.recognition.replay import random_feeds
from tests.sessions import outputs

# Two norms in a row, of sums of eight terms: some dozens of roundings of numbers below ten.
BOUND = 64 * 2.0**-24 * 10


def fused(body: str, inputs: str, outputs: str, *, imported: bool = True) -> onnx.ModelProto:
    """A model with operators of ONNX Runtime; every matrix and vector in capitals is a weight."""
    contrib = ', "com.microsoft" : 1' if imported else ""
    head = f'<ir_version: 8, opset_import: ["" : 17{contrib}]>'
    return with_weights(f"{head}\nagraph ({inputs}) => ({outputs})\n{{\n{body}\n}}")


def agree(model: onnx.ModelProto, original: onnx.ModelProto) -> None:
    feeds = random_feeds(original)
    for mine, theirs in zip(outputs(model, feeds), outputs(original, feeds), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=BOUND)


SKIPS = (
    "h = MatMul(x, W0)\n k = MatMul(x, W1)\n"
    "[first] a, , , s = com.microsoft.SkipLayerNormalization<epsilon=1e-5>(h, k, G0, B0, C0)\n"
    "t = Tanh(a)\n u = Tanh(s)\n"
    "[second] y, , , z = com.microsoft.SkipLayerNormalization<epsilon=1e-5>(t, u, G1, B1, C1)\n"
    "w = Neg(z)"
)
STREAM = f"float[B,3,{WIDTH}]"


def skips(**options: bool) -> onnx.ModelProto:
    """Of the first norm, linear layers write the sum, and Tanh reads it; the second never folds."""
    body = SKIPS.replace("u = Tanh(s)", "u = Tanh(t)").replace("a, , , s", "a")
    return fused(body, f"{STREAM} x", f"{STREAM} y, {STREAM} w", **options)


def test_a_fold_leaves_the_other_skip_norms_as_they_were() -> None:
    original = skips()
    result = onnxfold.optimize(original)
    assert result.report["inspect"]["summary"]["foldable"] == 1
    (kept,) = (n for n in result.model.graph.node if n.op_type == "SkipLayerNormalization")
    (before,) = (node for node in original.graph.node if node.name == "second")
    assert (kept.name, kept.input, kept.output) == (before.name, before.input, before.output)
    made = {name for node in result.model.graph.node for name in node.output}
    read = {name for node in result.model.graph.node for name in node.input} | {"y", "w"}
    assert made <= read | {""}
    agree(result.model, original)


@pytest.mark.parametrize(
    ("version", "device", "kept"),
    [((1, 32), "cpu", 0), ((1, 30), "cpu", 0), ((1, 29), "cpu", 1), ((1, 32), "cuda", 1)],
)
def test_what_is_slow_stays_in_parts(
    version: tuple[int, int], device: str, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in (sums, module):
        monkeypatch.setattr(each, "onnxruntime_version", lambda: version)
    original = skips()
    model = onnxfold.optimize(original, target="ort", device=device).model
    assert operators(model)["SkipLayerNormalization"] == kept
    agree(model, original)


def test_kernels_take_the_additions_along() -> None:
    model = onnxfold.optimize(skips(), target="kernels").model
    assert operators(model)["SkipLayerNormalization"] == 0
    assert operators(model)["AddBiasLayerNormAffineWithSum"] == 1


OTHERS = {
    "SkipSimplifiedLayerNormalization": (
        "y, , , z = com.microsoft.SkipSimplifiedLayerNormalization<epsilon=1e-6>(t, x, G1, C1)\n"
        "w = Neg(z)"
    ),
    "SkipGroupNorm": (
        "q = Reshape(t, to)\n r = Reshape(x, to)\n"
        "g = com.microsoft.SkipGroupNorm<groups=2, epsilon=1e-5, activation=0, channels_last=1>"
        "(q, G1, B1, r)\n"
        "y = Reshape(g, back)\n w = Neg(y)"
    ),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_every_skip_norm_is_joined(kind: str) -> None:
    head = (
        f"h = MatMul(x, W0)\n a = LayerNormalization<axis=-1>(h, G0, B0)\n t = Tanh(a)\n"
        f"to = Constant<value_ints=[2,3,1,{WIDTH}]>()\n"
        f"back = Constant<value_ints=[2,3,{WIDTH}]>()\n"
    )
    stream = f"float[2,3,{WIDTH}]"
    original = fused(head + OTHERS[kind], f"{stream} x", f"{stream} y, {stream} w")
    result = onnxfold.optimize(original, check=0)
    assert result.report["inspect"]["summary"]["foldable"] == 1
    assert operators(result.model)[kind] == 1
    if kind != "SkipGroupNorm":  # without a CPU kernel; the proof compares it in parts
        agree(result.model, original)


EMBED = (
    "e, index, total = com.microsoft.EmbedLayerNormalization<epsilon=1e-5>"
    "(ids, segments, words, places, kinds, G0, B0, mask)\n"
    "t = Tanh(total)\n u = Tanh(e)\n v = Cast<to=1>(index)\n"
    "y = com.microsoft.SkipLayerNormalization<epsilon=1e-5>(t, u, G1, B1)"
)


@pytest.mark.parametrize("positions", [True, False])
def test_an_embedding_that_does_not_fold_stays_whole(positions: bool) -> None:
    body = EMBED.replace("mask)", "mask, at)") if positions else EMBED
    tables = f"float[5,{WIDTH}] words, float[7,{WIDTH}] places, float[4,{WIDTH}] kinds"
    ids = "int32[B,3] ids, int32[B,3] segments, int32[B,3] mask"
    ids += ", int32[B,3] at" if positions else ""
    original = fused(body, f"{ids}, {tables}", f"{STREAM} y, float[B] v")
    result = onnxfold.optimize(original, target="ort")
    assert result.changed  # the skip norm is Sum and LayerNormalization
    before, after = operators(original), operators(result.model)
    assert after["EmbedLayerNormalization"] == 1
    assert after["SkipLayerNormalization"] == 0
    assert sum(after.values()) == sum(before.values()) + 1
    agree(result.model, original)


@pytest.mark.parametrize("given", ["", "segments", "at"])
def test_an_embedding_of_constants_stays_whole(given: str) -> None:
    """Its positions of a fixed length, and what constants look up, are stored in parts."""
    original = _embedding_of_constants(given)
    result = onnxfold.optimize(original, target="ort")
    assert result.changed
    (node,) = (n for n in result.model.graph.node if n.op_type == "EmbedLayerNormalization")
    (before,) = (n for n in original.graph.node if n.op_type == "EmbedLayerNormalization")
    assert node.input == before.input
    kept = {each.name: each for each in result.model.graph.initializer}
    assert all(kept[each.name] == each for each in original.graph.initializer)
    assert len(kept) == len(original.graph.initializer)
    agree(result.model, original)
    assert not onnxfold.optimize(result.model, target="ort", check=0).changed


def test_a_part_of_other_numbers_stays_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed() -> tuple[ir.Model, ir.Model]:
        original = ir.from_proto(_embedding_of_constants("segments"))
        model = prepare(original).model
        for name, value in model.graph.initializers.items():
            if name.endswith(".folded"):
                tensor = ir.Tensor(value.const_value.numpy() + np.float32(1), name=name)
                change_constant(value, tensor)
        return model, original

    expected = ir.to_proto(changed()[0])
    assert operators(_joined(*changed()))["EmbedLayerNormalization"] == 0
    monkeypatch.setattr(module, "same_tensor", lambda a, b: True)
    feeds = random_feeds(expected)
    forced, right = outputs(_joined(*changed()), feeds)[0], outputs(expected, feeds)[0]
    assert np.abs(forced - right).max() > 0.1


def _embedding_of_constants(given: str) -> onnx.ModelProto:
    body = EMBED.replace("mask)", "mask, at)") if "at" in given else EMBED
    names = ["ids", "segments", "mask", *(("at",) if "at" in given else ())]
    inputs = [f"int32[2,3] {name}" for name in names if name not in given]
    model = fused(body, ", ".join(inputs), f"float[2,3,{WIDTH}] y, float[2] v")
    tables = {"words": 5, "places": 7, "kinds": 4}
    for each in model.graph.initializer:
        rng = np.random.default_rng(len(each.name))
        if each.name in tables:
            table = rng.standard_normal((tables[each.name], WIDTH)).astype(np.float32)
            each.CopyFrom(numpy_helper.from_array(table, each.name))
        if each.name in names:
            ids = rng.integers(0, 4, (2, 3), np.int32)
            each.CopyFrom(numpy_helper.from_array(ids, each.name))
    return model


def test_a_model_need_not_import_the_operators_of_onnx_runtime() -> None:
    """ONNX Runtime's optimizer writes such models (opt_level 0)."""
    original = skips(imported=False)
    result = onnxfold.optimize(original)
    assert {entry.domain for entry in result.model.opset_import} == {"", "com.microsoft"}
    agree(result.model, original)


def _in_parts() -> tuple[ir.Model, ir.Model]:
    original = ir.from_proto(fused(SKIPS, f"{STREAM} x", f"{STREAM} y, {STREAM} w"))
    return prepare(original).model, original


def _joined(model: ir.Model, original: ir.Model) -> onnx.ModelProto:
    join_skip_norms(model, original, Settings(Target.ORT, device=Device.CUDA))
    return ir.to_proto(model)


def test_parts_that_are_as_they_were_are_joined() -> None:
    model, original = _in_parts()
    found = _joined(model, original)
    assert operators(found) == operators(ir.to_proto(original))
    agree(found, ir.to_proto(original))


def test_a_sum_in_between_is_still_there_for_another_reader() -> None:
    model, original = _in_parts()
    (norm,) = (node for node in model.graph if node.outputs[0].name == "y")
    total = norm.inputs[0]
    assert total is not None
    inner = total.producer().inputs[0]
    reader = ir.node("Neg", [inner], name="reader")
    reader.outputs[0].name, reader.outputs[0].type = "seen", ir.TensorType(ir.DataType.FLOAT)
    model.graph.append(reader)
    model.graph.outputs.append(reader.outputs[0])
    expected = ir.to_proto(model)
    found = _joined(model, original)
    assert operators(found)["SkipLayerNormalization"] == 2
    agree(found, expected)


def test_a_norm_of_another_epsilon_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed() -> tuple[ir.Model, ir.Model]:
        model, original = _in_parts()
        (norm,) = (node for node in model.graph if node.outputs[0].name == "y")
        norm.attributes.add(ir.AttrFloat32("epsilon", 1.0))
        return model, original

    model, original = changed()
    expected = ir.to_proto(model)
    assert operators(_joined(model, original))["SkipLayerNormalization"] == 1
    monkeypatch.setattr(module, "_settings_of", lambda node: {})
    feeds = random_feeds(expected)
    forced, right = outputs(_joined(*changed()), feeds)[0], outputs(expected, feeds)[0]
    assert np.abs(forced - right).max() > 0.1
