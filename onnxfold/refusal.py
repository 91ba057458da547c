"""A refusal: "no" as data, with a code for machines, a sentence for people and the nodes at fault.

Refusals are not errors.  Everything that decides (recognition, laws, planning, lowering) may
return one; the report, the Python API and the command line print the same sentence.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Refusal", "RefusalCode"]


class RefusalCode(StrEnum):
    """Why something was left as it was."""

    ACTIVATION = "activation"
    AFFINE_NORM_OUTPUT = "affine_norm_output"
    ALREADY_RMS = "already_rms"
    BODY_BORDER = "body_border"
    CONCAT_ALONG_FIBER = "concat_along_fiber"
    DYNAMIC_FIBER = "dynamic_fiber"
    DYNAMIC_WEIGHT = "dynamic_weight"
    EXACT_READER = "exact_reader"
    EXCLUDED = "excluded"
    FIBER_BROKEN = "fiber_broken"
    GRAPH_INPUT = "graph_input"
    GRAPH_OUTPUT = "graph_output"
    GROUPED_CONVOLUTION = "grouped_convolution"
    NO_CHEAPER_FORM = "no_cheaper_form"
    NON_FINITE_WEIGHT = "non_finite_weight"
    NOT_CENTRED_NORM = "not_centred_norm"
    NOT_WORTH = "not_worth"
    OVERRIDABLE_INITIALIZER = "overridable_initializer"
    QUANTISED = "quantised"
    SHARED_WEIGHT = "shared_weight"
    SHIFT_CANNOT_CROSS = "shift_cannot_cross"
    SPATIAL_NORM = "spatial_norm"
    STATISTICS_READ = "statistics_read"
    UNKNOWN_OP = "unknown_op"
    UNKNOWN_SHAPE = "unknown_shape"
    UNSUPPORTED_TYPE = "unsupported_type"
    VARIES_ALONG_FIBER = "varies_along_fiber"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a value cannot be centred or a norm cannot be folded, and which nodes are at fault."""

    code: RefusalCode
    sentence: str
    nodes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the report's form: ``{"code", "sentence", "nodes"}``."""
        return {"code": self.code.value, "sentence": self.sentence, "nodes": list(self.nodes)}
