"""Results of `onnxfold tune` on whole models: every candidate, its error and its time.

    python -m benchmarks.tune EXPORTS [--models NAME ...] [--dtypes fp16 fp32] [--budget S]
    python -m models.skeleton strip gpt2.onnx -o models/fp32/gpt2.onnx      (for another machine)
    python -m benchmarks.tune MODELS --device cuda

EXPORTS contains fp16/NAME.onnx and fp32/NAME.onnx, exports or skeletons of exports, which need no
torch; a skeleton is filled with random weights first. From an fp32 export `tune` may keep the
precision or reduce it within its error budget, to int8 on a CPU and to float16 on a GPU; an fp16
export keeps its own. A ratio compares with ONNX Runtime on the export itself: on a CPU by the
processor time of one thread, on a GPU with inputs and outputs on the device and with CUDA graphs
where a session takes them. ``--sequence gpt2=128`` gives one model another sequence than the rest,
``--inputs decoder=ids:1,1 decoder=past.0.key:1,12,128,64`` all that it needs. Truth and outputs of
a language model are as large as its vocabulary.

``--exhaustive S`` then times every right candidate for S seconds more, and appends to
benchmarks/results/tune_exhaustive.csv how near the winner is to the best; give ``--case`` enough
that nothing is cut off.

Prints rows and appends them to benchmarks/results/tune.csv, gpu_tune.csv on a GPU, after every
export; the budget is divided among the exports that are left, and the winners come last.  An
interruption ends the export at hand, with the rows that it has, and the program.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime as ort

import onnxfold
from benchmarks.gpu import device_named
from benchmarks.harness import BUDGET, CPU, Budget, arguments, failed, quantiles
from benchmarks.rows import RESULTS, Row, append, tell
from benchmarks.subjects import filled, first_input, scratch_in
from onnxfold import model_io
from onnxfold.graph.constants import Array, Float64
from onnxfold.inputs import InputSpec, make_inputs
from onnxfold.runtime.interleaved_timing import RunCounts, Variant, take_turns
from onnxfold.runtime.sessions import available_bytes
from onnxfold.tuning.tune_result import Candidate, Status, TuneResult
from onnxfold.tuning.tuner import TuneFailed

__all__ = ["PRECISIONS", "against_best", "main"]

# What `tune` may do with exports of a type; "fp32" keeps the type that they have.
PRECISIONS: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("cpu", "fp32"): ("fp32", "int8"),
    ("cuda", "fp32"): ("fp32", "fp16"),
    ("cpu", "fp16"): ("fp32",),
    ("cuda", "fp16"): ("fp32",),
}
_MODELS: Final = ("bert-base", "vit-b16", "gpt2")
_FILES: Final = {"cpu": "tune.csv", "cuda": "gpu_tune.csv"}
# A file of the search, whose folder is this machine's alone; names of nodes may begin with / too.
_OF_SEARCH: Final = re.compile(r"'/[^']*/\.onnxfold-[^']*/([^'/]+)'")
_ROUNDS, _LEAST = 60, 15  # of all candidates
_MEMORY_OF_FILE = 3  # of a session, in sizes of its file, while it is opened
_LEAST_S = 20.0  # with less of the budget left no export begins


def main(words: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for and return the exit code."""
    options = _options(words)
    budget, rows = Budget(options.budget), list[Row]()
    cases = list(_cases(options))
    try:
        for number, (name, dtype, given) in enumerate(cases):
            seconds = min(options.case, budget.left / (len(cases) - number))
            if budget.left < _LEAST_S:
                print(f"the budget is spent: {name} {dtype} is left out", flush=True)
                budget.incomplete = True
                continue
            with budget.case(f"{name} {dtype}"):
                case = _tuned(name, dtype, given, seconds, options)
                append(options.out or RESULTS / _FILES[options.device], case)
                tell(case)
                rows += case
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        budget.incomplete = True
    tell(row for row in rows if row.winner)
    return int(budget.incomplete) if rows else 2


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    return arguments(
        __doc__,
        {
            "folder": Path,
            "--models": list(_MODELS),
            "--dtypes": ("fp32", "fp16"),
            "--batch": 8,
            "--sequence": {"nargs": "+", "default": ["512"], "help": "N, or NAME=N for one model"},
            "--inputs": {"nargs": "+", "default": [], "metavar": "MODEL=INPUT:SIZES"},
            "--samples": {"type": int, "default": 1, "help": "sets of inputs of the check"},
            "--device": {"choices": ["cuda", "cpu"], "default": "cpu"},
            "--jobs": {"type": int, "default": 2, "help": "files that are built at once"},
            "--budget": BUDGET,
            "--case": {"type": float, "default": 600.0, "help": "seconds of one export, at most"},
            "--chains": {"nargs": "+", "default": [], "help": "these alone, not those of tune"},
            "--exhaustive": {"type": float, "help": "seconds for all candidates, on a CPU"},
            "--scratch": {"type": Path, "help": "folder for the models that are made"},
            "--reports": {"type": Path, "help": "folder for the report of every export"},
            "--out": {"type": Path, "help": "default: tune.csv or gpu_tune.csv in results"},
            "--out-exhaustive": {"type": Path, "help": "default: tune_exhaustive.csv there"},
        },
        words,
    )


