"""The labels of the axes of an Einsum, including an ellipsis."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from onnxfold.graph.operands import einsum_labels


@pytest.mark.parametrize(
    ("equation", "ranks", "labels"),
    [
        ("ij, jk -> ik", [2, 2], (["ij", "jk"], "ik")),
        ("ij,jk->ik", [None, None], (["ij", "jk"], "ik")),
        ("...ij,jk->...ik", [4, 2], (["10ij", "jk"], "10ik")),
        ("...i,...i->...", [3, 2], (["10i", "0i"], "10")),
        ("...ij->...ji", [2], (["ij"], "ji")),
        ("...ij->...ji", [12], (["9876543210ij"], "9876543210ji")),
        ("...ij->...ji", [13], None),
        ("...ij->...ji", [1], None),
        ("...ij->...ji", [None], None),
        ("...ij->ji", [3], None),
        ("ij,jk", [2, 2], None),
        ("ij,jk->ik", [2], None),
        ("ij->ii", [2], None),
    ],
)
def test_every_axis_has_a_label_or_none_has(
    equation: str, ranks: list[int | None], labels: tuple[list[str], str] | None
) -> None:
    node = ir.node("Einsum", [None] * len(ranks), {"equation": equation})
    assert einsum_labels(node, ranks) == labels
