"""Every special case names a model, as an exporter writes it, whose figures fall without it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.passes.prepare import working_copy
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.recognition import find_norms
from onnxfold.recognition.algebra import matcher
from tests.sessions import executed

_TESTS = Path(__file__).parents[1]
_PREPARE, _WRITER = "onnxfold.passes.prepare.working_copy", "onnxfold.passes.scales.writer"


@dataclass(frozen=True)
class _Case:
    """A function that answers ``without`` as if its case were not known; what falls, and where."""

    place: str
    without: object
    model: str
    figure: str
    target: str = "kernels"


def _nodes(result: onnxfold.Result) -> int:
    return -len(result.model.graph.node)


_FIGURES: dict[str, Callable[[onnxfold.Result], int]] = {
    "folds": lambda result: len(result.plan.folds),
    "gammas": lambda result: sum(fusion.gamma for fusion in result.plan.fusions),
    "scales": lambda result: len(result.plan.scales),
    "nodes": _nodes,
}

CASES = {
    "operands of Identity": _Case(
        f"{_PREPARE}.read_directly", 0, "pipeline/fixtures/twice_script", "folds"
    ),
    "elements of an unbound tensor": _Case(
        f"{_PREPARE}.pick_from_tensors", (), "pipeline/fixtures/twice_script", "folds"
    ),
    "gathers of all elements": _Case(f"{_PREPARE}.reshape_whole", (), "recipes/swin-t", "gammas"),
    "weights of a loop": _Case(
        f"{_PREPARE}.read_from_outside", 0, "pipeline/fixtures/tf/gru", "folds"
    ),
    "scales of a part": _Case(f"{_WRITER}._cut_here", None, "recipes/gpt2", "scales"),
    "scales of a rotary embedding": _Case(
        f"{_WRITER}.common_source", None, "recipes/gemma2-small", "scales"
    ),
    "constants that take scales": _Case(
        f"{_WRITER}._constants", None, "parity/bert-dynamo18", "scales"
    ),
    "DyT": _Case("onnxfold.recognition.find.dyt_sites", (), "recipes/dyt-vit", "gammas"),
}
STEPS = {
    "add_biases": ("pipeline/fixtures/gru_script", "scales"),
    "fold_constants": ("recognition/fixtures/jax_jnp_rms_norm", "nodes"),
}
RULES = {
    "Where": "recognition/fixtures/jax_jnp_layer_norm",
    "BatchNormalization": "recognition/fixtures/tf_keras2_layer_norm_13",
    "InstanceNormalization": "recognition/fixtures/torch_group_norm_vectors_dynamo_18",
}
# x-transformers: F.normalize(x) * scale * g, before a linear layer.
_NORMALIZED = """<ir_version: 8, opset_import: ["": 17]> g (float[B,4,8] x) => (float[B,4,5] y)
<float least = {1e-12}, float scale = {2.828}, float[8] g = {1, 2, 3, 4, 5, 6, 7, 8}> {
    n = ReduceL2 <axes = [-1], keepdims = 1> (x)  c = Max (n, least)  q = Div (x, c)
    s = Mul (q, scale)  m = Mul (s, g)  y = MatMul (m, W) }"""


def _model(name: str) -> onnx.ModelProto:
    return onnx.load(_TESTS / f"{name}.onnx")


def _figure(model: onnx.ModelProto, figure: str, target: str = "kernels") -> int:
    return _FIGURES[figure](onnxfold.optimize(model, target=target, fold="always", check=None))


@pytest.mark.parametrize("name", CASES)
def test_the_figures_of_its_model_fall_without_a_case(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    figure = _figure(_model(case.model), case.figure, case.target)
    module, _, attribute = case.place.rpartition(".")
    monkeypatch.setattr(importlib.import_module(module), attribute, lambda *_: case.without)
    assert _figure(_model(case.model), case.figure, case.target) < figure


@pytest.mark.parametrize("name", STEPS)
def test_the_figures_of_its_model_fall_without_a_step(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, figure = STEPS[name]
    before = _figure(_model(model), figure)
    _leave_out(name, monkeypatch)
    assert _figure(_model(model), figure) < before


def test_gamma_stays_where_a_norm_has_two_factors_that_are_not_merged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = onnx.parser.parse_model(_NORMALIZED)
    weight = onnx.helper.make_tensor("W", 1, [8, 5], [0.1 * (i % 7) for i in range(40)])
    model.graph.initializer.append(weight)
    before = _figure(model, "nodes")
    _leave_out("merge_constant_factors", monkeypatch)
    assert _figure(model, "nodes") < before


def _leave_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for steps in ("_GIVEN", "_WRITTEN"):
        left = tuple(step for step in getattr(working_copy, steps) if step.__name__ != name)
        monkeypatch.setattr(working_copy, steps, left)


def _norms(model: onnx.ModelProto) -> int:
    info = prepare(ir.from_proto(model)).info
    return sum(site.refusal is None and len(site.nodes) > 1 for site in find_norms(info))


@pytest.mark.parametrize("rule", RULES)
def test_a_norm_is_not_found_without_a_rule(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _norms(_model(RULES[rule])) == 1
    monkeypatch.delitem(matcher._RULES, rule)
    assert _norms(_model(RULES[rule])) == 0


def test_a_layer_norm_without_bias_behind_onnxruntime_is_found_by_its_last_operator(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its SimplifiedLayerNormFusion makes an operator of what follows x - mean(x)."""
    source = _TESTS / "recognition/fixtures/torch_layer_norm_no_bias_script_13.onnx"
    model = executed(source, tmp_path, level="extended")
    assert "SimplifiedLayerNormalization" in {node.op_type for node in model.graph.node}
    assert _norms(model) == 1
    monkeypatch.delitem(matcher._RULES, "SimplifiedLayerNormalization")
    assert _norms(model) == 0


def test_a_norm_between_transposes_stays_one_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime would move them through an RMS norm, which ends on another axis then."""
    model = _model("recipes/convnext-t")
    folds = _FIGURES["folds"](onnxfold.optimize(model, target="kernels", check=None))
    worth = importlib.import_module("onnxfold.passes.centring.decide")
    monkeypatch.setattr(worth, "turned_norms", lambda *_: frozenset())
    assert _FIGURES["folds"](onnxfold.optimize(model, target="kernels", check=None)) > folds
