"""The proof of a rewritten model from its weights: the plan is a certificate, never an argument.

`folds` shows that every RMSNorm that was a LayerNorm reads zero-mean inputs, and that what changed
is seen by no other reader; `affine` that gammas and betas went where they act the same; `scales`
that factors did.
"""

from __future__ import annotations

from onnxfold.proof.affine import AffineProof, prove_affine
from onnxfold.proof.folds import Proof, prove
from onnxfold.proof.scales import prove_scales

__all__ = ["AffineProof", "Proof", "prove", "prove_affine", "prove_scales"]
