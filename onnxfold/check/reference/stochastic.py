"""Which nodes draw random numbers."""

from __future__ import annotations

import onnx_ir as ir

__all__ = ["is_stochastic"]

_RANDOM = frozenset(
    {
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    }
)


def is_stochastic(node: ir.Node) -> bool:
    """Whether a node may draw random numbers, as Dropout does when it is told to train."""
    trains = node.op_type == "Dropout" and len(node.inputs) > 2 and node.inputs[2] is not None
    return node.domain in ("", "ai.onnx") and (node.op_type in _RANDOM or trains)
