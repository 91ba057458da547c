"""Models with LayerNorms that train and run with RMSNorm: the same outputs and gradients."""

from __future__ import annotations

import copy
import dataclasses
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is missing: make test-training installs it")
for _package in ("transformers", "onnxscript"):
    pytest.importorskip(_package, reason=f"{_package} is missing: make test-training installs it")
from torch import nn
from torch.nn import functional as F

import onnxfold
from onnxfold.errors import ModelError, UsageError, VerificationError
from onnxfold.torch import FoldReport, RMSNorm, bake, fold, unfold
from onnxfold.torch.analysis import Analysis, Changes
from tests.training.models import (
    EXPECTED,
    MODELS,
    Annotated,
    Tied,
    bart,
    encoder,
    gpt2,
    opt,
    whisper,
)
from tests.training.outcomes import TOLERANCE, assert_same, called, distance, outcome, varied, wide

pytestmark = pytest.mark.filterwarnings("default")  # the exporter's, on its own code


@pytest.fixture(autouse=True)
def _quiet_and_seeded() -> None:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.manual_seed(0)


@pytest.mark.parametrize("name", MODELS)
def test_outputs_and_gradients_stay(name: str) -> None:
    model, inputs = MODELS[name]()
    varied(model)
    original = copy.deepcopy(model).double()
    parameters = dict(model.named_parameters())
    report = fold(model, inputs)
    folded, norms = EXPECTED[name]
    assert len(report.folded) == folded, str(report)
    assert len(report.folded) + len(report.left) == norms
    assert report.exact_in_training
    model.double()
    assert sum(isinstance(module, RMSNorm) for module in model.modules()) == folded
    for training in (False, True):
        assert_same(
            outcome(original, dict(original.named_parameters()), wide(inputs), training),
            outcome(model, parameters, wide(inputs), training),
        )


@pytest.mark.parametrize("name", ["swin", "bart"])
def test_what_does_not_fold_is_forced_where_that_is_asked(name: str) -> None:
    model, inputs = MODELS[name]()
    varied(model).double()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    with torch.no_grad():
        truth = called(model.eval(), wide(inputs))
    report = fold(model, wide(inputs), inexact=True)
    folded, norms = EXPECTED[name]
    assert len(report.folded) == folded
    assert len(report.inexact) == norms - folded
    assert not report.left
    assert report.exact_in_training is False
    assert all(report.inexact.values())
    assert f"{norms - folded} more are RMSNorms though their input has a mean" in str(report)
    assert not any(isinstance(module, nn.LayerNorm) for module in model.modules())
    with torch.no_grad():
        assert distance(called(model, wide(inputs)), truth) > 1e-3 * float(truth.abs().max())
    forced = model.get_submodule(next(iter(report.inexact)))
    x = np.random.default_rng(0).normal(2, 1, size=(5, *forced.normalized_shape))
    weight, bias = (part.detach().numpy() for part in (forced.weight, forced.bias))
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + forced.eps) * weight + bias
    found = forced(torch.from_numpy(x)).detach().numpy()
    assert np.abs(found - expected).max() <= 1e-12 * np.abs(expected).max()
    unfold(model)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    with torch.no_grad():
        assert torch.equal(called(model, wide(inputs)), truth)


@pytest.mark.parametrize("name", ["gpt2", "vit", "encoder"])
def test_baked_and_unfolded_models_compute_the_same(name: str) -> None:
    model, inputs = MODELS[name]()
    varied(model).double()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    report = fold(model, inputs if name == "gpt2" else wide(inputs))
    with torch.no_grad():
        truth = called(model.eval(), wide(inputs))
        baked = bake(copy.deepcopy(model))
        assert distance(called(baked, wide(inputs)), truth) <= TOLERANCE * float(truth.abs().max())
        assert list(baked.state_dict()) == list(state)
        again = unfold(copy.deepcopy(baked))
        assert distance(called(again, wide(inputs)), truth) <= TOLERANCE * float(truth.abs().max())
    unfold(model)
    assert not any(isinstance(module, RMSNorm) for module in model.modules())
    assert list(model.state_dict()) == list(state)
    assert all(torch.equal(model.state_dict()[key], value) for key, value in state.items())
    assert report.folded


def test_optimizers_that_were_made_before_go_on() -> None:
    model, inputs = encoder()
    plain = copy.deepcopy(varied(model)).double()
    model.double()
    parameters = list(model.parameters())
    optimizers = [torch.optim.SGD(p, lr=0.01) for p in (plain.parameters(), parameters)]
    fold(model, wide(inputs))
    for _ in range(3):
        for each, optimizer in zip((plain, model), optimizers, strict=True):
            optimizer.zero_grad()
            called(each.train(), wide(inputs)).square().mean().backward()
            optimizer.step()
    unfold(model)
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert any(mine is parameter for parameter in parameters)
        # Three steps, each with a gradient that errs by rounding.
        assert distance(mine.detach(), theirs.detach()) <= 3 * TOLERANCE


