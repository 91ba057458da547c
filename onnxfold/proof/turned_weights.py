"""Weights whose fiber sets were all multiplied by one orthogonal matrix.

The matrix comes from a certificate: that it is orthogonal, and that the stored numbers are the
products, is checked here.
"""

from collections import defaultdict

import onnx_ir as ir

from onnxfold.proof.certificate import Certificate
from onnxfold.proof.relation import Float64, Relation, Turn
from onnxfold.proof.stored import is_rotated
from onnxfold.weights.rotations import error_of_orthogonality

_ORTHOGONAL = 2.0**-44  # of R R' - I, whose sums round as well


class TurnedWeights:
    """Checks the claims of a certificate."""

    def __init__(self, certificate: Certificate):
        self._claimed: dict[str, list[Turn]] = defaultdict(list)
        for claim in certificate.turned:
            self._claimed[claim.weight].append(Turn(claim.fiber, claim.matrix))
        self._orthogonal: dict[int, bool] = {}

    def relation(self, ref: str, old: ir.TensorProtocol, new: ir.TensorProtocol) -> Relation | None:
        """Return how a weight was rotated, or None if no claim of it is true."""
        for turn in self._claimed.get(ref, ()):
            if self._is_rotation(turn.matrix) and is_rotated(old, new, turn):
                return Relation(turn=turn)
        return None

    def _is_rotation(self, matrix: Float64) -> bool:
        if id(matrix) not in self._orthogonal:
            self._orthogonal[id(matrix)] = error_of_orthogonality(matrix) <= _ORTHOGONAL
        return self._orthogonal[id(matrix)]
