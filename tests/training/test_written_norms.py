"""Norms that a forward computes or calls, and not as a module: what folds, and what stays."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", reason="torch is missing: make test-training installs it")
for _package in ("transformers", "onnxscript"):
    pytest.importorskip(_package, reason=f"{_package} is missing: make test-training installs it")
from torch import nn
from torch.nn import functional as F

from onnxfold.torch import RMSNorm, bake, fold, unfold
from onnxfold.torch.norm_calls import NormCalls
from tests.training.models import Annotated
from tests.training.outcomes import TOLERANCE, assert_same, distance, outcome, varied

pytestmark = pytest.mark.filterwarnings("default")  # the exporter's, on its own code


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class Explicit(nn.Module):
    """A norm without a bias that computes its variance as the mean square of what is centered."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x - x.mean(-1, keepdim=True)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.gain


class AndMore(Explicit):
    """The same with an activation after it: the module is not only a norm."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(super().forward(x))


@pytest.mark.parametrize("kind", [Annotated, Explicit])
def test_norms_that_are_written_by_hand_fold(kind: type[nn.Module]) -> None:
    model = nn.Sequential(nn.Linear(4, 8), kind(8), nn.Linear(8, 8), AndMore(8), nn.Linear(8, 2))
    varied(model).double()
    original, x = copy.deepcopy(model), torch.randn(3, 4, dtype=torch.float64)
    parameters, names = dict(model.named_parameters()), list(model.state_dict())
    report = fold(model, (x,))
    assert report.folded == ("1",)
    assert isinstance(model[1], RMSNorm)
    for training in (False, True):
        assert_same(
            outcome(original, dict(original.named_parameters()), x, training),
            outcome(model, parameters, x, training),
        )
    unfold(model)
    assert list(model.state_dict()) == names
    assert isinstance(model[1], kind)


class Called(nn.Module):
    """A block whose forward calls its norms, around a module whose own norm may have to stay."""

    def __init__(self, call: Callable[..., torch.Tensor], *, opaque: bool) -> None:
        super().__init__()
        self.read, self.write, self.last = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.gain, self.shift = (nn.Parameter(torch.ones(8)) for _ in range(2))
        self.inner, self.call, self.opaque = nn.LayerNorm(8), call, opaque

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.read(x)
        y = self.call(x, [8], self.gain, self.shift)
        y = self.inner(F.gelu(y) if self.opaque else self.write(y))
        x = x + self.write(y)
        return self.last(self.call(x, (8,), weight=self.gain, eps=1e-3))


CALLS = {
    "functional": F.layer_norm,
    "torch": torch.layer_norm,
    "aten": torch.ops.aten.layer_norm,
    "overload": torch.ops.aten.layer_norm.default,
}


@pytest.mark.parametrize("opaque", [False, True])
@pytest.mark.parametrize("kind", CALLS)
def test_norms_that_a_forward_calls_fold(kind: str, opaque: bool) -> None:
    model = varied(nn.Sequential(Called(CALLS[kind], opaque=opaque), nn.Tanh())).double()
    original, x = copy.deepcopy(model), torch.randn(3, 4, dtype=torch.float64)
    parameters, names = dict(model.named_parameters()), list(model.state_dict())
    report = fold(model, (x,))
    assert report.folded == (("0",) if opaque else ("0", "0.inner"))
    assert set(report.left) == ({"0.inner"} if opaque else set())
    for training in (False, True):
        assert_same(
            outcome(original, dict(original.named_parameters()), x, training),
            outcome(model, parameters, x, training),
        )
    # Where the mean is there, the two norms differ: the calls are RMSNorms, and not all of them.
    baked = bake(copy.deepcopy(model))
    with torch.no_grad():
        baked[0].read.bias.add_(1)
        assert distance(baked(x), original(x)) > 1e-3
    unfold(model)
    assert "forward" not in model[0].__dict__ | model[0].inner.__dict__
    assert list(model.state_dict()) == names
    assert torch.equal(model(x), original(x))


def test_the_norm_within_a_call_that_folds_must_not_fold_with_it() -> None:
    """Forced, the LayerNorm that reads what GELU gives is an RMSNorm too: the outputs differ."""
    model = varied(Called(F.layer_norm, opaque=True)).double()
    x = torch.randn(3, 4, dtype=torch.float64)
    with torch.no_grad():
        truth = model(x)
        assert fold(model, (x,)).folded == ("",)
        assert distance(model(x), truth) <= TOLERANCE * float(truth.abs().max())
        NormCalls.remove(model.inner)
        assert distance(model(x), truth) > 1e-3


class TwoCalls(nn.Module):
    """The second norm reads what GELU gives: one answer cannot be right for both."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(F.layer_norm(self.layer(x), (8,)))
        return self.last(F.layer_norm(y, (8,)))


class Inline(TwoCalls):
    """A norm of single operations amid a forward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
        return self.last(x)


class Native(TwoCalls):
    """The call that gives the mean and the deviation as well."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.native_layer_norm(self.layer(x), (8,), None, None, 1e-5)[0])


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (TwoCalls, "it is called more than once, and not every call folds"),
        (Inline, "its forward normalizes in its own operations"),
        (Native, "its forward normalizes in its own operations"),
    ],
)
def test_norms_in_a_forward_that_stay_are_named(kind: type[nn.Module], reason: str) -> None:
    model = nn.Sequential(kind())
    report = fold(model, (torch.randn(3, 4),))
    assert not report.folded
    assert reason in report.left["0"]
    assert "forward" not in model[0].__dict__


def test_models_with_calls_compile_export_and_are_copied() -> None:
    model, x = varied(Called(F.layer_norm, opaque=True)), torch.randn(3, 4)
    fold(model, (x,))
    y = model(x)
    for each in (
        torch.compile(copy.deepcopy(model), backend="aot_eager", fullgraph=True),
        pickle.loads(pickle.dumps(bake(copy.deepcopy(model)))),  # noqa: S301  # ours
    ):
        # V is V, and the same operations follow in the same order.
        assert torch.equal(each(x), y)
    assert list(inspect.signature(model.forward).parameters) == ["x"]
    with torch.no_grad():
        program = torch.onnx.export(model.eval(), (x,), dynamo=True, verbose=False)
    kinds = [node.op_type for node in program.model.graph]
    assert kinds.count("LayerNormalization") == 1


def test_a_dropout_before_a_call_is_seen() -> None:
    model = nn.Sequential(nn.Dropout(0.5), Called(F.layer_norm, opaque=False))
    assert set(fold(copy.deepcopy(model), (torch.randn(3, 4),)).folded) == {"1", "1.inner"}
    model[1].read = nn.Sequential(model[1].read, nn.Dropout(0.5))
    report = fold(copy.deepcopy(model), (torch.randn(3, 4),))
    assert report.folded == ("1.inner",)  # its stream moves, which later norms ignore
    assert report.exact_in_training
    assert "dropout='recentre' removes the mean" in report.left["1"]
    recentred = fold(model, (torch.randn(3, 4),), dropout="recentre")
    assert (len(recentred.folded), recentred.recentred) == (2, ("1.read.1",))