def test_folded_models_compile_and_load_and_compute_under_autocast() -> None:
    model = varied(nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 8), Annotated(8)))
    original, x = copy.deepcopy(model), torch.randn(3, 4)
    assert len(fold(model, (x,)).folded) == 2
    again = copy.deepcopy(original)
    fold(again, (x,))
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.zero_()
    again.load_state_dict(model.state_dict())
    compiled = torch.compile(copy.deepcopy(model), backend="aot_eager", fullgraph=True)
    y = model(x)
    y.sum().backward()
    z = compiled(x)
    z.sum().backward()
    assert torch.equal(again(x), y)
    assert torch.equal(z, y)  # the same operations in the same order
    for mine, theirs in zip(compiled.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        narrow = [each(x).double() for each in (original, model)]
    # Each errs by some ten roundings of 2^-8 of its largest number, divided by deviations near 1.
    truth = y.detach().double()
    for each in narrow:
        assert distance(each, truth) <= 16 * 2.0**-8 * float(truth.abs().max())


@pytest.mark.parametrize("kind", ["encoder", "gpt2"])
def test_dropout_is_refused_kept_or_recentred(kind: str) -> None:
    model, inputs = encoder(0.2) if kind == "encoder" else gpt2(0.2, layers=1)
    norms = sum(isinstance(module, nn.LayerNorm) for module in model.modules())
    varied(model).double()
    data = wide(inputs)
    refused, kept, recentred = (copy.deepcopy(model) for _ in range(3))
    first = fold(refused, data)
    # The stream before the first dropout moves, which no later norm sees.
    assert len(first.folded) == (1 if kind == "encoder" else 0)
    assert first.exact_in_training
    assert any("dropout='recentre'" in reason for reason in first.left.values())
    with pytest.warns(UserWarning, match="see a mean in training"):
        second = fold(kept, data, dropout="keep")
    parameters = dict(recentred.named_parameters())
    third = fold(recentred, data, dropout="recentre")
    assert len(second.folded) == len(third.folded) == norms
    assert (second.exact_in_training, third.exact_in_training) == (False, True)
    truth = called(model.eval(), data)
    for each in (refused, kept, recentred):
        output = called(each.eval(), data)
        assert distance(output.detach(), truth.detach()) <= TOLERANCE * float(
            truth.detach().abs().max()
        )
    in_training = outcome(model, dict(model.named_parameters()), data, True)
    assert_same(in_training, outcome(recentred, parameters, data, True))
    wrong = outcome(kept, dict(kept.named_parameters()), data, True)
    assert distance(wrong[0], in_training[0]) > 1e-3 * float(in_training[0].abs().max())


@pytest.mark.parametrize("kind", [opt, whisper, bart])
def test_dropout_that_is_not_a_module_is_seen_and_cannot_be_recentred(kind: Any) -> None:
    model, inputs = kind(0.2)
    report = fold(varied(model), inputs, dropout="recentre")
    # The first norms have no dropout before them; the embeddings of OPT and BART are linear.
    assert len(report.folded) == {bart: 2, opt: 1, whisper: 0}[kind]
    assert not any("dropout" in name for name in report.recentred)
    said = ["functional.dropout, follows" in reason for reason in report.left.values()]
    assert any(said) == (kind is not bart)


def test_dropout_that_is_not_a_module_does_not_matter_in_evaluation() -> None:
    model, inputs = opt(0.2)
    assert len(fold(model, inputs, training=False).folded) == 5


@pytest.mark.parametrize("name", ["gpt2", "swin", "whisper", "dinov2"])
def test_as_many_norms_fold_as_in_the_exported_graph(name: str, tmp_path: Path) -> None:
    """But for LayerScale, which a graph that is not trained any more takes into its weights."""
    model, inputs = MODELS[name]()
    varied(model).eval()
    args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
    path = tmp_path / "model.onnx"
    with torch.no_grad():
        torch.onnx.export(model, args, path, kwargs=kwargs, dynamo=True, verbose=False)
    norms = onnxfold.inspect(path)["norms"]
    # Whisper's encoder, whose stream begins after a GELU, by a centering that a graph can insert.
    in_graph = {"dinov2": 5, "whisper": 10}.get(name, EXPECTED[name][0])
    assert sum(norm["foldable"] for norm in norms) == in_graph


def test_layer_scale_is_named() -> None:
    model, inputs = MODELS["dinov2"]()
    left = fold(varied(model), inputs).left
    assert left["layernorm"].startswith("Mul 'encoder.layer.1.layer_scale2/Mul' multiplies")


def test_what_holds_at_initialisation_alone_is_not_relied_on() -> None:
    """With gamma 1 and beta 0 the first norm gives vectors of mean 0; after a step it does not."""
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.LayerNorm(8), nn.Linear(8, 2))
    report = fold(model, (torch.randn(3, 4),))
    assert report.folded == ("1",)
    assert "with gamma and beta, which has a mean" in report.left["2"]


