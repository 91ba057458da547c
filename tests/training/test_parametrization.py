"""Weights that are centered while they are trained: outputs, gradients, optimizers, states."""

from __future__ import annotations

import copy
import io
import itertools

import pytest

torch = pytest.importorskip("torch", reason="torch is missing: make test-training installs it")
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, prune

from onnxfold.errors import UsageError
from onnxfold.torch import CentredWeight, cbwc, centred

UNIT = 2.0**-53  # half the spacing of float64 at 1
CHANNELS = 12


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def biggest(values: torch.Tensor) -> float:
    return float(values.detach().abs().max())


def means_bound(module: nn.Module, y: torch.Tensor) -> float:
    """How far from 0 rounding may put a mean of outputs.

    Each product sum of k terms errs by k units of the sum of its absolute terms, which no weight of
    the layers below exceeds by more than max |W| * max |x| * k; the centering itself errs by 2.
    """
    terms = max(p.numel() for p in module.parameters())
    return 4 * terms**2 * UNIT * max(1.0, biggest(y))


LAYERS = {
    "linear": (lambda: nn.Linear(7, CHANNELS), (5, 7), -1),
    "linear without bias": (lambda: nn.Linear(7, CHANNELS, bias=False), (5, 7), -1),
    "conv1d": (lambda: nn.Conv1d(3, CHANNELS, 3), (2, 3, 8), 1),
    "conv2d": (lambda: nn.Conv2d(3, CHANNELS, 3), (2, 3, 5, 5), 1),
    "conv3d": (lambda: nn.Conv3d(2, CHANNELS, 2), (2, 2, 3, 3, 3), 1),
    "transposed 1d": (lambda: nn.ConvTranspose1d(3, CHANNELS, 3), (2, 3, 8), 1),
    "transposed 2d": (lambda: nn.ConvTranspose2d(3, CHANNELS, 2), (2, 3, 4, 4), 1),
    "transposed 3d": (lambda: nn.ConvTranspose3d(2, CHANNELS, 2), (2, 2, 3, 3, 3), 1),
    "attention projection": (lambda: nn.MultiheadAttention(CHANNELS, 3), (4, 2, CHANNELS), -1),
}


