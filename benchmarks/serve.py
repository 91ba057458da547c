"""Throughput of `onnxfold serve`: a model against the same model unoptimized, in one server.

    python -m benchmarks.serve [MODEL.onnx] [--clients 8] [--rounds 8] [--seconds 3]
    python -m benchmarks.serve --subjects minilm minilm-int8 --size 128 --exports EXPORTS
    python -m benchmarks.serve --perf-analyzer PATH/perf_analyzer

Needs `onnxfold[serve]` and `tritonclient[grpc]`. Without MODEL.onnx the subjects of
benchmarks.models take their turns: by default MiniLM with its trained weights, at sequence 128, and
its dynamically quantized form, where norms are a larger part of the time; an export that EXPORTS
does not hold is made there, which needs `onnxfold[models]`.

One server holds both files, neither changed by it. In each round both are loaded in turn, the first
alternating, by `--clients` connections over gRPC, each with one row per request and the next one
when the answer is there. Only requests that were answered within the round count; the ratio is the
median of the rounds' ratios of requests per second. The clients are a process of their own on the
same cores: on few cores, the throughput of a small model is theirs too. With `--perf-analyzer` the
client is Triton's perf_analyzer (in the wheel of tritonclient 2.41.1), which counts by itself.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from benchmarks.harness import arguments, quantiles
from benchmarks.rows import RESULTS, Row, append, tell
from benchmarks.subjects import SUBJECTS, export_of, prepare
from onnxfold import model_io
from onnxfold.inputs import InputSpec, make_inputs
from tests.serving.server.process import Server, serving

__all__ = ["main"]

_FORMS: Mapping[str, Mapping[str, Any] | None] = {"plain": None, "fast": {}}
_WARM_UP_S = 1.0


@dataclass(frozen=True, slots=True)
class _Case:
    """A model, its optimized form, and the request for both."""

    name: str
    files: Mapping[str, Path]
    feeds: Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class _Load:
    """What clients saw of one file in one round."""

    requests_per_s: float
    p50_ms: float
    p99_ms: float


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print and keep the rows; returns the exit code."""
    options = arguments(
        __doc__,
        {
            "model": {"type": Path, "nargs": "?"},
            "--inputs": {"action": "append", "default": [], "metavar": "NAME:SHAPE"},
            "--subjects": {"nargs": "+", "choices": SUBJECTS, "metavar": "NAME"},
            "--size": {"type": int, "default": 128, "help": "of the axis of the subjects"},
            "--exports": Path("build/exports"),
            "--clients": 8,
            "--rounds": 8,
            "--seconds": 3.0,
            "--max-batch": 16,
            "--threads": 1,
            "--workers": 1,
            "--perf-analyzer": {"type": Path, "help": "ask with this program"},
        },
        words,
    )
    with tempfile.TemporaryDirectory() as name:
        for case in _cases(options, Path(name)):
            _measure(options, case, Path(name))
    return 0


def _measure(options: argparse.Namespace, case: _Case, folder: Path) -> None:
    load = os.getloadavg()[0]
    request = folder / "request.npz"
    np.savez(request, **{name: array[:1] for name, array in case.feeds.items()})
    words = [f"{file}={path.absolute()}" for file, path in case.files.items()]
    words += ["--no-optimize", "--max-batch", str(options.max_batch)]
    words += ["--threads", str(options.threads), "--workers", str(options.workers)]
    with serving(folder, *words) as server:
        print(f"{case.name}\n{server.log.read_text()}", end="", flush=True)
        rows = _rows(options, case, load, server, request)
    append(RESULTS / "serve.csv", rows)
    tell(rows)


def _cases(options: argparse.Namespace, folder: Path) -> Iterator[_Case]:
    if options.model is not None:
        files = prepare(options.model, folder, _FORMS)
        spec = InputSpec.parse(options.inputs)
        (feeds,) = make_inputs(model_io.load(options.model), spec, count=1, seed=0)
        yield _Case(options.model.stem, {form: file.path for form, file in files.items()}, feeds)
        return
    for name in options.subjects or ("minilm", "minilm-int8"):
        subject = SUBJECTS[name]
        source = export_of(subject.recipe, options.exports)
        place = folder / name
        place.mkdir()
        files = prepare(source, place, _FORMS, int8=subject.int8)
        yield _Case(
            f"{name} {subject.axis} {options.size}",
            {form: file.path for form, file in files.items()},
            subject.feeds(source, options.size),
        )