def test_a_norm_that_two_places_share_folds_where_both_do() -> None:
    class Shared(nn.Module):
        def __init__(self, both: bool) -> None:
            super().__init__()
            self.a, self.b, self.norm = nn.Linear(4, 8), nn.Linear(8, 8), nn.LayerNorm(8)
            self.both = both

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.b(self.norm(self.a(x)))
            return self.norm(y if self.both else F.gelu(y))

    x = torch.randn(3, 4)
    both, one = Shared(True), Shared(False)
    assert fold(both, (x,)).folded == ("norm",)
    assert "not every call folds" in fold(one, (x,)).left["norm"]


class ReadTwice(nn.Module):
    """A weight that writes a stream, and is multiplied with again where its mean is seen."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(8, 8, bias=False), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.norm(self.layer(x)) @ self.layer.weight)


def test_a_parameter_that_is_used_twice_stays() -> None:
    model = ReadTwice()
    report = fold(model, (torch.randn(3, 8),))
    assert not report.folded
    assert "'layer.weight' is read where it must keep its mean" in report.left["norm"]
    assert set(model.state_dict()) == {"layer.weight", "norm.weight", "norm.bias"}


def test_a_tied_embedding_is_centred_at_its_output() -> None:
    model = Tied()
    report = fold(model, (torch.randint(0, 20, (2, 5)),))
    assert report.recentred == ("table",)
    assert not report.centred


class Coded(nn.Module):
    """A linear layer whose weight is int8 codes, times a scale for all outputs or for each."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 127, (8, 4), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight.to(x.dtype) * self.scale.to(x.dtype))


@pytest.mark.parametrize(("shape", "node"), [((), "Cast"), ((1,), "Cast"), ((8, 1), "Mul")])
def test_integer_weights_stay_and_their_module_is_named(shape: tuple[int, ...], node: str) -> None:
    model = nn.Sequential(Coded(*shape), nn.LayerNorm(8), nn.Linear(8, 2))
    report = fold(model, (torch.randn(3, 4),))
    assert not report.folded
    assert f"'0/{node}'" in report.left["1"]


def test_a_quantised_module_is_refused_and_stays() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    coded = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    x = torch.randn(3, 4)
    before = coded(x)
    with pytest.raises(ModelError, match=r"module '0' of Sequential is quantized .* before it is"):
        fold(coded, (x,))
    assert torch.equal(coded(x), before)


class DataDependent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return self.norm(y) if float(y.sum()) > 0 else y


def test_a_model_that_cannot_be_exported_is_named_and_stays() -> None:
    model = DataDependent()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ModelError, match="DataDependent cannot be exported") as caught:
        fold(model, (torch.randn(2, 4),))
    assert "\n" not in str(caught.value)
    assert isinstance(model.norm, nn.LayerNorm)
    assert all(torch.equal(model.state_dict()[key], value) for key, value in before.items())


def test_the_module_at_fault_is_named_where_it_is_not_the_whole_model() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), DataDependent()))
    with pytest.raises(ModelError, match=r"module '1\.1' of Sequential cannot be exported"):
        fold(model, (torch.randn(2, 4),))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_fold_that_does_not_hold_is_refused_and_nothing_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, inputs = encoder()
    right = Analysis.changes

    def without_one(self: Analysis, excluded: dict[str, str]) -> Changes:
        changes = right(self, excluded)
        return dataclasses.replace(changes, writers=changes.writers[1:])

    monkeypatch.setattr(Analysis, "changes", without_one)
    state = set(model.state_dict())
    with pytest.raises(VerificationError, match="outputs of the folded model differ in evaluation"):
        fold(model, inputs, training=False)
    assert set(model.state_dict()) == state
    assert not any(isinstance(module, RMSNorm) for module in model.modules())


def test_norms_over_groups_take_vectors_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.GroupNorm(2, 6))
    assert fold(model, (torch.randn(3, 4),)).folded == ("1",)
    with pytest.raises(UsageError, match=r"takes \[N, C\]"):
        model[1](torch.randn(2, 6, 5))


def test_folding_twice_changes_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    inputs = (torch.randn(3, 4),)
    assert fold(model, inputs).folded == ("1",)
    state = set(model.state_dict())
    report = fold(model, inputs)
    assert report == FoldReport((), {}, (), (), True)
    assert set(model.state_dict()) == state


def test_options_that_there_are_not_are_refused() -> None:
    with pytest.raises(UsageError, match="refuse, keep, recentre"):
        fold(nn.Linear(2, 2), (torch.randn(1, 2),), dropout="drop")


def test_without_torch_the_import_says_what_to_install() -> None:
    code = "import sys; sys.modules['torch'] = None; import onnxfold.torch"
    done = subprocess.run(  # our own code
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "pip install 'onnxfold[torch]'" in done.stderr