def output(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return layer(x, x, x)[0] if isinstance(layer, nn.MultiheadAttention) else layer(x)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("name", LAYERS)
def test_outputs_have_mean_zero_over_their_channels(name: str, groups: int) -> None:
    make, shape, axis = LAYERS[name]
    layer = make().double()
    x = drawn(*shape)
    blocks = (axis % len(shape), (groups, -1))
    plain = output(layer, x).unflatten(*blocks)
    along = blocks[0] + 1
    cbwc(layer, groups=groups)
    y = output(layer, x).unflatten(*blocks)
    assert biggest(y.mean(along)) <= means_bound(layer, y)
    assert biggest(y - plain + plain.mean(along, keepdim=True)) <= means_bound(layer, plain)
    assert biggest(plain.mean(along)) > 1e-3  # it was not centered


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_rows_of_tables_are_centred(kind: type[nn.Module]) -> None:
    table = cbwc(kind(20, CHANNELS).double())
    rows = table(torch.arange(20).reshape(4, 5))
    assert biggest(rows.mean(-1)) <= means_bound(table, rows)


def test_each_gate_of_a_recurrent_cell_is_centred() -> None:
    for cell, gates in ((nn.LSTMCell(5, 4), 4), (nn.GRUCell(5, 4), 3), (nn.RNNCell(5, 4), 1)):
        cbwc(cell.double(), "weight_ih", groups=gates)
        cbwc(cell, "weight_hh", groups=gates)
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            means = getattr(cell, name).unflatten(0, (gates, -1)).mean(1)
            assert biggest(means) <= 4 * CHANNELS * UNIT  # entries are below 1
        cell(drawn(2, 5))


def test_grouped_convolutions_are_centred_within_their_groups() -> None:
    layers = (kind(4, CHANNELS, 3, groups=2) for kind in (nn.Conv2d, nn.ConvTranspose2d))
    for layer, groups in itertools.product(layers, (2, 6)):
        own = cbwc(copy.deepcopy(layer).double(), groups=groups)
        y = own(drawn(2, 4, 5, 5))
        means = y.unflatten(1, (groups, -1)).mean(2)
        assert biggest(means) <= means_bound(own, y)


def test_outputs_and_gradients_are_those_of_layer_norm() -> None:
    """Proposition 2: LN(Wx + b) and RMS(Vx + c) agree to the first order of rounding."""
    layer = nn.Linear(9, CHANNELS).double()
    proxy = cbwc(copy.deepcopy(layer))
    gamma, beta, x, t = drawn(CHANNELS), drawn(CHANNELS), drawn(6, 9), drawn(6, CHANNELS)
    norm, rms = (g.clone().requires_grad_() for g in (gamma, gamma))
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    y = F.layer_norm(layer(theirs), (CHANNELS,), norm, beta, 1e-5)
    v = F.rms_norm(proxy(mine), (CHANNELS,), rms, 1e-5) + beta
    (y * t).sum().backward()
    (v * t).sum().backward()
    # A sum of k terms errs by k units of its absolute terms: at most 9 + CHANNELS terms of |W||x|,
    # divided by the deviation; the derivative divides once more.  64 counts the operations.
    z = layer(x)
    deviation = float(z.detach().var(-1, unbiased=False).sqrt().min())
    size = biggest(layer.weight.abs() @ x.abs().T) + biggest(layer.bias)
    factor = biggest(gamma) * (9 + CHANNELS) * 64 * UNIT
    bound = factor * size / deviation
    assert biggest(y - v) <= bound
    scale = biggest(t) * biggest(x) * 6 * CHANNELS / deviation
    pairs = {
        "weight": (layer.weight, proxy.parametrizations.weight.original),
        "bias": (layer.bias, proxy.parametrizations.bias.original),
        "gamma": (norm, rms),
        "input": (theirs, mine),
    }
    for name, (theirs_, mine_) in pairs.items():
        assert biggest(theirs_.grad - mine_.grad) <= bound * scale, name
    assert bound * scale < 1e-8  # a wrong projection errs by the size of the gradient


def test_gradients_of_the_uncentred_weight_under_rms_norm_differ() -> None:
    """Without the centering the same comparison fails: the test above can fail."""
    layer, x, t = nn.Linear(9, CHANNELS).double(), drawn(6, 9), drawn(6, CHANNELS)
    grads = []
    for norm in (F.layer_norm, F.rms_norm):
        layer.zero_grad()
        (norm(layer(x), (CHANNELS,)) * t).sum().backward()
        grads.append(layer.weight.grad.clone())
    assert biggest(grads[0] - grads[1]) > 1e-3


@pytest.mark.parametrize("decoupled", [False, True])
def test_weight_decay_acts_on_the_weight_that_is_stored(decoupled: bool) -> None:
    layer = cbwc(nn.Linear(5, CHANNELS).double())
    W = layer.parametrizations.weight.original
    start = W.detach().clone()
    kind = torch.optim.AdamW if decoupled else torch.optim.SGD
    optimizer = kind([W], lr=0.5, weight_decay=0.25)
    W.grad = torch.zeros_like(W)
    optimizer.step()
    assert torch.equal(W.detach(), start * (1 - 0.5 * 0.25))  # powers of two: no rounding
    assert biggest(W.mean(0)) > 1e-3  # the mean of W decays, it is not removed


def test_training_with_layer_norm_and_with_rms_norm_is_the_same_training() -> None:
    layer = nn.Linear(6, CHANNELS).double()
    proxy = cbwc(copy.deepcopy(layer))
    plain = torch.optim.AdamW(layer.parameters(), lr=1e-2)
    centring = torch.optim.AdamW(proxy.parameters(), lr=1e-2)
    for _ in range(20):
        x, t = drawn(16, 6), drawn(16, CHANNELS)
        for model, norm, optimizer in (
            (layer, F.layer_norm, plain),
            (proxy, F.rms_norm, centring),
        ):
            optimizer.zero_grad()
            F.mse_loss(norm(model(x), (CHANNELS,), eps=1e-5), t).backward()
            optimizer.step()
    difference = layer.weight - proxy.parametrizations.weight.original
    # 20 steps of length 1e-2 whose directions differ by rounding, 1e-12 after division by
    # Adam's root of a second moment; the paper's own threshold is 1e-5.
    assert biggest(difference) <= 20 * 1e-2 * 1e-8


def test_states_are_saved_and_loaded() -> None:
    layer = cbwc(nn.Linear(5, CHANNELS))
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = cbwc(nn.Linear(5, CHANNELS))
    other.load_state_dict(torch.load(file))
    assert torch.equal(other.weight, layer.weight)
    assert set(layer.state_dict()) == {
        "parametrizations.weight.original",
        "parametrizations.bias.original",
    }


def test_the_parameter_objects_stay_for_optimizers_that_hold_them() -> None:
    layer = nn.Linear(5, CHANNELS)
    weight, bias = layer.weight, layer.bias
    cbwc(layer)
    assert layer.parametrizations.weight.original is weight
    assert layer.parametrizations.bias.original is bias


def test_what_is_assigned_becomes_the_stored_weight() -> None:
    layer = cbwc(nn.Linear(5, CHANNELS))
    W = torch.randn(CHANNELS, 5)
    layer.weight = W
    assert torch.equal(layer.parametrizations.weight.original, W)
    assert torch.equal(layer.weight, centred(W, 0))


def test_averaged_models_average_the_stored_weight() -> None:
    layer = cbwc(nn.Linear(5, CHANNELS).double())
    average = torch.optim.swa_utils.AveragedModel(layer)
    average.update_parameters(layer)
    first = layer.parametrizations.weight.original.detach().clone()
    with torch.no_grad():
        layer.parametrizations.weight.original.mul_(3)
    average.update_parameters(layer)
    stored = average.module.parametrizations.weight.original
    assert biggest(stored - 2 * first) <= 8 * UNIT * biggest(first)
    assert biggest(average.module.weight.mean(0)) <= 8 * CHANNELS * UNIT


def test_stored_weights_are_pruned() -> None:
    layer = cbwc(nn.Linear(8, CHANNELS).double())
    prune.l1_unstructured(layer.parametrizations.weight, "original", amount=0.5)
    y = layer(drawn(3, 8))
    mask = layer.parametrizations.weight.original_mask
    assert int(mask.sum()) == CHANNELS * 4
    assert biggest(y.mean(-1)) <= means_bound(layer, y)


def test_weights_that_another_parametrization_makes_are_centred_behind_it() -> None:
    layer = cbwc(parametrizations.weight_norm(nn.Linear(5, CHANNELS).double()))
    y = layer(drawn(3, 5))
    assert biggest(y.mean(-1)) <= means_bound(layer, y)


def test_the_mean_is_computed_in_the_type_that_is_asked_for() -> None:
    W = torch.randn(1000, 3) * 1e-3 + 100
    exact = W.double() - W.double().mean(0, keepdim=True)
    wide = centred(W, 0, dtype=torch.float64)
    assert wide.dtype == torch.float32
    assert torch.equal(wide, exact.float())  # one rounding
    narrow = centred(W.bfloat16(), 0)
    assert narrow.dtype == torch.bfloat16
    assert torch.equal(narrow, (W.bfloat16().float() - W.bfloat16().float().mean(0)).bfloat16())


def test_under_autocast_the_weight_is_centred_before_it_is_rounded() -> None:
    layer = cbwc(nn.Linear(16, CHANNELS))
    x = torch.randn(4, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
        V = layer.weight
    assert y.dtype == torch.bfloat16
    assert V.dtype == torch.float32
    # y errs by half a unit 2^-8 of bfloat16 in W, in x and in each of its own roundings.
    size = biggest(V.abs() @ x.abs().T) + 1
    assert biggest(y.float().mean(-1)) <= 4 * 2.0**-8 * size


def test_compiled_layers_compute_the_same() -> None:
    layer = nn.Sequential(cbwc(nn.Linear(9, CHANNELS).double()), nn.RMSNorm(CHANNELS).double())
    x = drawn(5, 9)
    compiled = torch.compile(copy.deepcopy(layer), backend="aot_eager", fullgraph=True)
    y = compiled(x)
    y.sum().backward()
    layer(x).sum().backward()
    # The same operations in the same order: nothing is rounded otherwise.
    assert torch.equal(y, layer(x))
    for mine, theirs in zip(compiled.parameters(), layer.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)


REFUSED = {
    "no such tensor": (lambda: (nn.Linear(2, 4), {"name": "kernel"}), "not a parameter; there are"),
    "axis unknown": (lambda: (nn.LayerNorm(4), {}), "as dim"),
    "no such axis": (lambda: (nn.Linear(2, 4), {"dim": 2}), "has no axis 2"),
    "blocks": (lambda: (nn.Linear(2, 4), {"groups": 3}), "3 groups do not divide the 4 outputs"),
    "depthwise": (lambda: (nn.Conv1d(4, 4, 3, groups=4), {}), "must be a multiple of 4"),
    "max_norm": (lambda: (nn.Embedding(4, 4, max_norm=1.0), {}), "written by max_norm"),
    "whole rnn": (lambda: (nn.LSTM(4, 4), {"name": "weight_ih_l0"}), "use the cell"),
    "gates": (lambda: (nn.LSTMCell(4, 4), {"name": "weight_ih"}), "groups must be a multiple of 4"),
    "q, k and v": (
        lambda: (nn.MultiheadAttention(4, 2), {"name": "in_proj_weight"}),
        "groups must be a multiple of 3",
    ),
    "twice": (lambda: (cbwc(nn.Linear(2, 4)), {}), "already centered"),
    "pruned": (
        lambda: (prune.l1_unstructured(nn.Linear(2, 4), "weight", amount=2), {}),
        "center first, then prune",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_centred_is_refused_and_stays(name: str) -> None:
    make, sentence = REFUSED[name]
    module, options = make()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    with pytest.raises(UsageError, match=sentence):
        cbwc(module, **options)
    after = module.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[key], value) for key, value in before.items())


def test_integers_have_no_centring() -> None:
    layer = nn.Module()
    layer.register_buffer("weight", torch.zeros(4, 4, dtype=torch.int8))
    with pytest.raises(UsageError, match=r"torch\.int8, which cannot be centered"):
        cbwc(layer, dim=0)


def test_the_bias_is_centred_along_the_output_axis_alone() -> None:
    layer = cbwc(nn.Linear(4, 4), dim=1)
    assert parametrize.is_parametrized(layer, "weight")
    assert not parametrize.is_parametrized(layer, "bias")
    assert isinstance(layer.parametrizations.weight[0], CentredWeight)
