"""The proof of a rewritten model from the two models alone; what a pass reports is only a hint.

`prove` relates every value of the rewritten model to the original by one relation, and every rule
in use is tested numerically on the nodes concerned.
"""

from onnxfold.graph import ModelInfo
from onnxfold.proof.certificate import Certificate, LinearLayer, Proof, ScaledWeight, TurnedWeight

__all__ = ["Certificate", "LinearLayer", "Proof", "ScaledWeight", "TurnedWeight", "prove"]


def prove(before: ModelInfo, after: ModelInfo, certificate: Certificate) -> Proof:
    """Check ``after`` against ``before``, views of prepared models in which names were kept."""
    from onnxfold.proof.walker import walked  # with its imports: a run without a proof needs none

    return walked(before, after, certificate)
