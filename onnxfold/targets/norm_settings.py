"""The forms that a target has for norms, and the choice of the setting of each.

:class:`NormForms` is what passes ask; the nodes come from `lowering`.

A file has one function per name (ONNX Runtime 1.17 to 1.24 use the last overload for all), and so
one setting. The choice depends only on how often each setting occurs, for any spelling, so that a
second run chooses as the first.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias, TypeVar

import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo
from onnxfold.graph.model_info import Fact
from onnxfold.norms.site import NormSite
from onnxfold.operators.functions import DOMAIN, SIGNATURES, Output, Statistics, axes_of
from onnxfold.operators.new_nodes import Lowered
from onnxfold.options import WrittenForm
from onnxfold.refusal import Refusal
from onnxfold.target import Target

NormSetting: TypeAlias = tuple[Statistics, int, float]
"""What is divided by what, how many last axes are normalized, and epsilon."""


class Fusion(Protocol):
    """A norm that becomes a call of an onnxfold function."""

    @property
    def name(self) -> str:
        """The name of the op."""

    @property
    def setting(self) -> NormSetting:
        """Its setting."""


F = TypeVar("F", bound=Fusion)


def setting_of_call(node: ir.Node) -> NormSetting:
    """Return the setting of a call of an onnxfold function."""
    epsilon = node.attributes.get_float("epsilon", 0.0)
    return SIGNATURES[node.op_type].statistics, axes_of(node), epsilon


def common_settings(
    calls: Iterable[ir.Node], others: Iterable[NormSetting] = ()
) -> frozenset[NormSetting]:
    """Return the most frequent setting of each kind of norm; among equals, the least.

    Scales of rows have names of their own, and come of deferred norms after the first choice.
    """
    counts: defaultdict[Statistics, Counter[NormSetting]] = defaultdict(Counter)
    norms = (node for node in calls if SIGNATURES[node.op_type].output is not Output.SCALE)
    with_epsilon = (node for node in norms if "epsilon" in SIGNATURES[node.op_type].attributes)
    for setting in (*map(setting_of_call, with_epsilon), *others):
        counts[setting[0]][setting] += 1
    return frozenset(map(_most_common, counts.values()))


def setting_of_each(
    named: Iterable[tuple[str, NormSetting]], common: Collection[NormSetting]
) -> Mapping[str, NormSetting]:
    """Return one setting for each name: a ``common`` one if possible, or its most common."""
    counts: defaultdict[str, Counter[NormSetting]] = defaultdict(Counter)
    for name, setting in named:
        counts[name][setting] += 1
    return {
        name: next((setting for setting in common if setting in found), _most_common(found))
        for name, found in counts.items()
    }


def of_one_setting(view: ModelInfo, fusions: Sequence[F]) -> tuple[F, ...]:
    """Return the fusions with one setting for each name, the setting of a call if there is one.

    The others would become calls that no file can contain.
    """
    own = (node for node in view.nodes() if node.domain == DOMAIN)
    calls = [node for node in own if node.op_type in SIGNATURES]
    common = common_settings(calls)
    kept = {
        **setting_of_each([(fusion.name, fusion.setting) for fusion in fusions], common),
        **setting_of_each([(node.op_type, setting_of_call(node)) for node in calls], common),
    }
    return tuple(fusion for fusion in fusions if fusion.setting == kept[fusion.name])


def _most_common(counts: Counter[NormSetting]) -> NormSetting:
    return min(counts, key=lambda setting: (-counts[setting], setting))


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

    def is_bare(self, site: NormSite) -> bool:
        """Whether an RMSNorm becomes operators that nothing fuses, and needs no scale for that."""

    def calls_rms(self, site: NormSite) -> bool:
        """Whether a folded norm is rewritten, with a scale of ones if it has none."""

    def calls_in_place(self, site: NormSite) -> bool:
        """Whether a norm that stays goes to a kernel, or becomes one operator."""

    def multiplies(self, site: NormSite) -> bool:
        """Whether a layer norm or RMS norm always multiplies by a scale, gamma or not."""

    def stays_in_operators(self, site: NormSite) -> bool:
        """Whether a LayerNorm that stays is several operators of a session as well."""

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
