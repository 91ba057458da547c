"""The certificate of absorbed scales: by what each weight was multiplied, for which reader."""

from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.graph.operands import producer_of
from onnxfold.passes.base import ProofOutcome
from onnxfold.passes.scales.plan import ScaleFusion, ScalesPlan
from onnxfold.passes.scales.writer import channel_op, embedded
from onnxfold.proof import Certificate, Proof, ScaledWeight
from onnxfold.proof import prove as prove_models


def prove(before: ModelInfo, after: ModelInfo, plan: ScalesPlan) -> ProofOutcome:
    """Check ``after`` against ``before``; the plan names the operators that are gone."""
    shown = prove_scales(before, after, plan.fusions)
    counts = {"scaled_weights": shown.scaled_weights, "shifted_biases": shown.shifted_biases}
    return ProofOutcome(counts, shown.failures)


def prove_scales(before: ModelInfo, after: ModelInfo, fusions: Iterable[ScaleFusion]) -> Proof:
    """Check a model whose linear layers do the scales behind them; both are prepared."""
    values = before.by_ref()
    claims = (claim for fusion in fusions for claim in _claims(before, values, fusion))
    return prove_models(before, after, Certificate(scaled=tuple(claims), rounding=True))


def _claims(
    before: ModelInfo, values: Mapping[str, ir.Value], fusion: ScaleFusion
) -> Iterator[ScaledWeight]:
    node = producer_of(values.get(fusion.output))
    op = None if node is None else channel_op(before, node)
    if op is None or op.scale is None:
        return
    for place in fusion.scaled:
        vector = embedded(op.scale, fusion.part, place.channels.size)
        if vector.size == place.channels.size:
            yield ScaledWeight(place.value, place.reader.node, place.channels, vector)
