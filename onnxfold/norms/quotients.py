"""Norms whose scale can be separated from them: x * s with one number s per row."""

import onnx_ir as ir

from onnxfold.graph import ModelInfo, node_label
from onnxfold.norms.site import EpsilonMode, NormKind, NormSite
from onnxfold.refusal import Refusal, RefusalCode

_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.BFLOAT16)  # whose range is float32's
_SCALE_ONLY = frozenset({NormKind.RMS_NORM, NormKind.L2_NORM})


def cancels(site: NormSite) -> bool:
    """Whether the norm divides by the root mean square of x, with epsilon under the root.

    RMS_e(s u) = u / sqrt(mean(u^2) + e / s^2) then, exactly.
    """
    return site.kind in _SCALE_ONLY and refuse_form(site) is None


def may_wait(site: NormSite) -> bool:
    """Whether a norm's scale can be separated from it; a LayerNorm's mean is handled elsewhere."""
    kinds = _SCALE_ONLY | {NormKind.LAYER_NORM}
    return site.kind in kinds and refuse_form(site) is None


def refuse_form(site: NormSite) -> Refusal | None:
    """Return why the quotient of a norm cannot be split, or None if it can."""
    if site.refusal is not None:
        return site.refusal
    half = site.input.dtype is ir.DataType.FLOAT16 and not site.subtracts_mean
    known = site.input.dtype in _TYPES or half
    if not known or site.output.dtype != site.input.dtype:
        sentence = f"unnormalized values may leave the range of {site.output.dtype}"
        return Refusal(RefusalCode.UNSUPPORTED_TYPE, sentence, (site.name,))
    if site.epsilon_mode is not EpsilonMode.INSIDE or site.epsilon <= 0:
        sentence = "it has no positive epsilon under its root"
        return Refusal(RefusalCode.NOT_WORTH, sentence, (site.name,))
    if site.escaping:
        blamed = tuple(sorted(value.name or "" for value in site.escaping))
        sentence = f"'{blamed[0]}' in it is read by others"
        return Refusal(RefusalCode.STATISTICS_READ, sentence, blamed)
    if not site.fiber.whole:
        sentence = "it runs over groups of channels"
        return Refusal(RefusalCode.NOT_WORTH, sentence, (site.name,))
    return None


def refuse_constant(view: ModelInfo, site: NormSite) -> Refusal | None:
    """Refuse a norm of constants, where no change can pay, or return None."""
    if not view.is_constant(site.input):
        return None
    sentence = f"norm '{site.name}' reads constants, and runtimes compute it once"
    return Refusal(RefusalCode.NOT_WORTH, sentence, (node_label(site.nodes[-1]),))
