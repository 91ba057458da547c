"""The original's own runs in ONNX Runtime, with all graph optimizations and with none."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from onnxfold.check.criterion import SMALLEST_NORMAL, rms
from onnxfold.check.reference import Array, is_wide_float
from onnxfold.check.result import FAR, ModelSource
from onnxfold.check.runners import CannotRun, OnnxRuntime, Outputs, why_not_onnxruntime


@dataclass(frozen=True, slots=True)
class OwnRuns:
    """The runs of one model, each made once for the same arrays."""

    original: ModelSource
    engine: OnnxRuntime
    _known: list[tuple[Outputs, Outputs, Outputs]] = field(default_factory=list, repr=False)

    def of(self, feeds: Sequence[Outputs]) -> list[list[Outputs]]:
        """Return the outputs with optimizations, and without, per sample; raises CannotRun."""
        known = {id(feed) for feed, *_ in self._known}
        new = [feed for feed in feeds if id(feed) not in known]
        if new:
            plain, best = (self.engine.run(self.original, new, optimize=on) for on in (False, True))
            self._known.extend(zip(new, best, plain, strict=True))
        found = {id(feed): runs for feed, *runs in self._known}
        return [[found[id(feed)][way] for feed in feeds] for way in (0, 1)]

    def are_scattered(self, feeds: Sequence[Outputs]) -> bool:
        """Whether one of both runs must be FAR from any truth, in some sample of every output.

        By the triangle inequality: errors of at most FAR times the truth each, and so of FAR / (1 -
        FAR) times the run itself, make no larger distance between the runs than both together.
        """
        if why_not_onnxruntime(self.original.model) is not None:
            return False
        try:
            runs = list(zip(*self.of(feeds), strict=True))
        except CannotRun:  # a float64 run may show why, and `gather` reports it otherwise
            return False
        return all(any(_is_far(a[name], b[name]) for a, b in runs) for name in runs[0][0])


def _is_far(best: Array, plain: Array) -> bool:
    if best.shape != plain.shape or not is_wide_float(plain.dtype):
        return False
    a, b = best.astype(np.float64), plain.astype(np.float64)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return False
    return rms(a - b) > 2 * max(FAR / (1 - FAR) * rms(b), SMALLEST_NORMAL)
