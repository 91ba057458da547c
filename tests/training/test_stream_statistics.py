"""What norms read while a model trains: against plain NumPy, and the training stays the same."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is missing: make test-training installs it")
from torch import nn

from onnxfold.errors import UsageError
from onnxfold.geometry.instrument import control_vectors
from onnxfold.torch import AnglesCallback, StreamStatistics, cbwc

WIDTH = 12


class Plain(nn.Module):
    """A norm that is written by hand."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / x.square().mean(-1, keepdim=True).sqrt()


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(5, WIDTH),
        nn.LayerNorm(WIDTH),
        cbwc(nn.Linear(WIDTH, WIDTH)),
        nn.RMSNorm(WIDTH),
        nn.GroupNorm(3, WIDTH),
        Plain(),
    )


def test_statistics_are_those_of_the_vectors() -> None:
    model = net().double()
    x = torch.randn(7, 5, dtype=torch.float64)
    with StreamStatistics(model, norms=["5"], seed=4) as statistics:
        first = model[0](x)
        y = model(x)
        model(x[:2])
    report = statistics.report()
    kinds = [(norm["name"], norm["kind"], norm["size"]) for norm in report["norms"]]
    assert kinds == [
        ("1", "layer_norm", WIDTH),
        ("3", "rms_norm", WIDTH),
        ("4", "group_norm", WIDTH // 3),
        ("5", "rms_norm", WIDTH),
    ]
    rows = torch.cat([first, first[:2]]).detach().numpy()
    a = control_vectors(WIDTH, 4)[:, 0]
    angles = {
        "angle_uniform": rows @ np.ones(WIDTH) / np.sqrt(WIDTH),
        "angle_a": rows @ a / np.linalg.norm(a),
    }
    before = report["norms"][0]["before"]
    lengths = np.linalg.norm(rows, axis=1)
    expected = {name: np.degrees(np.arccos(dots / lengths)) for name, dots in angles.items()}
    expected |= {"norm": lengths, "mean": rows.mean(1)}
    for name, values in expected.items():
        assert before[name]["count"] == 9
        # Sums of 12 terms and an arccos away from 0 and 180: a thousand units of 1e-16.
        assert before[name]["mean"] == pytest.approx(values.mean(), rel=1e-12, abs=1e-13)
        assert before[name]["std"] == pytest.approx(values.std(), rel=1e-12)
    centred = report["norms"][1]["before"]["angle_uniform"]
    assert abs(centred["min"] - 90) + abs(centred["max"] - 90) <= 1e-10
    assert report["norms"][3]["after"]["norm"]["mean"] == pytest.approx(
        float(y.detach().norm(dim=1).mean()), rel=1e-12
    )
    assert report["norms"][2]["before"]["norm"]["count"] == 27
    assert report["norms"][0]["error_without_mean"]["mean"] > 0.01
    assert report["norms"][1]["error_without_mean"] is None
    assert not model[1]._forward_hooks


def test_measured_training_is_the_same_training() -> None:
    measured, plain = net(), net()
    angles = AnglesCallback(measured, every=2)
    for model in (measured, plain):
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(4):
            x = torch.randn(6, 5, generator=torch.Generator().manual_seed(step))
            with angles.step(step if model is measured else 1):
                model(x).square().mean().backward()
            optimizer.step()
    assert [report["step"] for report in angles.reports] == [0, 2]
    for mine, theirs in zip(measured.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_norms_that_are_not_called_are_named() -> None:
    model = net()
    with StreamStatistics(model) as statistics:
        model[:2](torch.randn(3, 5))
    report = statistics.report()
    assert [norm["name"] for norm in report["norms"]] == ["1"]
    assert [row["name"] for row in report["refused"]] == ["3", "4"]


def test_bad_requests_are_one_sentence_and_leave_no_hook() -> None:
    model = net()
    before = copy.deepcopy(model.state_dict())
    for make, message in (
        (lambda: StreamStatistics(model, norms=["encoder"]), "no module 'encoder'"),
        (lambda: StreamStatistics(nn.Linear(2, 2)), "Linear has no known norm"),
        (lambda: AnglesCallback(model, every=0), "every must be 1 or more, not 0"),
        (lambda: StreamStatistics(model).merge_ranks(), "there is no process group"),
    ):
        with pytest.raises(UsageError, match=message):
            make()
    images = nn.Sequential(nn.GroupNorm(2, 4))
    with StreamStatistics(images):
        images(torch.randn(1, 4, 2, 2))
        with pytest.raises(UsageError, match="of 8 elements and then of 18"):
            images(torch.randn(1, 4, 3, 3))
    assert not images[0]._forward_hooks
    assert all(torch.equal(model.state_dict()[key], value) for key, value in before.items())
