"""Runs prepared models in whatever ONNX Runtime this interpreter has: no other package is needed.

    python version_runner.py LIBRARY FOLDER

FOLDER holds pairs NAME.onnx, NAME.npz: inputs `in_*`, and for each output its value `out_*` and
the error allowed `bound_*`. Prints a count; the exit status is 1 if anything was wrong.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime as ort

PROVIDERS = ["CPUExecutionProvider"]


def options_with(library: str, times: int = 1) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 4
    for _ in range(times):
        options.register_custom_ops_library(library)
    return options


def session(library: str, model: Path) -> ort.InferenceSession:
    return ort.InferenceSession(str(model), options_with(library), providers=PROVIDERS)


def part(case: np.lib.npyio.NpzFile, prefix: str) -> dict[str, np.ndarray]:
    return {key[len(prefix) :]: case[key] for key in case.files if key.startswith(prefix)}


def problems_of(library: str, model: Path) -> list[str]:
    case = np.load(model.with_suffix(".npz"))
    loaded = session(library, model)
    names = [output.name for output in loaded.get_outputs()]
    found = loaded.run(names, part(case, "in_"))
    again = loaded.run(names, part(case, "in_"))
    problems = []
    for name, got, repeated in zip(names, found, again, strict=True):
        error = np.abs(got.astype(np.float64) - case["out_" + name])
        if got.shape != case["out_" + name].shape or not (error <= case["bound_" + name]).all():
            problems.append(f"{model.stem}: {name} is wrong")
        if got.tobytes() != repeated.tobytes():
            problems.append(f"{model.stem}: {name} is not repeated")
    return problems


def many_sessions(library: str, model: Path) -> list[str]:
    """80 sessions made and run by 8 threads, their options freed before they run."""
    feed = part(np.load(model.with_suffix(".npz")), "in_")

    def work(_: int) -> list[bytes]:
        return [output.tobytes() for output in session(library, model).run(None, feed)]

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(80)))
    return [] if results.count(results[0]) == 80 else [f"{model.stem}: sessions differ"]


def concurrent_runs(library: str, model: Path) -> list[str]:
    """One session run by 8 threads at once, each with other inputs."""
    shared = session(library, model)
    feed = part(np.load(model.with_suffix(".npz")), "in_")
    feeds = [{**feed, "X": feed["X"] * feed["X"].dtype.type(2**i)} for i in range(8)]

    def work(i: int) -> list[bytes]:
        return [output.tobytes() for output in shared.run(None, feeds[i])]

    expected = [work(i) for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, [i % 8 for i in range(400)]))
    wrong = any(result != expected[i % 8] for i, result in enumerate(results))
    return [f"{model.stem}: concurrent runs disturb each other"] if wrong else []


def double_registration(library: str, model: Path) -> list[str]:
    try:
        ort.InferenceSession(str(model), options_with(library, 2), providers=PROVIDERS)
    except Exception as error:
        return [] if "already" in str(error).lower() else [f"double registration: {error}"]
    return []


def main(library: str, folder: str) -> int:
    models = sorted(Path(folder).glob("*.onnx"))
    problems = [problem for model in models for problem in problems_of(library, model)]
    problems += many_sessions(library, models[0])
    problems += concurrent_runs(library, models[0])
    problems += double_registration(library, models[0])
    count = f"onnxruntime {ort.__version__}: {len(models)} models, {len(problems)} problems"
    sys.stdout.write("\n".join([count, *problems[:20], ""]))
    return 1 if problems or not models else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
