"""Fold a range of random graphs and keep what was seen: python -m tests.soundness.long_run

    python -m tests.soundness.long_run --graphs 100000 --processes 1 [--first 0]

One row per thousand seeds goes to benchmarks/results/random_graphs.csv as soon as they are done;
seeds that have a row for the same code are left out, so that a run can go on where it stopped.  A
failure is made small and written to tests/soundness/regressions, which the suite replays.  The
exit code is 1 when anything failed.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import rows
from onnxfold import analysis
from tests.soundness import corpus
from tests.soundness.checking import Outcome, check, settings_of
from tests.soundness.random_graphs import RandomGraph, random_graph

__all__ = ["Row", "main", "run_seeds"]

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = rows.RESULTS / "random_graphs.csv"
_CHUNK = 1000
_COUNTED_EVERY = 8  # the counts of the papers cost a sixth of the time and rest on the same code


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(rows.Conditions):
    """What a range of seeds gave; the counts are ``name:number`` joined by blanks."""

    code: str
    first_seed: int
    graphs: int
    failures: str
    seconds: float
    folds: int
    refused: int
    insertions: int
    weights_in_place: int
    weights_copied: int
    affine_fusions: int
    scale_fusions: int
    worst_float64: float
    types: str
    targets: str
    refusal_codes: str
    affine_refusal_codes: str
    writer_kinds: str
    laws: str
    made: str


class Tally:
    """Counts over many graphs, by family."""

    def __init__(self) -> None:
        self.count: dict[str, Counter[str]] = {}
        self.failures: list[str] = []
        self.worst = 0.0

    def of(self, family: str) -> Counter[str]:
        return self.count.setdefault(family, Counter())

    def add(self, seed: int, graph: RandomGraph, outcome: Outcome) -> None:
        """Count one graph and what became of it."""
        if outcome.failure is not None:
            self.failures.append(f"{seed}: {outcome.failure}")
        types = set(_float_types(graph))
        self.of("types").update(types)
        self.of("made").update(graph.made)
        self.of("targets")[settings_of(seed).target.value] += 1
        folded = outcome.folded
        if folded is None:
            return
        if types == {"float64"}:
            self.worst = max(self.worst, outcome.error)
        plan = folded.plan
        self.of("plan").update(
            folds=len(plan.folds),
            refused=len(folded.analysis.refusals),
            insertions=len(plan.insertions),
            weights_in_place=sum(not weight.split for weight in plan.weights),
            weights_copied=sum(weight.split for weight in plan.weights),
            affine_fusions=len(plan.fusions),
            scale_fusions=len(plan.scales),
        )
        codes = (refusal.code.value for refusal in folded.analysis.refusals.values())
        self.of("refusal_codes").update(codes)
        affine = (refusal.code.value for refusal in folded.analysis.affine_refusals.values())
        self.of("affine_refusal_codes").update(affine)
        for name, number in folded.roles.items():
            line, _, role = name.partition(" ")
            self.of("laws")[f"{line}/{role.replace(' ', '-')}"] += number
            if role == "writer":
                self.of("writer_kinds")[line] += number

    def text(self, family: str) -> str:
        found = sorted(self.of(family).items())
        return " ".join(f"{name.replace(' ', '_')}:{number}" for name, number in found)


def run_seeds(seeds: Iterable[int]) -> Tally:
    """Check the graphs of these seeds."""
    tally = Tally()
    counted = analysis._paper_count
    gc.disable()
    try:
        for number, seed in enumerate(seeds):
            graph = random_graph(seed)
            analysis._paper_count = counted if seed % _COUNTED_EVERY == 0 else _uncounted
            tally.add(seed, graph, check(graph, settings_of(seed), count_roles=True))
            if number % 50 == 0:
                gc.collect()
    finally:
        analysis._paper_count = counted
        gc.enable()
    return tally


def _uncounted(*_: object) -> int:
    return 0


def _float_types(graph: RandomGraph) -> Iterator[str]:
    names = {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16"}
    for tensor in graph.model.graph.initializer:
        if tensor.data_type in names:
            yield names[tensor.data_type]


def _row(first: int) -> Row:
    """Run one chunk."""
    start = time.perf_counter()
    tally = run_seeds(range(first, first + _CHUNK))
    plan = tally.of("plan")
    families = (
        "types", "targets", "refusal_codes", "affine_refusal_codes", "writer_kinds", "laws", "made",
    )  # fmt: skip
    fields = (
        "folds", "refused", "insertions", "weights_in_place", "weights_copied", "affine_fusions",
        "scale_fusions",
    )  # fmt: skip
    return Row(
        **rows.conditions(),
        code=_digest(),
        first_seed=first,
        graphs=_CHUNK,
        failures=" | ".join(tally.failures),
        seconds=round(time.perf_counter() - start, 1),
        worst_float64=float(f"{tally.worst:.2g}"),
        **{name: plan[name] for name in fields},
        **{family: tally.text(family) for family in families},
    )


def _digest() -> str:
    """A name for the state of the code that the result is of."""
    files = [*(ROOT / "onnxfold").rglob("*.py"), *Path(__file__).parent.rglob("*.py")]
    text = b"".join(path.read_bytes() for path in sorted(files))
    return hashlib.sha256(text).hexdigest()[:12]


def _done(results: Path) -> set[int]:
    if not results.exists():
        return set()
    code = _digest()
    return {int(row["first_seed"]) for row in rows.read(results) if row["code"] == code}


def main(arguments: list[str] | None = None) -> int:
    """Run what the arguments ask for and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soundness.long_run")
    parser.add_argument("--graphs", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--regressions", type=Path, default=corpus.FOLDER)
    given = parser.parse_args(arguments)
    done = _done(given.results)
    chunks = range(given.first, given.first + given.graphs, _CHUNK)
    waiting = [first for first in chunks if first not in done]
    failures = 0
    with multiprocessing.get_context("spawn").Pool(given.processes) as pool:
        for row in pool.imap_unordered(_row, waiting):
            rows.append(given.results, [row])
            found = row.failures.split(" | ") if row.failures else []
            failures += len(found)
            for failure in found:
                corpus.shrink_seed(int(failure.partition(":")[0]), given.regressions)
            sys.stdout.write(
                f"{row.first_seed:>8} +{row.graphs}  {row.seconds:>7.1f} s  {row.folds:>5} folds  "
                f"{len(found)} failures\n"
            )
            sys.stdout.writelines(f"    {failure}\n" for failure in found)
            sys.stdout.flush()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
