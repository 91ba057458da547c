"""The proof of a rewritten model from the two models alone: whatever a pass says is a hint.

`prove` relates every value of the rewritten model to the original by one relation, and every rule
that it uses is tested numerically on the nodes at hand.
"""

from onnxfold.graph import ModelInfo
from onnxfold.proof.certificate import Certificate, LinearLayer, Proof, ScaledWeight, TurnedWeight

__all__ = ["Certificate", "LinearLayer", "Proof", "ScaledWeight", "TurnedWeight", "prove"]


def prove(before: ModelInfo, after: ModelInfo, certificate: Certificate) -> Proof:
    """Check ``after`` against ``before``: views of prepared models in which names were kept."""
    from onnxfold.proof.walker import walked  # with what it runs: a run without a proof needs none

    return walked(before, after, certificate)
