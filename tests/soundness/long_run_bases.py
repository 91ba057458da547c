"""Scale, rotate and split the streams of random graphs: python -m tests.soundness.long_run_bases

    python -m tests.soundness.long_run_bases --graphs 2000 [--first 0]

Every other graph is a residual stream in full.  Each is rewritten with options of its seed, proved,
and compared with the original in float64.  What was decided and not proved is not written; it is
compared all the same, since a decision must be right without its proof.  The run is one row of
benchmarks/results/random_bases.csv; the exit code is 1 when anything failed.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnxfold
from benchmarks import rows
from onnxfold.errors import ModelError, OnnxfoldError, WeightOverflowError
from onnxfold.target import Target
from tests.soundness.checking import ERRORS, compared, line
from tests.soundness.float64 import evaluate
from tests.soundness.long_run import float_types
from tests.soundness.random_graphs import RandomGraph, random_graph, residual_graph

__all__ = ["check_bases", "graph_of", "main", "options_of", "run_seeds"]

RESULTS = rows.RESULTS / "random_bases.csv"
CHANGES = ("scaled_streams", "rotated_streams", "rotated_heads")


def graph_of(seed: int) -> RandomGraph:
    """The model of a seed."""
    return residual_graph(random.Random(seed)) if seed % 2 else random_graph(seed)  # noqa: S311


def options_of(seed: int) -> dict[str, Any]:
    """The options of a seed: one change of basis, or two."""
    rng = random.Random(seed)  # noqa: S311 # no secret
    scale = {
        "scale_streams": rng.choice((1, 2, 5, 12, "auto")),
        "scale_margin": rng.choice((3, 15)),
    }
    turn = {"rotate": rng.choice(("hadamard", "random")), "rotation_seed": rng.randrange(9)}
    part = {"split_gamma": rng.choice((0.25, 0.5, 0.75, "auto"))}
    return {
        "target": rng.choice(list(Target)),
        "allow_split": rng.choice((0, 100, 1 << 20)),
        **rng.choice((scale, turn, part, {**scale, **turn}, {**scale, **part})),
    }


def check_bases(
    graph: RandomGraph, options: dict[str, Any], seen: Counter[str]
) -> tuple[str | None, float]:
    """Rewrite a graph, count what was done, and return what is wrong, and the error."""
    try:
        expected = evaluate(graph.model, graph.feeds, graph.operators)
    except ERRORS as error:
        return f"oracle: {line(error)}", 0.0
    try:
        result = onnxfold.optimize(graph.model, check=0, **options)
        if result.report.get("left_out"):
            raise ModelError("the proof failed in part")
    except (ModelError, WeightOverflowError) as error:
        unproved = "the proof failed" in str(error)
        seen["unproved" if unproved else "refused"] += 1
        if not unproved:
            return None, 0.0
        result = onnxfold.optimize(graph.model, check=None, **options)
    except (OnnxfoldError, *ERRORS) as error:
        return f"crash: {line(error)}", 0.0
    report = result.report
    for name in CHANGES:
        done = [each for each in report.get(name, {}).get("streams", ()) if each.get("exponent", 1)]
        seen[name] += bool(done)
    seen["split_gammas"] += bool(report.get("split_gammas", {}).get("norms"))
    return compared(graph, result.model, expected)


def run_seeds(seeds: Iterable[int]) -> tuple[Counter[str], dict[int, str], float]:
    """Check the graphs of these seeds; return counts, failures by seed, and the worst error."""
    seen, failures, worst = Counter[str](), dict[int, str](), 0.0
    gc.disable()
    try:
        for number, seed in enumerate(seeds):
            graph = graph_of(seed)
            failure, error = check_bases(graph, options_of(seed), seen)
            if failure is not None:
                failures[seed] = failure
                sys.stdout.write(f"{seed}: {failure}\n")
                sys.stdout.flush()
            if set(float_types(graph)) == {"float64"}:
                worst = max(worst, error)
            if number % 50 == 0:
                gc.collect()
    finally:
        gc.enable()
    return seen, failures, worst


def main(arguments: list[str] | None = None) -> int:
    """Run what the arguments ask for and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soundness.long_run_bases")
    parser.add_argument("--graphs", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    start = time.perf_counter()
    seen, failures, worst = run_seeds(range(given.first, given.first + given.graphs))
    # How many graphs a change was made of, or refused; ``failures``: by seed.
    row = rows.Row(
        first_seed=given.first,
        graphs=given.graphs,
        **{name: seen[name] for name in (*CHANGES, "split_gammas", "refused", "unproved")},
        failures=" | ".join(f"{seed}: {failure}" for seed, failure in failures.items()),
        seconds=round(time.perf_counter() - start, 1),
        worst_float64=float(f"{worst:.2g}"),
    )
    rows.append(given.results, [row])
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