def _cases(options: argparse.Namespace) -> Iterator[tuple[str, str, Path]]:
    for dtype, name in product(options.dtypes, options.models):
        given = options.folder / dtype / f"{name}.onnx"
        if given.exists():
            yield name, dtype, given
        else:
            print(f"{given} is not there: left out", flush=True)


def _tuned(
    name: str, dtype: str, given: Path, seconds: float, options: argparse.Namespace
) -> list[Row]:
    """Tune an export and return a row for every candidate."""
    with scratch_in(options.scratch) as scratch:
        source = filled(given, scratch)
        batch, sequence = options.batch, _sequence(name, options.sequence)
        inputs = [t.removeprefix(f"{name}=") for t in options.inputs if t.startswith(f"{name}=")]
        inputs = inputs or [first_input(model_io.load(source), batch, sequence)]
        batch, *others = map(int, inputs[0].rpartition(":")[2].split(","))
        sequence = others[0] if len(others) == 1 else 0
        kept = Path(scratch, "kept") if options.exhaustive else None
        try:
            result = onnxfold.tune(
                source,
                Path(scratch, "tuned.onnx"),
                device=options.device,
                precision=PRECISIONS[options.device, dtype],
                inputs=tuple(inputs),
                samples=options.samples,
                chains=tuple(options.chains),
                jobs=options.jobs,
                budget=seconds,
                keep_candidates=kept,
            )
        except TuneFailed as error:  # with a row for everything that was wrong
            failed(f"{name} {dtype}", error)
            result = error.result
        about = {"onnxruntime": ort.__version__, "model": name, "dtype": dtype}
        about |= {"batch": batch, "sequence": sequence}
        if kept is not None and result.winner is not None:
            row = against_best(result, source, kept, inputs, options.exhaustive, about)
            append(options.out_exhaustive or RESULTS / "tune_exhaustive.csv", [row])
            print(f"{row.winner}: {row.of_best:.3f} of {row.best}", flush=True)
    if options.reports is not None:
        options.reports.mkdir(parents=True, exist_ok=True)
        document = json.dumps(result.report, indent=1)
        (options.reports / f"{name}-{dtype}.json").write_text(document, encoding="utf-8")
    device = {"onnxruntime": ort.__version__, "device": device_named(options.device)}
    about = {**device, **about, "samples": options.samples}
    return [_row(about, candidate, result) for candidate in result.candidates]


def _sequence(name: str, given: Sequence[str]) -> int:
    """Return the sequence of a model: its own, or the one that is given without a name."""
    named = dict(text.rpartition("=")[::2] for text in given)
    return int(named.get(name, named.get("", "512")))


