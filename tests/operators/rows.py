"""The rows that have a law, and one of them with another law for a while."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir
import pytest

from onnxfold.graph import Fiber, ModelInfo
from onnxfold.operators.families.rules import TRANSFERS
from onnxfold.operators.families.transfer import Backward, Forward, Transfer
from onnxfold.operators.row import Operator
from onnxfold.operators.table import ROWS

__all__ = ["LAWS", "name_of", "transfer_for", "with_transfer"]

LAWS = tuple(row for row in ROWS.values() if row.family is not None)


@dataclass(frozen=True)
class _ForOne:
    """Other transfer functions for one operator of a family."""

    key: tuple[str, str]
    right: Transfer
    other: Transfer

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        return self._of(node).backward(view, node, output, fiber)

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        return self._of(node).forward(view, node, index, fiber)

    def _of(self, node: ir.Node) -> Transfer:
        return self.other if (node.domain, node.op_type) == self.key else self.right


def name_of(row: Operator) -> str:
    return ".".join(filter(None, row.key))


def transfer_for(row: Operator) -> Transfer:
    assert row.family is not None
    return TRANSFERS[row.family]


def with_transfer(patch: pytest.MonkeyPatch, row: Operator, other: Transfer) -> None:
    """Give one operator other transfer functions until the patch is undone."""
    patch.setitem(TRANSFERS, row.family, _ForOne(row.key, transfer_for(row), other))
