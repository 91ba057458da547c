"""The proof of reinstated norms: the regions behind them compute the same in both models.

A LayerNorm whose readers were centred takes out a mean again that their weights do not see.
"""

from collections.abc import Iterator

import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo
from onnxfold.norms import NormSite
from onnxfold.operators.table import row_of
from onnxfold.passes.base import ProofOutcome
from onnxfold.passes.deferral.readers import image, layer_weight
from onnxfold.passes.reinstating.find import find_deferred
from onnxfold.passes.reinstating.plan import ReinstatingPlan
from onnxfold.proof import Certificate
from onnxfold.proof import prove as prove_models
from onnxfold.refusal import Refusal


def prove(before: ModelInfo, after: ModelInfo, plan: ReinstatingPlan) -> ProofOutcome:
    """Check ``after`` against ``before``; the plan says which norms to count."""
    sites = [found.site for found in find_deferred(before)]
    chosen = [site for site in sites if before.ref(site.output) in plan.norms]
    centred = tuple(
        weight for site in chosen if site.subtracts_mean for weight in _weights(before, site)
    )
    shown = prove_models(before, after, Certificate(centred, by_name_alone=True))
    return ProofOutcome({"reinstated_norms": len(plan.norms)}, shown.failures)


def _weights(info: ModelInfo, site: NormSite) -> Iterator[tuple[str, Fiber]]:
    """Yield the weights behind a LayerNorm whose means the proof finds to be 0, or not."""
    waiting: list[tuple[ir.Value, Fiber]] = [(site.input, site.fiber)]
    for value, fiber in waiting:
        for node in value.consumers():
            if row_of(node).layer is not None:
                found = layer_weight(info, node, value, fiber)
                weight = None if isinstance(found, Refusal) else node.inputs[found[0]]
                if weight is not None and not isinstance(found, Refusal):
                    yield info.ref(weight), found[1]
                continue
            behind = image(info, node, value, fiber)
            if behind is not None:
                waiting.append((node.outputs[0], behind))
