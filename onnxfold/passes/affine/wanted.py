"""Which gammas and betas are better left where they are, and what their norms need.

Gammas that would spoil a later quantization to int8 if moved: few elements far from the rest.

Of a product y W with y = n * g, rounded to 8 bits over the range of each tensor, the error relative
to the result is about

    e^2 = c(y)^2 + c(W)^2,        c(t) = max|t| / rms(t), the crest of a tensor

with rms over the elements as they meet in the product. After the move it is c(n)^2 + c(g W)^2. Of n
only the mean square 1 is known: the largest of all channels is assumed to be 4, of one channel 2.5,
as in a hundred rows of normal numbers. The ratio of the errors of ONNX Runtime's quantize_dynamic
after and before a move is 0.81 to 1.02 times the prediction of this formula, in single layers with
one scale per tensor (benchmarks/results/gamma_int8.csv), and larger in whole models. A gamma that
is far from even therefore moves only if the formula predicts an error lower by a fifth, and a less
uneven one if it predicts a growth of less than a half. With one scale per column, the move reduces
the error.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property

import numpy as np

from onnxfold.graph import ModelInfo
from onnxfold.graph.constants import Float64
from onnxfold.norms import NormKind, NormSite
from onnxfold.norms.quotients import may_wait
from onnxfold.options import Folding, FuseAffine
from onnxfold.passes.affine.plan import Absorption
from onnxfold.passes.base import Settings
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.targets.costs import costs_of, is_wanted, work
from onnxfold.targets.norm_settings import NORM_FORMS
from onnxfold.weights.affine_parts import Weight
from onnxfold.weights.edited import evaluated

Folds = Callable[[ModelInfo, Settings, frozenset[str]], frozenset[str]]
# Ratio of the largest to the root mean square: a few outliers, which normal numbers rarely have, or
# many.
SPREAD, _EVEN = 4.0, 2.5
_FALLS, _GROWS = 0.8, 1.5
_OF_ALL, _OF_ONE = 4.0, 2.5


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
        if self._forms.is_bare(site) and self._will_fold(site):
            return False
        return self._forms.multiplies(site)

    def scaled(self, site: NormSite) -> bool:
        """Whether a norm without gamma is written with a product."""
        written = self._settings.target.traits.standard and self._forms.spells_rms(site)
        return written and self.stays(site) and self._will_fold(site)


def refuse_outlying(
    view: ModelInfo, name: str, gamma: Float64, readers: Iterable[Absorption]
) -> Refusal | None:
    """Refuse a gamma that would spoil a later int8 quantization of a layer that absorbs it."""
    spread = spread_of(gamma)
    if spread <= _EVEN:
        return None
    grown = {reader.weight.value: _of_reader(view, gamma, reader) for reader in readers}
    weight = max(grown, key=lambda each: grown[each], default="")
    if not weight or grown[weight] < (_FALLS if spread > SPREAD else _GROWS):
        return None
    sentence = (
        f"gamma of '{name}' has elements of {spread:.3g} times its root mean square, which a later "
        f"int8 of weight '{weight}' may suffer from (error times about {grown[weight]:.2f}), "
        "and the norm multiplies by gamma for free"
    )
    return Refusal(RefusalCode.OUTLYING_GAMMA, sentence, (name,))


def spread_of(gamma: Float64) -> float:
    """Return the ratio of the largest |gamma| to their root mean square, 1 for zeros."""
    largest = float(np.abs(gamma).max(initial=0.0))
    return largest / float(np.sqrt(np.mean(gamma**2))) if largest else 1.0


def growth(gamma: Float64, W: Weight, factor: Float64) -> float:
    """Return the ratio of int8 errors after and before the move of gamma.

    ``factor`` is gamma as it broadcasts against W.
    """
    largest = scaled = power = together = factors = 0.0

    def sums(start: int, chunk: Float64) -> tuple[float, ...]:
        rows = slice(start, start + chunk.shape[0])
        g = factor[rows] if factor.shape[0] > 1 else factor
        product, squares = chunk * g, float(np.broadcast_to(g * g, chunk.shape).sum())
        maxima = float(np.abs(chunk).max(initial=0.0)), float(np.abs(product).max(initial=0.0))
        return (*maxima, float(np.vdot(chunk, chunk)), float(np.vdot(product, product)), squares)

    for part in W.mapped(sums):
        largest, scaled = max(largest, part[0]), max(scaled, part[1])
        power, together, factors = power + part[2], together + part[3], factors + part[4]
    if not together:
        return 1.0
    mean_square = float(np.mean(gamma**2))
    count = factors / mean_square
    sizes = max(_OF_ONE * float(np.abs(gamma).max()), _OF_ALL * float(np.sqrt(mean_square)))
    before = sizes**2 * power / together + largest**2 * factors / together
    after = _OF_ALL**2 + scaled**2 * count / together
    return float(np.sqrt(after / before))


def _of_reader(view: ModelInfo, gamma: Float64, reader: Absorption) -> float:
    tensor = view.tensor(view.by_ref()[reader.weight.value])
    if tensor is None:
        return 1.0
    shape = tuple(tensor.shape.numpy())
    placed = reader.placed(gamma, 1.0)
    return growth(placed, evaluated(tensor), reader.weight.channels.spread(placed, shape))