def _row(about: Mapping[str, Any], candidate: Candidate, result: TuneResult) -> Row:
    # One candidate for one export at one size; ``sequence`` is 0 for images. ``ratio`` is how many
    # times as fast as the export it is: the median over rounds with the 10th and 90th percentile,
    # or the median alone where the candidate was not in the final.  ``errors`` are the worst of any
    # output and sample, against a float64 run of the export.
    return Row(
        **about,
        chain=candidate.name,
        precision=candidate.precision.value,
        kernels=candidate.kernels,
        status=candidate.status.value,
        winner=candidate is result.winner,
        milliseconds=_rounded(candidate.milliseconds),
        ratio=_rounded(candidate.ratio),
        ratio_low=_rounded(candidate.ratio_low),
        ratio_high=_rounded(candidate.ratio_high),
        errors="; ".join(f"{name} {value:.3g}" for name, value in candidate.errors.items()),
        session_nodes=candidate.session_nodes,
        excluded=len(candidate.excluded),
        bytes=candidate.nbytes,
        seconds=round(candidate.seconds, 1),
        reason=_OF_SEARCH.sub(r"'\1'", candidate.reason or ""),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)


def against_best(
    result: TuneResult,
    source: Path,
    kept: Path,
    inputs: Sequence[str],
    seconds: float,
    about: dict[str, Any],
) -> Row:
    """Time every right candidate of a result at length; ``kept`` has their files.

    `tune` times most candidates for a moment and a few at length; here all that are right take
    turns at length, in one process, by the processor time of one thread. Where memory does not
    hold a session of each, they race in groups with the winner, and the fastest of each after
    that. The winner and the best then race twice in new sessions, each once opened first, so
    that neither gains by its turn or its place in memory.
    """
    entrants = [c for c in result.candidates if c.status is Status.RIGHT or not c.chain]
    files = [_file(result, each, source, kept) for each in entrants]
    winner = next(n for n, each in enumerate(entrants) if each is result.winner)
    (feeds,) = make_inputs(
        model_io.load(source), InputSpec.of(tuple(inputs)), count=1, seed=0, single=True
    )

    def raced(numbers: Sequence[int]) -> Float64:
        runs = [_run_of(Variant(files[n], entrants[n].kernels), feeds) for n in numbers]
        return take_turns(runs, RunCounts(_ROUNDS, _LEAST, seconds, clock=time.process_time))

    def best_of(heat: Sequence[int]) -> int:
        numbers = [winner, *heat]
        spent = raced(numbers)
        return numbers[int(np.argmax(np.median(spent[0] / spent, axis=1)))]

    heats = _heats([path.stat().st_size for path in files], winner)
    firsts = [best_of(heat) for heat in heats]
    best = firsts[0] if len(heats) == 1 else best_of(firsts)
    first, second = raced([winner, best]), raced([best, winner])
    ratios = np.concatenate([first[1] / first[0], second[0] / second[1]])
    # The winner of one export beside the best of all right candidates, the export among them.
    # ``of_best`` is how many times as fast as the best the winner is: the median over rounds with
    # the 10th and 90th percentile. ``skipped`` candidates were cut off. ``load``: processes that
    # ran beside, on average, when the rounds ended.
    return Row(
        **about,
        candidates=len(entrants),
        skipped=sum(c.status is Status.SKIPPED for c in result.candidates),
        rounds=ratios.size,
        load=round(os.getloadavg()[0], 1),
        winner=entrants[winner].name,
        best=entrants[best].name,
        **quantiles(ratios, 4, of_best=50, of_best_low=10, of_best_high=90),
    )


def _run_of(variant: Variant, feeds: Mapping[str, Array]) -> Callable[[], object]:
    session = variant.session(1, [CPU])
    names = {value.name for value in session.get_inputs()}
    known = {name: array for name, array in feeds.items() if name in names}
    return partial(session.run, None, known)


def _heats(sizes: Sequence[int], winner: int) -> list[list[int]]:
    """Divide all but the winner among races that fit in memory beside it."""
    heats: list[list[int]] = [[]]
    free = available_bytes()
    room = math.inf if free is None else free / _MEMORY_OF_FILE - sizes[winner]
    left = room
    for number, size in enumerate(sizes):
        if number == winner:
            continue
        if size > left and heats[-1]:
            heats.append([])
            left = room
        heats[-1].append(number)
        left -= size
    return heats


def _file(result: TuneResult, candidate: Candidate, source: Path, kept: Path) -> Path:
    if not candidate.chain:
        return source
    number = next(n for n, each in enumerate(result.candidates) if each is candidate)
    return next(kept.glob(f"{number:02}-*.onnx"))


if __name__ == "__main__":
    sys.exit(main())
