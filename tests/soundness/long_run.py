"""Fold a range of random graphs and keep what was seen: python -m tests.soundness.long_run

    python -m tests.soundness.long_run --graphs 100000 --processes 1 [--first 0]

One row per thousand seeds goes to --chunks as soon as they are done; seeds that have a row there
for the same code are left out, so that a run can go on where it stopped.  Their sum, one row for
the run, goes to benchmarks/results/random_graphs.csv when all of them are done.  A failure is made
small and written to tests/soundness/regressions, which the suite replays.  The exit code is 1 when
anything failed.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks import rows
from tests.soundness import corpus
from tests.soundness.checking import Outcome, check, settings_of
from tests.soundness.random_graphs import RandomGraph, random_graph

__all__ = ["Row", "float_types", "main", "run_seeds", "text"]

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = rows.RESULTS / "random_graphs.csv"
CHUNKS = ROOT / "build" / "random_graphs.csv"
_CHUNK = 1000
_CONDITIONS = tuple(field.name for field in fields(rows.Conditions))
_FAMILIES = (
    "types", "targets", "refusal_codes", "affine_refusal_codes", "writer_kinds", "laws", "made",
)  # fmt: skip
_COUNTS = (
    "folds", "refused", "insertions", "weights_in_place", "weights_copied", "affine_fusions",
    "scale_fusions",
)  # fmt: skip


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
        types = set(float_types(graph))
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
            refused=len(folded.findings.refusals),
            insertions=len(plan.insertions),
            weights_in_place=sum(not weight.split for weight in plan.weights),
            weights_copied=sum(weight.split for weight in plan.weights),
            affine_fusions=len(plan.fusions),
            scale_fusions=len(plan.scales),
        )
        codes = (refusal.code.value for refusal in folded.findings.refusals.values())
        self.of("refusal_codes").update(codes)
        affine = (refusal.code.value for refusal in folded.findings.affine_refusals.values())
        self.of("affine_refusal_codes").update(affine)
        for name, number in folded.roles.items():
            line, _, role = name.partition(" ")
            self.of("laws")[f"{line}/{role.replace(' ', '-')}"] += number
            if role == "writer":
                self.of("writer_kinds")[line] += number

    def text(self, family: str) -> str:
        return text(self.of(family))


def text(counts: Counter[str]) -> str:
    """Write counts as ``name:number`` joined by blanks."""
    return " ".join(f"{name.replace(' ', '_')}:{counts[name]}" for name in sorted(counts))


def _counts(texts: Iterable[str]) -> Counter[str]:
    """Read what :func:`text` wrote, and add it up."""
    total: Counter[str] = Counter()
    for word in " ".join(texts).split():
        name, _, number = word.rpartition(":")
        total[name] += int(number)
    return total


def run_seeds(seeds: Iterable[int]) -> Tally:
    """Check the graphs of these seeds."""
    tally = Tally()
    gc.disable()
    try:
        for number, seed in enumerate(seeds):
            graph = random_graph(seed)
            tally.add(seed, graph, check(graph, settings_of(seed), count_roles=True))
            if number % 50 == 0:
                gc.collect()
    finally:
        gc.enable()
    return tally


def float_types(graph: RandomGraph) -> Iterator[str]:
    """Yield the type of every weight that is a float."""
    names = {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16"}
    for tensor in graph.model.graph.initializer:
        if tensor.data_type in names:
            yield names[tensor.data_type]


def _row(first: int) -> Row:
    """Run one chunk."""
    start = time.perf_counter()
    tally = run_seeds(range(first, first + _CHUNK))
    plan = tally.of("plan")
    return Row(
        **rows.conditions(),
        code=_digest(),
        first_seed=first,
        graphs=_CHUNK,
        failures=" | ".join(tally.failures),
        seconds=round(time.perf_counter() - start, 1),
        worst_float64=float(f"{tally.worst:.2g}"),
        **{name: plan[name] for name in _COUNTS},
        **{family: tally.text(family) for family in _FAMILIES},
    )


def total(chunks: Sequence[dict[str, str]]) -> Row:
    """Add the rows of chunks up; the conditions are the first one's."""
    given: dict[str, Any] = {name: chunks[0][name] for name in _CONDITIONS}
    given |= {name: sum(int(chunk[name]) for chunk in chunks) for name in _COUNTS}
    given |= {name: text(_counts(chunk[name] for chunk in chunks)) for name in _FAMILIES}
    return Row(
        **given,
        code=chunks[0]["code"],
        first_seed=min(int(chunk["first_seed"]) for chunk in chunks),
        graphs=sum(int(chunk["graphs"]) for chunk in chunks),
        failures=" | ".join(chunk["failures"] for chunk in chunks if chunk["failures"]),
        seconds=round(sum(float(chunk["seconds"]) for chunk in chunks), 1),
        worst_float64=max(float(chunk["worst_float64"]) for chunk in chunks),
    )


def _digest() -> str:
    """A name for the state of the code that the result is of."""
    files = [*(ROOT / "onnxfold").rglob("*.py"), *Path(__file__).parent.rglob("*.py")]
    text = b"".join(path.read_bytes() for path in sorted(files))
    return hashlib.sha256(text).hexdigest()[:12]


def _done(given: argparse.Namespace) -> list[dict[str, str]]:
    """The rows of this run's chunks that an earlier start of it left."""
    if not given.chunks.exists():
        return []
    wanted = range(given.first, given.first + given.graphs)
    code = _digest()
    known = rows.read(given.chunks)
    return [row for row in known if row["code"] == code and int(row["first_seed"]) in wanted]


def main(arguments: list[str] | None = None) -> int:
    """Run what the arguments ask for and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soundness.long_run")
    parser.add_argument("--graphs", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--chunks", type=Path, default=CHUNKS)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--regressions", type=Path, default=corpus.FOLDER)
    given = parser.parse_args(arguments)
    ready = {int(row["first_seed"]) for row in _done(given)}
    chunks = range(given.first, given.first + given.graphs, _CHUNK)
    waiting = [first for first in chunks if first not in ready]
    with multiprocessing.get_context("spawn").Pool(given.processes) as pool:
        for row in pool.imap_unordered(_row, waiting):
            rows.append(given.chunks, [row])
            found = row.failures.split(" | ") if row.failures else []
            for failure in found:
                corpus.shrink_seed(int(failure.partition(":")[0]), given.regressions)
            sys.stdout.write(
                f"{row.first_seed:>8} +{row.graphs}  {row.seconds:>7.1f} s  {row.folds:>5} folds  "
                f"{len(found)} failures\n"
            )
            sys.stdout.writelines(f"    {failure}\n" for failure in found)
            sys.stdout.flush()
    run = total(_done(given))
    rows.append(given.results, [run])
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
