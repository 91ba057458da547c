"""CRMSNorms: RMSNorms of vectors that are stored without their last channel.

Source: Jiang et al., "Pre-RMSNorm and Pre-CRMSNorm Transformers", 2023, section 3.2.
"""

import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.graph.fiber import Fiber
from onnxfold.graph.operands import computed_by
from onnxfold.norms.site import NormKind, NormSite

CRMS_NORM = "crms"
"""The kind of a CRMSNorm in reports; to passes it is an RMSNorm of the completed vector."""


def completed_part(info: ModelInfo, value: ir.Value, fiber: Fiber) -> ir.Value | None:
    """Return v of a value E v = Concat(v, -sum(v)) along the one axis of the fiber, or None."""
    joined = computed_by(value, "Concat")
    if joined is None or len(joined.inputs) != 2 or len(fiber.axes) != 1:
        return None
    v, last = joined.inputs
    negated = computed_by(last, "Neg")
    total = None if negated is None else computed_by(negated.inputs[0], "ReduceSum")
    if v is None or total is None or total.inputs[0] is not v:
        return None
    rank, axes = info.rank(v), info.axes(total)
    if not rank or not axes or not fiber.whole:
        return None
    along = {axis % rank for axis in (*axes, joined.attributes.get_int("axis", 0))}
    return v if along == set(fiber.axes) else None


def reported_kind(info: ModelInfo, site: NormSite) -> str:
    """Return the kind of a norm that reports count it as."""
    of_part = site.kind is NormKind.RMS_NORM and completed_part(info, site.input, site.fiber)
    return CRMS_NORM if of_part else site.kind.value
