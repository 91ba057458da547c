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

Prints a table and appends rows to benchmarks/results/tune.csv, gpu_tune.csv on a GPU, after every
export; the budget is divided among the exports that are left, and the winners come last.  An
interruption ends the export at hand, with the rows that it has, and the program.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

import onnxruntime as ort
from rich.console import Console
from rich.table import Table

import onnxfold
from benchmarks.exhaustive import against_best
from benchmarks.gpu import BUDGET, Budget, device_named, failed
from benchmarks.rows import RESULTS, Conditions, append, conditions
from models import skeleton
from onnxfold import model_io
from onnxfold.tuning.candidate import Candidate
from onnxfold.tuning.tune_result import TuneResult
from onnxfold.tuning.tuner import TuneFailed

__all__ = ["PRECISIONS", "TuneRow", "main"]

# What `tune` may do with exports of a type; "fp32" keeps the type that they have.
PRECISIONS: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("cpu", "fp32"): ("fp32", "int8"),
    ("cuda", "fp32"): ("fp32", "fp16"),
    ("cpu", "fp16"): ("fp32",),
    ("cuda", "fp16"): ("fp32",),
}
_MODELS: Final = ("bert-base", "vit-b16", "gpt2")
_FILES: Final = {"cpu": "tune.csv", "cuda": "gpu_tune.csv"}
_LEAST_S = 20.0  # with less of the budget left no export begins
_console = Console(width=150)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneRow(Conditions):
    """One candidate for one export at one size; ``sequence`` is 0 for images.

    ``ratio`` is how many times as fast as the export it is: the median over rounds with the 10th
    and 90th percentile, or the median alone where the candidate was not in the final.  ``errors``
    are the worst of any output and sample, against a float64 run of the export.
    """

    onnxruntime: str
    device: str
    model: str
    dtype: str
    batch: int
    sequence: int
    samples: int
    chain: str
    precision: str
    kernels: bool
    status: str
    winner: bool
    milliseconds: float | None
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    errors: str
    session_nodes: int
    excluded: int
    bytes: int
    seconds: float
    reason: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for and return the exit code."""
    options = _parser().parse_args(arguments)
    budget, rows, left = Budget(options.budget), list[TuneRow](), False
    cases = list(_cases(options))
    try:
        for number, (name, dtype, given) in enumerate(cases):
            seconds = min(options.case, budget.left / (len(cases) - number))
            if budget.left < _LEAST_S:
                print(f"the budget is spent: {name} {dtype} is left out", flush=True)
                left = True
                continue
            try:
                case = _tuned(name, dtype, given, seconds, options)
            except Exception as error:  # said by name; the others still run
                failed(f"{name} {dtype}", error)
                left = True
                continue
            append(options.out or RESULTS / _FILES[options.device], case)
            _console.print(_table(case))
            rows += case
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        left = True
    _summarise(rows)
    return int(left) if rows else 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tune", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="MODELS")
    parser.add_argument("--models", nargs="+", default=_MODELS)
    parser.add_argument("--dtypes", nargs="+", choices=["fp32", "fp16"], default=["fp32", "fp16"])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument(
        "--sequence", nargs="+", default=["512"], metavar="N", help="N, or NAME=N for one model"
    )
    parser.add_argument(
        "--inputs", nargs="+", default=[], metavar="MODEL=INPUT:SIZES", help="in place of these"
    )
    parser.add_argument("--samples", type=int, default=1, help="sets of inputs of the check")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cpu")
    parser.add_argument("--jobs", type=int, default=2, help="files that are built at once")
    parser.add_argument(
        "--budget", type=float, default=BUDGET, help="seconds of all, default: %(default)g"
    )
    parser.add_argument("--case", type=float, default=600.0, help="seconds of one export, at most")
    parser.add_argument("--chains", nargs="+", default=[], help="these alone, not those of tune")
    parser.add_argument(
        "--exhaustive",
        type=float,
        metavar="S",
        help="seconds for all candidates in turns, on a CPU",
    )
    parser.add_argument("--scratch", type=Path, help="folder for the models that are made")
    parser.add_argument("--reports", type=Path, help="folder for the report of every export")
    parser.add_argument("--out", type=Path, help="default: tune.csv or gpu_tune.csv in results")
    parser.add_argument("--out-exhaustive", type=Path, help="default: tune_exhaustive.csv there")
    return parser


def _cases(options: argparse.Namespace) -> Iterator[tuple[str, str, Path]]:
    for dtype, name in product(options.dtypes, options.models):
        given = options.folder / dtype / f"{name}.onnx"
        if given.exists():
            yield name, dtype, given
        else:
            print(f"{given} is not there: left out", flush=True)


def _tuned(
    name: str, dtype: str, given: Path, seconds: float, options: argparse.Namespace
) -> list[TuneRow]:
    """Tune an export and return a row for every candidate."""
    if options.scratch is not None:
        options.scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        source = given
        if skeleton.is_skeleton(given):
            source = Path(scratch, "model.onnx")
            skeleton.fill(given, source)
        batch, sequence = options.batch, _sequence(name, options.sequence)
        inputs = [t.removeprefix(f"{name}=") for t in options.inputs if t.startswith(f"{name}=")]
        inputs = inputs or [_first_input(source, batch, sequence)]
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
        about = {
            "onnxruntime": ort.__version__,
            "model": name,
            "dtype": dtype,
            "batch": batch,
            "sequence": sequence,
            **conditions(),
        }
        if kept is not None and result.winner is not None:
            row = against_best(result, source, kept, inputs, options.exhaustive, about)
            append(options.out_exhaustive or RESULTS / "tune_exhaustive.csv", [row])
            print(f"{row.winner}: {row.of_best:.3f} of {row.best}", flush=True)
    if options.reports is not None:
        options.reports.mkdir(parents=True, exist_ok=True)
        document = json.dumps(result.report, indent=1)
        (options.reports / f"{name}-{dtype}.json").write_text(document, encoding="utf-8")
    about |= {"device": device_named(options.device), "samples": options.samples}
    return [_row(about, candidate, result) for candidate in result.candidates]


def _sequence(name: str, given: Sequence[str]) -> int:
    """Return the sequence of a model: its own, or the one that is given without a name."""
    named = dict(text.rpartition("=")[::2] for text in given)
    return int(named.get(name, named.get("", "512")))


def _first_input(path: Path, batch: int, sequence: int) -> str:
    """Return the first input and its sizes, from which the others follow."""
    first = model_io.load(path).graph.inputs[0]
    symbols = iter((batch, sequence))
    sizes = (dim if isinstance(dim, int) else next(symbols) for dim in first.shape or ())
    return f"{first.name}:{','.join(map(str, sizes))}"


def _row(about: Mapping[str, Any], candidate: Candidate, result: TuneResult) -> TuneRow:
    return TuneRow(
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
        reason=candidate.reason or "",
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)


def _table(rows: Sequence[TuneRow]) -> Table:
    first = rows[0]
    size = f"{first.batch} x {first.sequence}" if first.sequence else str(first.batch)
    table = Table(title=f"{first.model} {first.dtype}, {size}", title_justify="left", box=None)
    table.add_column("chain", no_wrap=True)
    for column in ("nodes", "ms", "times as fast"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("error or reason", no_wrap=True, max_width=60)
    tried = [row for row in rows if row.status != "skipped"]
    for row in sorted(tried, key=lambda row: -(row.ratio or 0.0)):
        right = row.status == "right"
        table.add_row(
            f"{row.chain}{' *' * row.winner}",
            str(row.session_nodes),
            "" if row.milliseconds is None else f"{row.milliseconds:.3f}",
            _ratio(row),
            row.errors if right else f"{row.status}: {row.reason}",
        )
    if len(tried) < len(rows):
        table.caption = f"{len(rows) - len(tried)} were not tried: the budget was spent"
    return table


def _ratio(row: TuneRow) -> str:
    if row.ratio is None:
        return ""
    if row.ratio_low is None:
        return f"about {row.ratio:.2f}"
    return f"{row.ratio:.2f} ({row.ratio_low:.2f} to {row.ratio_high:.2f})"


def _summarise(rows: Sequence[TuneRow]) -> None:
    """Print the winner for every export."""
    table = Table(title="winners", title_justify="left", box=None)
    for column in ("model", "type", "winner", "ms", "times as fast", "error"):
        table.add_column(column, no_wrap=True)
    for row in (row for row in rows if row.winner):
        milliseconds = "" if row.milliseconds is None else f"{row.milliseconds:.3f}"
        table.add_row(row.model, row.dtype, row.chain, milliseconds, _ratio(row), row.errors)
    _console.print(table)


if __name__ == "__main__":
    sys.exit(main())
