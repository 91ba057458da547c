"""Which gammas and betas are better left where they are, and what their norms need."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from onnxfold.graph import ModelInfo
from onnxfold.norms import NormKind, NormSite
from onnxfold.norms.quotients import may_wait
from onnxfold.options import Folding, FuseAffine, Target
from onnxfold.passes.base import Settings
from onnxfold.refusal import Refusal
from onnxfold.targets.costs import costs_of, work
from onnxfold.targets.deferral_gains import is_wanted
from onnxfold.targets.norm_forms import NORM_FORMS

Folds = Callable[[ModelInfo, Settings, frozenset[str]], frozenset[str]]


class Wanted:
    """What the options, and the norms that will fold, ask of each norm."""

    def __init__(self, info: ModelInfo, settings: Settings, folding: Folds):
        self._info, self._settings, self._folding = info, settings, folding
        self._forms = NORM_FORMS.of(info)(settings.target, settings.norm_form)
        costs = costs_of(settings.target)
        self.costs = costs.of_elements() if settings.fold is Folding.ALWAYS else costs
        self.always = settings.fuse_affine is FuseAffine.ALWAYS
        self._needed: set[str] = set()

    @cached_property
    def _folds(self) -> frozenset[str]:
        return self._which_fold(frozenset())

    def _which_fold(self, with_beta: frozenset[str]) -> frozenset[str]:
        # It takes a plan of all norms to tell; what is unproved is of gammas here.
        return self._folding(self._info, replace(self._settings, unproved={}), with_beta)

    def _will_fold(self, site: NormSite) -> bool:
        ref = self._info.ref(site.output)
        if ref in self._folds:
            self._needed.add(ref)
        return ref in self._folds

    def hold(self, with_beta: frozenset[str]) -> bool:
        """Whether the folds counted on come although some betas stay; forget those that do not."""
        come = self._which_fold(with_beta) if self._needed and with_beta else self._needed
        hold = self._needed <= come
        if not hold:
            self._folds, self._needed = self._folds & come, set()
        return hold

    def saving(self, site: NormSite, cost: int) -> int:
        """Return what a norm saves without its beta (:class:`BetaCosts`)."""
        if self.always:
            return cost + 1
        done = work(self._info.shape(site.input), site.size)
        if site.kind is NormKind.DYT:
            return self.costs.added(done)
        most = min(self.costs.added(done), self.costs.saved(done)) if self.costs.adds_beta else 0
        return most if most <= cost or self._will_fold(site) else 0

    def keep(self, site: NormSite) -> Refusal | None:
        """Say why a norm is better left with its gamma and beta, or None."""
        unproved = self._settings.refuse_unproved(self._info.ref(site.output))
        if unproved is not None:
            return unproved
        if is_wanted(self._settings) and self._goes(site):
            return None  # no norm will be left to be fused with its gamma
        why = self._forms.keep_affine(site)
        folds = why is not None and self._forms.calls_rms(site) and self._will_fold(site)
        return None if self.always or folds else why

    def _goes(self, site: NormSite) -> bool:
        """Whether a norm can be deferred; x - mean(x) is no part of it once it has folded."""
        if not site.subtracts_mean or self._settings.defer_means:
            return may_wait(site)
        if site.kind is not NormKind.LAYER_NORM:
            return False
        read = tuple(value for value in site.escaping if value not in site.centred)
        folded = replace(site, kind=NormKind.RMS_NORM, escaping=read)
        return may_wait(folded) and self._will_fold(site)

    def stays(self, site: NormSite) -> bool:
        """Whether a norm multiplies by a scale whatever its gamma."""
        if self._settings.convert_to is not None or is_wanted(self._settings):
            return False  # what is deferred is one number per row, without a scale
        return self._forms.multiplies(site)

    def scaled(self, site: NormSite) -> bool:
        """Whether a norm without gamma is written with a product."""
        written = self._settings.target is Target.ONNX and self._forms.spells_rms(site)
        return written and self.stays(site) and self._will_fold(site)
