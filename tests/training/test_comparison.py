"""The comparison of a folded model's outputs and gradients sees what is not finite too."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is missing: make test-training installs it")

from onnxfold.errors import VerificationError
from onnxfold.torch.exporting import Arguments
from onnxfold.torch.verification import check_equal

INFINITY, NAN = float("inf"), float("nan")


class Adds(torch.nn.Module):
    def __init__(self, *numbers: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(len(numbers), dtype=torch.float64))
        self.numbers = torch.tensor(numbers, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight + self.numbers


def compare(before: Adds, after: Adds) -> None:
    x = torch.ones(before.numbers.numel(), dtype=torch.float64)
    check_equal(before, after, dict(after.named_parameters()), Arguments((x,), {}), training=False)


@pytest.mark.parametrize("numbers", [(1.0, 2.0), (INFINITY, 2.0), (NAN, 2.0), (NAN, NAN), ()])
def test_equal_models_are_equal(numbers: tuple[float, ...]) -> None:
    compare(Adds(*numbers), Adds(*numbers))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1.0, 2.0), (1.0, 2.0 + 1e-6)),
        ((1.0, 2.0), (1.0, NAN)),
        ((1.0, 2.0), (INFINITY, 2.0)),
        ((INFINITY, 2.0), (1.0, 2.0)),
        ((NAN, 2.0), (2.0, NAN)),
        ((INFINITY, 2.0), (INFINITY, 2.1)),
    ],
)
def test_other_models_are_not(before: tuple[float, ...], after: tuple[float, ...]) -> None:
    with pytest.raises(VerificationError, match="outputs of the folded model differ"):
        compare(Adds(*before), Adds(*after))
