"""What the file of each target contains, and what takes it."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import onnxfold
from onnxfold.targets import sums
from tests.builders import chain_model, pre_norm_model
from tests.sessions import executed, outputs

RECIPES = Path(__file__).parents[1] / "recipes"
DIGITS = Path(__file__).parents[2] / "models" / "digits_vit" / "digits_vit.onnx"
MODELS = [
    DIGITS,
    *(RECIPES / f"{name}.onnx" for name in ("bert-base", "gpt2", "swin-t", "vit-b16")),
]


def two_settings() -> onnx.ModelProto:
    """Three norms of a linear layer each, two with one epsilon and one with another."""
    rng = np.random.default_rng(0)
    nodes, weights, x = [], {}, "x"
    for i, epsilon in enumerate((1e-5, 1e-5, 1.0)):
        weights[f"w{i}"] = rng.standard_normal((8, 8)).astype(np.float32)
        nodes.append(helper.make_node("MatMul", [x, f"w{i}"], [f"h{i}"], name=f"linear{i}"))
        weights[f"g{i}"] = rng.standard_normal(8).astype(np.float32)
        attributes = {"axis": -1, "epsilon": epsilon}
        norm = helper.make_node(
            "LayerNormalization", [f"h{i}", f"g{i}"], [f"n{i}"], name=f"norm{i}", **attributes
        )
        nodes += [norm, helper.make_node("Relu", [f"n{i}"], [f"y{i}"])]
        x = f"y{i}"
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["n", 8])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def session_nodes(path: Path, folder: Path) -> Counter[str]:
    """The operators that a session of ONNX Runtime executes, without the library."""
    return Counter(node.op_type for node in executed(path, folder).graph.node)


def all_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [*model.graph.node, *(node for body in model.functions for node in body.node)]


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_constants_are_tensors_and_nothing_refers_to_attributes(
    path: Path, target: str, tmp_path: Path
) -> None:
    original = onnx.load(path)
    onnxfold.optimize(path, tmp_path / "out.onnx", target=target, check=None)
    made = onnx.load(tmp_path / "out.onnx")
    for node in all_nodes(made):
        names = {attribute.name for attribute in node.attribute}
        assert node.op_type != "Constant" or names == {"value"}
        assert not any(attribute.ref_attr_name for attribute in node.attribute)
    assert (made.ir_version, made.opset_import[0]) == (
        original.ir_version,
        original.opset_import[0],
    )


@pytest.mark.parametrize("opset", [17, 23])
def test_the_default_file_is_standard_onnx(opset: int) -> None:
    original = pre_norm_model()
    original.opset_import[0].version = opset
    model = onnxfold.optimize(original).model
    onnx.checker.check_model(model, full_check=True)
    assert not model.functions
    assert {node.domain for node in model.graph.node} == {""}
    assert not {"RMSNormalization", "ConstantOfShape"} & {n.op_type for n in model.graph.node}


def test_a_file_for_kernels_has_one_setting_for_each_function_and_operators_for_the_rest() -> None:
    original = two_settings()
    model = onnxfold.optimize(original, target="kernels", fuse_affine=False).model
    calls = [node for node in model.graph.node if node.domain == "onnxfold"]
    assert [(node.op_type, node.overload) for node in calls] == [("RMSNormScale", "")] * 2
    assert [(body.name, body.overload) for body in model.functions] == [("RMSNormScale", "")]
    x = np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32)
    expected, found = (outputs(each, {"x": x})[0] for each in (original, model))
    # Three layers of eight terms: some dozens of roundings of numbers up to ten.
    np.testing.assert_allclose(found, expected, rtol=0, atol=64 * 2**-24 * 10)
    # With the epsilon of the others in the last, the result is another one.
    wrong = onnx.ModelProto.FromString(model.SerializeToString())
    for node in wrong.graph.node:
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if numpy_helper.to_array(attribute.t).reshape(-1)[0] == 1.0:
                attribute.t.CopyFrom(numpy_helper.from_array(np.array(1e-5, np.float32)))
    (other,) = ReferenceEvaluator(wrong).run(None, {"x": x})
    assert np.abs(np.asarray(other) - expected).max() > 1e-3


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
def test_a_file_survives_the_conversion_to_float16(target: str) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = onnxfold.optimize(onnx.load(DIGITS), target=target).model
    half = convert_float_to_float16(model, keep_io_types=True)
    images = np.load(DIGITS.with_name("heldout.npz"))["images"][:8].astype(np.float32)
    exact, found = (outputs(each, {"images": images})[0] for each in (model, half))
    # Logits up to 5 behind four blocks in half precision: twenty roundings of 2^-11.
    np.testing.assert_allclose(found, exact, rtol=0, atol=20 * 2**-11 * 5)


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_a_file_can_be_quantised_as_the_original(target: str, tmp_path: Path) -> None:
    """onnx infers nothing after SimplifiedLayerNormalization, for which it lacks a schema."""
    from onnxruntime.quantization import quantize_dynamic

    products = []
    for model in (pre_norm_model(), onnxfold.optimize(pre_norm_model(), target=target).model):
        onnx.save(model, tmp_path / "float.onnx")
        quantize_dynamic(tmp_path / "float.onnx", tmp_path / "int8.onnx")
        nodes = onnx.load(tmp_path / "int8.onnx").graph.node
        products.append(sum(node.op_type == "MatMulInteger" for node in nodes))
    assert products == [5, 5]


def test_initializers_are_inputs_of_a_model_of_ir_version_3() -> None:
    original = chain_model()
    original.ir_version = 3
    inputs = {value.name for value in original.graph.input}
    for tensor in original.graph.initializer:
        if tensor.name not in inputs:
            kind = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            original.graph.input.append(kind)
    result = onnxfold.optimize(original, target="onnx")
    assert result.changed
    assert result.model.ir_version == 3
    listed = {value.name for value in result.model.graph.input}
    assert {tensor.name for tensor in result.model.graph.initializer} <= listed
    onnx.checker.check_model(result.model, full_check=True)


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_the_scale_of_attention_scores_stays(path: Path, target: str, tmp_path: Path) -> None:
    onnxfold.optimize(path, tmp_path / "out.onnx", target=target, check=None)
    before, after = session_nodes(path, tmp_path), session_nodes(tmp_path / "out.onnx", tmp_path)
    assert before["FusedMatMul"] == after["FusedMatMul"] > 0


def test_sum_keeps_a_session_for_cpus_from_the_slow_fusion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out, again = RECIPES / "bert-base.onnx", tmp_path / "out.onnx", tmp_path / "again.onnx"
    onnxfold.optimize(path, out, target="ort", check=None)
    assert session_nodes(path, tmp_path)["SkipLayerNormalization"] == 4
    assert session_nodes(out, tmp_path)["SkipLayerNormalization"] == 0
    assert not onnxfold.optimize(out, again, target="ort", check=None).changed
    for version, device, skips in (((1, 32), "cuda", 4), ((1, 30), "cpu", 0), ((1, 29), "cpu", 4)):
        monkeypatch.setattr(sums, "onnxruntime_version", lambda found=version: found)
        onnxfold.optimize(path, out, target="ort", device=device, check=None, force=True)
        assert session_nodes(out, tmp_path)["SkipLayerNormalization"] == skips


def test_a_version_that_was_not_measured_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module("onnxfold.pipeline.publishing")  # a function of its name may hide it
    for version, device, unknown in (
        ((1, 16), "cpu", True),
        ((1, 32), "cpu", False),
        ((1, 31), "cuda", False),
        ((1, 32), "cuda", True),
        ((1, 99), "cpu", True),
    ):
        monkeypatch.setattr(module, "onnxruntime_version", lambda found=version: found)
        out = tmp_path / "out.onnx"
        model = pre_norm_model()
        report = onnxfold.optimize(model, out, target="ort", device=device, check=0).report
        advice = report["output"]["advice"]
        measured = "1.17 to 1.32" if device == "cpu" else "1.31"
        assert (f"was not measured, as {measured} was" in advice) == unknown


def test_the_report_names_the_fusions_that_it_excludes(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    for path, target, named in (
        (RECIPES / "clip-text.onnx", "onnx", True),
        (RECIPES / "bert-base.onnx", "onnx", False),  # in post-LN the fusion is chosen
        (RECIPES / "vit-b16.onnx", "kernels", False),
    ):
        report = onnxfold.optimize(path, out, target=target, check=None, force=True).report
        assert ("transformers optimizer" in report["output"]["advice"]) == named
    report = onnxfold.optimize(DIGITS, out, target="ort", check=None, force=True).report
    assert "Sum" in report["output"]["advice"]


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
def test_norm_form_layer_folds_nothing_and_moves_gamma(target: str, tmp_path: Path) -> None:
    path = tmp_path / "out.onnx"
    result = onnxfold.optimize(
        RECIPES / "vit-b16.onnx", path, target=target, norm_form="layer", check=None
    )
    assert not result.plan.folds
    assert sum(fusion.gamma for fusion in result.plan.fusions) == 5
    assert not any(node.op_type == "Pow" for node in onnx.load(path).graph.node)
    assert session_nodes(path, tmp_path)["LayerNormalization"] == 5 - (target != "ort")


def test_what_a_target_cannot_have_is_refused() -> None:
    with pytest.raises(onnxfold.UsageError, match="there is no target 'tpu'; there are onnx, ort"):
        onnxfold.optimize(pre_norm_model(), target="tpu")
    with pytest.raises(onnxfold.UsageError, match="device='cuda' is for target='ort'"):
        onnxfold.optimize(pre_norm_model(), device="cuda")


@pytest.mark.parametrize("option", ["target", "device", "defer", "norm_form"])
def test_a_choice_that_an_option_does_not_have_is_refused_with_those_that_it_has(
    option: str,
) -> None:
    with pytest.raises(onnxfold.UsageError, match=f"there is no {option} 'none'; there are "):
        onnxfold.optimize(pre_norm_model(), **{option: "none"})


@pytest.mark.parametrize("recipe", ["vit-b16", "gpt2"])
def test_no_symbol_stands_inside_of_a_model_that_had_none(recipe: str) -> None:
    """A batch that is fixed later differs from it: tract 0.23.9 cannot unify the two."""
    model = onnx.load(RECIPES / f"{recipe}.onnx")
    del model.graph.value_info[:]
    made = onnxfold.optimize(model, target="ort", check=None).model
    norms = {n.output[0] for n in made.graph.node if n.op_type == "SimplifiedLayerNormalization"}
    told = {info.name: info.type.tensor_type for info in made.graph.value_info}
    assert norms
    assert norms <= told.keys()  # with their types, which quantizers ask for
    assert not [n for n, kind in told.items() if any(dim.dim_param for dim in kind.shape.dim)]
    assert not onnxfold.optimize(made, target="ort", check=None).changed
