"""The proof of a rewritten model from the two models alone: whatever a pass says is a hint.

`prove` relates every value of the rewritten model to the original by one relation, and every rule
that it uses is tested numerically on the nodes at hand.
"""

from onnxfold.proof.certificate import Certificate, LinearLayer, Proof, ScaledWeight
from onnxfold.proof.walker import prove

__all__ = ["Certificate", "LinearLayer", "Proof", "ScaledWeight", "prove"]
