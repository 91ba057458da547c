"""The search: every chain is built, judged and timed, then the fastest compete in a final."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from onnxfold.check.runners import Outputs
from onnxfold.graph.constants import Float64
from onnxfold.model_io.load import open_source
from onnxfold.tuning.chains import Chain, spelled
from onnxfold.tuning.facts import ModelFacts
from onnxfold.tuning.options import TargetPrecision, TuneOptions
from onnxfold.tuning.processes import JobFailed, JobTookTooLong
from onnxfold.tuning.steps import STEPS
from onnxfold.tuning.trials import Gate, Trials
from onnxfold.tuning.tune_result import Candidate, Status, model_bytes
from onnxfold.tuning.workshop import BudgetSpent, Made, Workshop, missing_packages

_FINALISTS = 5
# The error of a short measurement: candidates this close to the fastest reach the final.
_NEAR = 0.9
_Z95 = 1.96


def finalists(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the input and the correct candidates that were fastest in a short measurement.

    Candidates without kernels have reserved places, because not everybody can register a library.
    """
    timed = [c for c in candidates if c.chain and c.status is Status.RIGHT and c.ratio is not None]
    ranked = sorted(timed, key=lambda candidate: -(candidate.ratio or 0.0))
    if not ranked:
        return [c for c in candidates if not c.chain]
    least = _NEAR * (ranked[0].ratio or 0.0)
    chosen = [c for c in ranked if (c.ratio or 0.0) >= least][:_FINALISTS]
    plain = next((c for c in ranked if not c.kernels), None)
    if plain is not None and plain not in chosen:
        chosen.append(plain)
    return [*(c for c in candidates if not c.chain), *chosen]


def challengers(
    candidates: Sequence[Candidate], entrants: Sequence[Candidate], seconds: Float64
) -> list[Candidate]:
    """Return correct candidates outside the final whose short measurement beats its winner's time.

    The machine was disturbed during one of the two, so only a final with them can tell. Those with
    which it failed have a reason, and are left out.
    """
    least = winner(entrants, seconds).ratio or 0.0
    right = (c for c in candidates if c.status is Status.RIGHT and c not in entrants)
    faster = [c for c in right if not c.reason and (c.ratio or 0.0) > least]
    return sorted(faster, key=lambda candidate: -(candidate.ratio or 0.0))[:_FINALISTS]


def note_times(entrants: Sequence[Candidate], seconds: Float64) -> None:
    """Record the final: [entrant, round] seconds, ratios to the first, round by round."""
    for entrant, row in zip(entrants, seconds, strict=True):
        low, ratio, high = np.percentile(seconds[0] / row, (10, 50, 90))
        entrant.milliseconds = float(1e3 * np.median(row))
        entrant.ratio_low, entrant.ratio, entrant.ratio_high = float(low), float(ratio), float(high)


def winner(entrants: Sequence[Candidate], seconds: Float64) -> Candidate:
    """Return the fastest entrant, or the simplest of those statistically equal to it.

    An entrant is equal to the fastest if the 95 % confidence interval of the median of their ratio,
    round by round, contains 1. Simple means without a library and with few steps.
    """
    medians = np.median(seconds[0] / seconds, axis=1)
    best = int(np.argmax(medians))
    equals = [
        index
        for index, row in enumerate(seconds)
        if index == best or least_median(row / seconds[best]) <= 1.0
    ]
    simplest = min(equals, key=lambda i: (entrants[i].kernels, len(entrants[i].chain), -medians[i]))
    return entrants[simplest]


def least_median(ratios: Float64) -> float:
    """Return the lower end of the 95 % confidence interval of the median, by order statistics."""
    count = len(ratios)
    rank = math.floor((count - _Z95 * math.sqrt(count)) / 2)
    return float(np.sort(ratios)[max(rank, 0)])


# The final's share of the budget, and its maximum in seconds.
_FINAL_SHARE, _FINAL_S = 0.2, 60.0
_FIRST_RACE = 0.6  # of the final; the rest is for those who seem faster than its winner
# How many of the nodes to blame stay unchanged when a candidate over its budget is rebuilt.
_LEFT_ALONE = (2, 8, 24)
# The time limit for comparing the nodes of a winner with the input's, one by one.
_LOOK_S = 120.0


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """Progress of a run: finished candidates of all, current work, best so far, time left."""

    done: int
    total: int
    doing: str
    best: Candidate | None
    seconds_left: float


