"""The certificate of affine fusion: which linear layers have taken gamma and beta."""

from collections.abc import Iterable

from onnxfold.graph import ModelInfo
from onnxfold.passes.affine.plan import Absorption, AffineFusion, AffinePlan
from onnxfold.passes.base import ProofOutcome
from onnxfold.proof import Certificate, LinearLayer, Proof
from onnxfold.proof import prove as prove_models


def prove(before: ModelInfo, after: ModelInfo, plan: AffinePlan) -> ProofOutcome:
    """Check ``after`` against ``before``; the plan names the values that changed places."""
    shown = prove_affine(before, after, plan.fusions)
    counts = {"scaled_weights": shown.scaled_weights, "shifted_biases": shown.shifted_biases}
    return ProofOutcome(counts, shown.failures)


def prove_affine(before: ModelInfo, after: ModelInfo, fusions: Iterable[AffineFusion]) -> Proof:
    """Check a model in which gammas and betas have moved; both are views of prepared models."""
    layers = dict.fromkeys(_layer(reader) for fusion in fusions for reader in fusion.readers)
    return prove_models(before, after, Certificate(linear=tuple(layers)))


def _layer(absorption: Absorption) -> LinearLayer:
    place, bias = absorption.bias, None
    if place is not None and not place.behind and place.reader.node == absorption.reader.node:
        bias = place.reader.index
    return LinearLayer(
        absorption.reader.node,
        absorption.weight.value,
        absorption.weight.channels,
        absorption.outer,
        bias,
        absorption.factor,
    )