def _rows(
    options: argparse.Namespace, case: _Case, average: float, server: Server, request: Path
) -> list[Row]:
    from importlib.metadata import version

    files = tuple(_FORMS)
    loads: dict[str, list[_Load]] = {file: [] for file in files}
    for file in files:
        _load(options, server, file, request, _WARM_UP_S)
    before = {file: _runs(server, file) for file in files}
    for number in range(options.rounds):
        for file in files if number % 2 == 0 else files[::-1]:
            loads[file].append(_load(options, server, file, request, options.seconds))
    rates = {file: [load.requests_per_s for load in loads[file]] for file in files}
    ratios = np.divide(rates["fast"], rates["plain"])
    after = {file: _runs(server, file) for file in files}
    rows = []
    for file in files:
        runs, ran = (b - a for a, b in zip(before[file], after[file], strict=True))
        # One model under load: medians over the rounds, with the 10th and 90th percentile.
        # ``ratio`` is the optimized model's requests per second to the plain one's; ``batch`` the
        # mean number of rows of a run; ``p50_ms`` and ``p99_ms`` are medians over the rounds.
        rows.append(
            Row(
                load=round(average, 2),
                onnxruntime=ort.__version__,
                mlserver=version("mlserver"),
                model=case.name,
                file=file,
                client=_client_name(options.perf_analyzer),
                clients=options.clients,
                max_batch=options.max_batch,
                threads=options.threads,
                workers=options.workers,
                rounds=options.rounds,
                **quantiles(rates[file], 1, requests_per_s=50, low=10, high=90),
                p50_ms=round(float(np.median([load.p50_ms for load in loads[file]])), 3),
                p99_ms=round(float(np.median([load.p99_ms for load in loads[file]])), 3),
                batch=round(ran / runs, 2),
                ratio=round(float(np.median(ratios)), 3),
            )
        )
    return rows


def _runs(server: Server, model: str) -> tuple[float, float]:
    """Return how many runs there were of a model, and the rows in them."""
    return (
        server.metric("onnxfold_batch_rows_count", model=model),
        server.metric("onnxfold_batch_rows_sum", model=model),
    )


def _client_name(analyzer: Path | None) -> str:
    if analyzer is None:
        return "tritonclient"
    done = subprocess.run([analyzer, "--version"], capture_output=True, text=True, check=True)
    (version,) = re.findall(r"Version ([\d.]+)", done.stderr + done.stdout)
    return f"perf_analyzer {version}"


def _load(
    options: argparse.Namespace, server: Server, model: str, request: Path, seconds: float
) -> _Load:
    """Load a model from another process."""
    if options.perf_analyzer is not None:
        return _analyzed(options.perf_analyzer, server, model, request, options.clients, seconds)
    words = ["--client", server.grpc, model, str(request), str(options.clients), str(seconds)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.serve", *words],
        check=True,
        capture_output=True,
        text=True,
    )
    times = [1e3 * float(word) for word in done.stdout.split()]
    low, high = np.percentile(times, (50, 99))
    return _Load(len(times) / seconds, float(low), float(high))


def _analyzed(
    program: Path, server: Server, model: str, request: Path, clients: int, seconds: float
) -> _Load:
    """Return what perf_analyzer says of the three windows that it takes at least.

    Raises RuntimeError where it fails, and where a request did.
    """
    table, data = request.with_suffix(".csv"), request.with_suffix(".json")
    batched = int(server.get(f"/v2/models/{model}/config")[1]["max_batch_size"] > 0)
    with np.load(request) as feeds:
        one = {
            name: {"content": array.ravel().tolist(), "shape": list(array.shape[batched:])}
            for name, array in feeds.items()
        }
    data.write_text(json.dumps({"data": [one]}))
    words = ["-m", model, "-u", server.grpc, "-i", "grpc", "--input-data", str(data)]
    words += ["--concurrency-range", str(clients), "-p", str(int(1e3 * seconds))]
    words += ["-r", "3", "-s", "999", "-f", str(table), "--verbose-csv"]
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    if done.returncode or "Failed requests" in done.stdout:
        raise RuntimeError(f"perf_analyzer failed:\n{done.stdout}{done.stderr}")
    with table.open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    p50, p99 = (float(row[f"p{number} latency"]) / 1e3 for number in (50, 99))
    return _Load(float(row["Inferences/Second"]), p50, p99)


def _client(address: str, model: str, request: str, clients: str, seconds: str) -> None:
    """Print how long each request took that was answered in time."""
    import tritonclient.grpc as triton
    from tritonclient.utils import np_to_triton_dtype

    with np.load(request) as feeds:
        inputs = []
        for name, array in feeds.items():
            datatype = np_to_triton_dtype(array.dtype)
            inputs.append(triton.InferInput(name, list(array.shape), datatype))
            inputs[-1].set_data_from_numpy(array)
    connections = [triton.InferenceServerClient(address) for _ in range(int(clients))]
    for connection in connections:
        connection.infer(model, inputs)  # the connection is open before the clock runs
    end = time.perf_counter() + float(seconds)

    def work(connection: triton.InferenceServerClient) -> list[float]:
        took = []
        while True:
            start = time.perf_counter()
            connection.infer(model, inputs)
            now = time.perf_counter()
            if now > end:
                return took
            took.append(now - start)

    with ThreadPoolExecutor(len(connections)) as pool:
        for took in pool.map(work, connections):
            print(*(f"{one:.6f}" for one in took))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        _client(*sys.argv[2:])
    else:
        sys.exit(main())
