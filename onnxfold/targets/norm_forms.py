"""The forms that a target has for norms, as passes ask for them; the nodes come from `lowering`."""

from collections.abc import Callable
from typing import Protocol

import onnx_ir as ir

from onnxfold.graph import Fiber
from onnxfold.graph.edit import Lowered
from onnxfold.graph.model_facts import Fact
from onnxfold.norms.site import NormSite
from onnxfold.options import Target, WrittenForm
from onnxfold.refusal import Refusal


class NormForms(Protocol):
    """What a target has for the norms of one version of a model."""

    def refuse_rms(self, site: NormSite) -> Refusal | None:
        """Return why a LayerNorm lacks a cheaper RMS form on this target, or None."""

    def refuse_layer(self, site: NormSite) -> Refusal | None:
        """Return why an RMSNorm cannot be a LayerNorm of the same parameters, or None."""

    def refuse_compressed(self, site: NormSite) -> Refusal | None:
        """Return why an RMSNorm cannot be a CRMSNorm, which reads one channel less, or None."""

    def keep_affine(self, site: NormSite) -> Refusal | None:
        """Return why a norm keeps its gamma and beta, even if layers could absorb them, or None."""

    def spells_rms(self, site: NormSite) -> bool:
        """Whether a norm of one operator would become several that no runtime fuses."""

    def calls_rms(self, site: NormSite) -> bool:
        """Whether a folded norm is rewritten, with a scale of ones if it has none."""

    def calls_in_place(self, site: NormSite) -> bool:
        """Whether a norm that stays goes to a kernel, or becomes one operator."""

    def multiplies(self, site: NormSite) -> bool:
        """Whether a layer norm or RMS norm always multiplies by a scale, gamma or not."""

    def stays_in_operators(self, site: NormSite) -> bool:
        """Whether a norm is several operators of a session as well, one for each part."""

    def rms_norm(self, site: NormSite, x: ir.Value) -> Lowered:
        """Return RMSNorm of ``x`` with the norm's gamma and beta."""

    def restored(self, site: NormSite) -> Lowered:
        """Return an RMSNorm whose input has mean 0 as a LayerNorm."""

    def compressed(self, site: NormSite, x: ir.Value) -> Lowered:
        """Return an RMSNorm of E x as a CRMSNorm of x, which restores the missing channel."""

    def centring(self, value: ir.Value, fiber: Fiber) -> Lowered:
        """Return value - mean(value) as a call, or as two operators for other axes or types."""


NORM_FORMS: Fact[Callable[[Target, WrittenForm], NormForms]] = Fact("forms of norms")
"""The forms of norms in a version of a model, by target and by what the user asked for."""
