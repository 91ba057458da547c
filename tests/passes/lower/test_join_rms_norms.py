"""Additions before RMSNorms: one operator of ONNX Runtime's where the device is CUDA."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxfold
from onnxfold.passes.lower import decide as module
from tests.passes.lower.contrib_models import WIDTH, operators, with_weights
from tests.recognition.replay import random_feeds
from tests.sessions import outputs

# Two layers, of sums of eight terms: some dozens of roundings of numbers below 32.
BOUND = 64 * 2.0**-24 * 32
FUSED = "SkipSimplifiedLayerNormalization"
NORM = "SimplifiedLayerNormalization"
STREAM = f"[B,3,{WIDTH}]"


def model_of(
    body: str, *, shape: str = STREAM, gives: str = "", outputs: str = "", dtype: str = "float"
) -> onnx.ModelProto:
    """A model of x and r; capitals are weights: M matrices, others vectors."""
    head = '<ir_version: 9, opset_import: ["" : 17]>'
    results = f"{dtype}{gives or shape} y{outputs}"
    return with_weights(
        f"{head}\nagraph ({dtype}{shape} x, {dtype}{shape} r) => ({results})\n{{\n{body}\n}}"
    )


def norm(result: str, of: str) -> str:
    return f"{result} = {NORM}<axis=-1, epsilon=1e-6>({of}, G_{result})\n"


def joined(model: onnx.ModelProto, **options: object) -> onnx.ModelProto:
    """What is written for CUDA, which computes the same and stays as it is in a second run."""
    settings = {"target": "ort", "device": "cuda", **options}
    result = onnxfold.optimize(model, **settings)
    assert not result.report.get("left_out")
    feeds = random_feeds(model)
    for mine, theirs in zip(outputs(result.model, feeds), outputs(model, feeds), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=BOUND)
    again = onnxfold.optimize(result.model, **settings).model
    assert again.graph == result.model.graph
    return result.model


RESIDUAL = "h = MatMul(x, M)\n b = Add(h, C)\n s = Add(r, b)\n" + norm("n", "s") + "y = Tanh(n)"


def test_an_addition_its_bias_and_the_norm_are_one_operator() -> None:
    model = joined(model_of(RESIDUAL))
    (node,) = (each for each in model.graph.node if each.op_type == FUSED)
    assert operators(model) == Counter({"MatMul": 1, FUSED: 1, "Tanh": 1})
    assert (list(node.input), list(node.output)) == (["h", "r", "G_n", "C"], ["n"])
    (epsilon,) = node.attribute
    assert (epsilon.name, epsilon.f) == ("epsilon", np.float32(1e-6))
    assert [each.version for each in model.opset_import if each.domain == "com.microsoft"] == [1]


def test_a_sum_that_others_read_is_the_last_output() -> None:
    body = "s = Add(x, r)\n" + norm("n", "s") + "y = Sub(s, n)"
    model = joined(model_of(body, outputs=f", float{STREAM} s"))
    (node,) = (each for each in model.graph.node if each.op_type == FUSED)
    assert list(node.output) == ["n", "", "", "s"]


def test_epsilon_that_the_norm_does_not_give_is_its_default() -> None:
    model = joined(model_of(RESIDUAL.replace(", epsilon=1e-6", "")))
    (node,) = (each for each in model.graph.node if each.op_type == FUSED)
    assert node.attribute[0].f == np.float32(1e-5)


def test_the_norm_of_a_folded_layer_norm_is_joined() -> None:
    """Both writers of the stream are column-centred by the tool, and its sum is read twice."""
    body = (
        "a = MatMul(x, M0)\n b = MatMul(r, M1)\n s = Add(a, b)\n"
        "n = LayerNormalization<axis=-1, epsilon=1e-5>(s, G, B)\n h = MatMul(n, M2)\n"
        "t = Add(s, h)\n"
        "m = LayerNormalization<axis=-1, epsilon=1e-5>(t, H, E)\n y = MatMul(m, M3)"
    )
    model = joined(model_of(body))
    assert operators(model)[FUSED] == 2


def test_a_norm_in_two_dimensions_and_behind_a_reshape() -> None:
    flat = joined(model_of(RESIDUAL, shape=f"[B,{WIDTH}]"))
    assert operators(flat)[FUSED] == 1
    body = "s = Add(x, r)\n f = Reshape(s, TO)\n" + norm("n", "f") + "y = Tanh(n)"
    model = model_of(body, gives=f"[N,{WIDTH}]")
    model.graph.initializer[-1].CopyFrom(
        numpy_helper.from_array(np.array([-1, WIDTH]), model.graph.initializer[-1].name)
    )
    assert operators(joined(model)) == Counter({FUSED: 1, "Reshape": 1, "Tanh": 1})


STAYS = {
    "four axes": ({"shape": f"[B,2,3,{WIDTH}]"}, RESIDUAL),
    "another axis": (
        {"shape": f"[2,{WIDTH},1]"},
        "s = Add(x, r)\n"
        + norm("n", "s").replace("axis=-1", "axis=1").replace("G_n", "K")
        + "y = Tanh(n)",
    ),
    "a broadcast one": (
        {},
        "q = ReduceMax<axes=[1]>(r)\n s = Add(x, q)\n" + norm("n", "s") + "y = Tanh(n)",
    ),
    "double": ({"dtype": "double"}, RESIDUAL),
    "statistics of another type": ({}, RESIDUAL.replace("axis=-1", "axis=-1, stash_type=11")),
    "a gamma of two axes": ({}, RESIDUAL.replace("G_n", "K")),
    "no addition": ({}, "s = Mul(x, r)\n" + norm("n", "s") + "y = Tanh(n)"),
}


@pytest.mark.parametrize("case", STAYS)
def test_what_the_operator_does_not_take_stays(case: str) -> None:
    options, body = STAYS[case]
    model = model_of(body, **options)
    if case == "another axis":
        model.graph.initializer[0].CopyFrom(
            numpy_helper.from_array(np.ones((WIDTH, 1), np.float32), "K")
        )
    if case == "a gamma of two axes":
        (weight,) = (each for each in model.graph.initializer if each.name == "K")
        weight.dims[:] = (1, WIDTH)
    assert operators(joined(model))[FUSED] == 0


@pytest.mark.parametrize(
    "options",
    [{"device": "cpu"}, {"target": "onnx", "device": "cpu"}, {"fuse_residual": False}],
)
def test_other_devices_and_targets_keep_both(options: dict[str, object]) -> None:
    assert operators(joined(model_of(RESIDUAL), **options))[FUSED] == 0


@pytest.mark.parametrize(("version", "count"), [((1, 26), 0), ((1, 27), 1)])
def test_float16_waits_for_statistics_in_float32(
    version: tuple[int, int], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "onnxruntime_version", lambda: version)
    model = model_of(RESIDUAL, dtype="float16")
    result = onnxfold.optimize(model, target="ort", device="cuda")
    assert operators(result.model)[FUSED] == count
    single = onnxfold.optimize(model_of(RESIDUAL), target="ort", device="cuda").model
    assert operators(single)[FUSED] == 1