Listener = Callable[[SearchProgress], None]


@dataclass(slots=True)
class Search:
    """The candidates so far, with their judge and timing; the first is the input."""

    options: TuneOptions
    facts: ModelFacts
    gate: Gate
    workshop: Workshop
    trials: Trials
    end: float
    listener: Listener | None
    candidates: list[Candidate]
    digests: dict[str, Chain] = field(default_factory=dict)
    final: tuple[list[Candidate], Float64] | None = None

    @property
    def best(self) -> Candidate | None:
        """The fastest correct candidate so far other than the input, or None."""
        right = [c for c in self.candidates if c.chain and c.status is Status.RIGHT]
        return max(right, key=lambda candidate: candidate.ratio or 0.0, default=None)

    def run(self, wanted: Sequence[Chain]) -> None:
        """Build, judge and time every chain, until the budget ends or the user interrupts."""
        first = self.workshop.build((), self.end)
        self.digests[first.digest] = ()
        final = min(_FINAL_S, _FINAL_SHARE * self.options.budget)
        stop = self.end - final
        todo = [Candidate(chain) for chain in wanted if chain]
        self.candidates += todo
        try:
            with ThreadPoolExecutor(self.options.jobs) as pool:
                for number, (candidate, made) in enumerate(self._built(todo, pool, stop)):
                    self._tell(number, len(todo), candidate.name)
                    self._tried(candidate, made, stop)
            if len(self.options.chains) != 1 and self.options.timed:
                self._tell(len(todo), len(todo), "timing the fastest in turns")
                self._final(final)
        except KeyboardInterrupt:
            if self.best is None:
                raise

    def _tell(self, done: int, total: int, doing: str) -> None:
        if self.listener is not None:
            left = max(0.0, self.end - time.monotonic())
            self.listener(SearchProgress(done, total, doing, self.best, left))

    def _built(
        self, todo: Sequence[Candidate], pool: ThreadPoolExecutor, stop: float
    ) -> Iterator[tuple[Candidate, Future[Made] | None]]:
        """Yield candidates with the file that is being built, as many at once as there are jobs."""
        waiting = [c for c in todo if self._is_possible(c)]
        futures: dict[int, Future[Made]] = {}
        for index, candidate in enumerate(waiting):
            for ahead in range(index, min(index + self.options.jobs, len(waiting))):
                if ahead not in futures and time.monotonic() < stop:
                    futures[ahead] = pool.submit(self.workshop.build, waiting[ahead].chain, stop)
            yield candidate, futures.get(index)

    def _is_possible(self, candidate: Candidate) -> bool:
        missing = missing_packages(candidate.chain)
        if missing:
            candidate.status = Status.MISSING
            candidate.reason = f"needs {', '.join(missing)}: pip install 'onnxfold[tune]'"
        return not missing

    def _tried(self, candidate: Candidate, made: Future[Made] | None, stop: float) -> None:
        """Judge a candidate and time it once, each as far as possible."""
        if made is None or time.monotonic() >= stop:
            candidate.reason = str(BudgetSpent())
            return
        start = time.monotonic()
        try:
            self._judged(candidate, made.result(), stop)
        except BudgetSpent as error:
            candidate.reason = str(error)
        except JobTookTooLong as error:
            late = time.monotonic() >= stop
            candidate.status = Status.SKIPPED if late else Status.FAILED
            candidate.reason = str(BudgetSpent() if late else error)
        except JobFailed as error:
            candidate.status, candidate.reason = Status.FAILED, str(error)
        candidate.seconds = time.monotonic() - start

    def _judged(self, candidate: Candidate, made: Made, stop: float) -> None:
        same = self.digests.get(made.digest)
        if same is not None:
            candidate.status, candidate.reason = Status.SAME, f"the same file as {spelled(same)}"
            return
        self.digests[made.digest] = candidate.chain = made.chain
        self._measured(candidate, made, stop)
        if candidate.status is Status.WRONG and STEPS[made.chain[-1]].takes_exclusions:
            self._tried_without_blamed(candidate, made, stop)

    def _tried_without_blamed(self, candidate: Candidate, made: Made, stop: float) -> None:
        """Rebuild a candidate over its error budget without the nodes that err most."""
        before = self.workshop.build(candidate.chain[:-1], stop)
        ranked = self.trials.ranked(before.path, made.path, stop - time.monotonic())
        for count in _LEFT_ALONE:
            if candidate.status is Status.RIGHT or not ranked or time.monotonic() >= stop:
                return
            candidate.excluded = tuple(ranked[:count])
            made = self.workshop.build(candidate.chain, stop, candidate.excluded)
            self._measured(candidate, made, stop)

    def _measured(self, candidate: Candidate, made: Made, stop: float) -> None:
        candidate.path, candidate.nbytes = made.path, model_bytes(made.path)
        seconds = max(1.0, min(self.options.step_seconds, stop - time.monotonic()))
        trial = self.trials.run(made.path, seconds, kernels=candidate.kernels)
        candidate.operators = trial.operators
        candidate.milliseconds, candidate.ratio = trial.milliseconds, trial.ratio
        changed = open_source(made.path)

        def run(optimize: bool) -> list[Outputs]:
            if optimize:
                return trial.outputs
            plain = self.trials.run(made.path, seconds, kernels=candidate.kernels, optimize=False)
            return plain.outputs

        verdict = self.gate.judge(run, changed, candidate.precision)
        candidate.status = Status.RIGHT if verdict.passed else Status.WRONG
        candidate.errors, candidate.reason = verdict.errors, verdict.reason

    def _final(self, seconds: float) -> None:
        """Time the fastest in turns, then once more with those that seemed faster than the winner.

        A short measurement at a moment when the machine was disturbed kept these out.
        """
        self._race(finalists(self.candidates), _FIRST_RACE * seconds)
        if self.final is not None:
            entrants, spent = self.final
            late = challengers(self.candidates, entrants, spent)
            if late:
                self._race([*entrants, *late], (1 - _FIRST_RACE) * seconds)

    def _race(self, entrants: list[Candidate], seconds: float) -> None:
        """Time entrants in turns and record the result; with fewer of them if that fails."""
        while len(entrants) > 1:
            try:
                spent = self.trials.race(entrants, seconds)
            except JobFailed as error:
                entrants.pop().reason = f"not in the final, which failed with it: {error}"
                continue
            note_times(entrants, spent)
            self.final = entrants, spent
            return

    def chosen(self) -> Candidate | None:
        """Return the candidate to write, or None if no requested one is correct.

        The outputs of a model of reduced precision may be close enough although one of its nodes is
        wrong, so each winner is examined, and a broken one is replaced by the next.
        """
        while True:
            found = self._fastest()
            if found is None or found.precision is TargetPrecision.FP32:
                return found
            try:
                fault = self._fault(found)
            except (JobFailed, BudgetSpent) as error:
                found.reason = f"its nodes were not compared one by one: {error}"
                return found
            if fault is None:
                return found
            found.status, found.reason = Status.WRONG, f"the outputs are right, but {fault}"

    def _fault(self, found: Candidate) -> str | None:
        """Return what no precision explains after the step that reduces it, or None.

        Files before and after that step are compared: other steps may rightly change values.
        """
        steps = (STEPS[name].precision for name in found.chain)
        reduced = next(n for n, each in enumerate(steps) if each is not TargetPrecision.FP32)
        stop = time.monotonic() + _LOOK_S
        before = self.workshop.build(found.chain[:reduced], stop)
        after = self.workshop.build(found.chain[: reduced + 1], stop, found.excluded)
        allowed = self.gate.budget(found.precision).relative
        judged = self.gate.judged_on
        return self.trials.fault(before.path, after.path, judged, allowed, _LOOK_S)

    def _fastest(self) -> Candidate | None:
        """Return the correct candidate that won the final, or that seems the fastest.

        Without a final, as after an interruption, the first short measurement decides; without the
        device, the order of chains decides, reduced precisions first.
        """
        right = [c for c in self.candidates[1:] if c.status is Status.RIGHT]
        if not right and not self._keeps_precision:
            return None
        if right and (len(self.options.chains) == 1 or not self.options.timed):
            return min(right, key=lambda candidate: candidate.precision is TargetPrecision.FP32)
        best = self.best
        if self.final is not None:
            entrants, spent = self.final
            still = [n for n, entrant in enumerate(entrants) if entrant.status is Status.RIGHT]
            return winner([entrants[n] for n in still], spent[still])
        faster = best is not None and (best.ratio or 0.0) > 1.0
        return best if faster else self.candidates[0]

    @property
    def _keeps_precision(self) -> bool:
        """Whether the input itself is a valid result."""
        return TargetPrecision.FP32 in self.options.precision and not self.options.chains
