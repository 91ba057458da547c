"""Streams of d - 1 channels in training: outputs, gradients and steps are LayerNorm's."""

from __future__ import annotations

import copy
import logging
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is missing: make test-training installs it")
for _package in ("transformers", "onnxscript"):
    pytest.importorskip(_package, reason=f"{_package} is missing: make test-training installs it")
from torch import nn
from torch.nn import functional as F

from onnxfold.errors import ModelError, UsageError
from onnxfold.torch import CRMSNorm, bake, compress, decompress, fold, unfold
from tests.training.models import MODELS, encoder, gpt2
from tests.training.outcomes import assert_same, outcome, varied, wide

pytestmark = pytest.mark.filterwarnings("default")  # the exporter's, on its own code
COMPRESSED = ["opt", "vit", "whisper", "bart", "encoder", "tied"]
OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
}
# Some tens of steps of a small model; Adam divides by roots of small gradients.
STEPS_APART = 1e-8


@pytest.fixture(autouse=True)
def _quiet_and_seeded() -> None:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.manual_seed(0)


def formulas(v: Any, gamma: Any, beta: Any, eps: float, dy: Any) -> tuple[Any, ...]:
    """Return y and the gradients of v, gamma and beta in numpy, by hand."""
    d = v.shape[-1] + 1
    total = v.sum(-1, keepdims=True)
    s = 1 / np.sqrt(((v**2).sum(-1, keepdims=True) + total**2) / d + eps)
    x = np.concatenate([v, -total], -1)
    dn = dy * gamma
    inner = (dn * x).sum(-1, keepdims=True)
    dx = s * dn - s**3 / d * inner * x
    return x * s * gamma + beta, dx[..., :-1] - dx[..., -1:], (dy * x * s).sum(0), dy.sum(0)


@pytest.mark.parametrize("shift", [0.0, 1e3])
def test_the_norm_is_its_formula_and_its_gradient(shift: float) -> None:
    rng = np.random.default_rng(0)
    v = rng.normal(size=(9, 6)) + shift
    v[0], v[1], v[2] = 0, 3, 1e6
    gamma, beta, dy = rng.normal(size=7), rng.normal(size=7), rng.normal(size=(9, 7))
    norm = CRMSNorm(7, 1e-5).double()
    with torch.no_grad():
        norm.weight.copy_(torch.from_numpy(gamma))
        norm.bias.copy_(torch.from_numpy(beta))
    given = torch.from_numpy(v).requires_grad_()
    y = norm(given)
    y.backward(torch.from_numpy(dy))
    found = (y.detach(), given.grad, norm.weight.grad, norm.bias.grad)
    for mine, theirs in zip(found, formulas(v, gamma, beta, 1e-5, dy), strict=True):
        assert np.abs(mine.numpy() - theirs).max() <= 1e-12 * np.abs(theirs).max()


def test_it_is_the_layer_norm_of_the_whole_vector() -> None:
    x = torch.randn(5, 8, dtype=torch.float64)
    x = x - x.mean(-1, keepdim=True)
    norm = CRMSNorm(8, bias=False).double()
    assert norm.bias is None
    torch.testing.assert_close(norm(x[:, :-1]), F.layer_norm(x, (8,)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", COMPRESSED)
def test_outputs_and_gradients_stay_and_the_way_back(name: str) -> None:
    model, inputs = MODELS[name]()
    varied(model)
    original = copy.deepcopy(model).double()
    parameters = dict(model.named_parameters())
    truths = [
        outcome(original, dict(original.named_parameters()), wide(inputs), training)
        for training in (False, True)
    ]
    folded = fold(model, inputs).folded
    compress(model, inputs)
    assert sum(isinstance(module, CRMSNorm) for module in model.modules()) == len(folded)
    model.double()
    for training in (False, True):
        assert_same(truths[training], outcome(model, parameters, wide(inputs), training))
    decompress(model)
    assert_same(truths[True], outcome(model, parameters, wide(inputs), True))
    compress(model, wide(inputs))
    unfold(model)
    assert_same(truths[True], outcome(model, parameters, wide(inputs), True))
    state, before = model.state_dict(), original.state_dict()
    assert list(state) == list(before)
    assert all(torch.equal(state[key], before[key]) for key in state)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_layer_norm(name: str) -> None:
    model, inputs = encoder()
    varied(model).double()
    compressed = copy.deepcopy(model)
    fold(compressed, wide(inputs))
    compress(compressed, wide(inputs))
    assert list(compressed[0].weight.shape) == [15, 6]
    optimizers = [OPTIMIZERS[name](each.parameters()) for each in (model, compressed)]
    first = {key: value.clone() for key, value in model.state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        x = torch.randn(4, 5, 6, generator=generator, dtype=torch.float64)
        for each, optimizer in zip((model, compressed), optimizers, strict=True):
            optimizer.zero_grad()
            each(x).tanh().square().mean().backward()
            optimizer.step()
    unfold(compressed)
    for key, value in model.state_dict().items():
        assert float((value - first[key]).abs().max()) > 1e-4, "nothing was trained"
        assert float((value - compressed.state_dict()[key]).abs().max()) <= STEPS_APART, key


def test_a_baked_model_is_narrower_and_computes_the_same() -> None:
    model, inputs = encoder()
    varied(model).double()
    wanted = model.eval()(*wide(inputs)).detach()
    fold(model, wide(inputs))
    compress(model, wide(inputs))
    bake(model)
    assert list(dict(model.named_parameters())["0.weight"].shape) == [15, 6]
    torch.testing.assert_close(model(*wide(inputs)), wanted, rtol=1e-10, atol=1e-10)


class ReadInFull(nn.Module):
    """What a norm reads leaves the model too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return self.last(self.norm(y)).sum() + (y - y.mean(-1, keepdim=True)).square().sum()


@pytest.mark.parametrize("made", [gpt2, lambda: (ReadInFull(), (torch.randn(3, 6),))])
def test_a_stream_that_is_read_in_full_stays(made: Any) -> None:
    """GPT-2 gives the last norm's output the size of the stream; the sum misses a channel."""
    model, inputs = made()
    varied(model)
    fold(model, inputs)
    parameters = dict(model.named_parameters())
    before = outcome(model, parameters, inputs, True)
    with pytest.raises(ModelError, match="cannot lose a channel"):
        compress(model, inputs)
    assert_same(before, outcome(model, parameters, inputs, True))
    assert not any(isinstance(module, CRMSNorm) for module in model.modules())


def test_what_cannot_be_compressed_is_said() -> None:
    model, inputs = encoder()
    with pytest.raises(UsageError, match=r"call onnxfold\.torch\.fold first"):
        compress(model, inputs)
    fold(model, inputs)
    compress(model, inputs)
    with pytest.raises(UsageError, match="compressed already"):
        compress(model, inputs)
    groups, rows = MODELS["residual with a last norm"]()
    fold(groups, rows)
    with pytest.raises(ModelError, match="has no CRMSNorm"):
        compress(groups, rows)
    with pytest.raises(UsageError, match="2 channels or more"):
        CRMSNorm(1)
    with pytest.raises(UsageError, match="no RMSNorm to go back to"):
        CRMSNorm(4).restored()
