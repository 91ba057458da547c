"""Runs jobs inside the environment of one runtime or tool; needs numpy and that package alone.

    python worker.py JOBS.jsonl

A job is one line of JSON. The answer to each is one line on the standard output, written as soon as
it is known, so that the caller sees which job ended the process. Tensors travel as raw files, which
JavaScript reads as well: {"name", "dtype", "shape", "file"}.

    {"action": "run", "subject", "model", "inputs", "folder"}    -> outputs, facts; of each set
    {"action": "time", "subject", "models", "inputs", "rounds"}  -> seconds of each round
    {"action": "apply", "subject", "model", "inputs", "target", "options"} -> writes target; facts
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Job = dict[str, Any]
_WARM_UP_S = 0.1
_TIMED_S = 0.5  # for each model at least, since a busy machine interrupts for milliseconds


def main(jobs: Path) -> int:
    """Answer every job, and keep what libraries print away from the answers."""
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in jobs.read_text(encoding="utf-8").splitlines():
        answers.write(json.dumps(_answer(json.loads(line))) + "\n")
        answers.flush()
    return 0


def _answer(job: Job) -> Job:
    try:
        return {"outcome": "ok", **ACTIONS[job["action"]](job)}
    except (Exception, SystemExit) as error:  # what a package says is what is asked for here
        return {"outcome": "refused", "text": f"{type(error).__name__}: {error}"}


def _run(job: Job) -> Job:
    import runtimes

    given = [_inputs(each) for each in job["inputs"]]
    run, facts = getattr(runtimes, job["subject"])(job["model"], given[0])
    folder = Path(job["folder"])
    outputs = [_written(run(each), folder, f"{index}-") for index, each in enumerate(given)]
    return {"outputs": outputs, "facts": facts}


def _time(job: Job) -> Job:
    import runtimes

    load, inputs = getattr(runtimes, job["subject"]), _inputs(job["inputs"])
    runs = {name: load(path, inputs)[0] for name, path in job["models"].items()}
    for run in runs.values():
        _warm_up(run, inputs)
    times: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + _TIMED_S * len(runs)
    while len(times[next(iter(runs))]) < job["rounds"] or time.perf_counter() < end:
        for name, run in runs.items():
            start = time.perf_counter()
            run(inputs)
            times[name].append(time.perf_counter() - start)
    return {"times": times}


def _apply(job: Job) -> Job:
    import tools

    apply = getattr(tools, job["subject"])
    with contextlib.redirect_stdout(sys.stderr):
        facts = apply(
            Path(job["model"]), Path(job["target"]), _inputs(job["inputs"]), **job["options"]
        )
    return {"facts": facts or {}}


ACTIONS: dict[str, Callable[[Job], Job]] = {"run": _run, "time": _time, "apply": _apply}


def _warm_up(run: Callable[[dict[str, Any]], object], inputs: dict[str, Any]) -> None:
    end = time.perf_counter() + _WARM_UP_S
    run(inputs)
    while time.perf_counter() < end:
        run(inputs)


def _inputs(described: list[Job]) -> dict[str, Any]:
    return {
        each["name"]: np.fromfile(each["file"], each["dtype"]).reshape(each["shape"])
        for each in described
    }


def _written(outputs: list[Any], folder: Path, called: str) -> list[Job]:
    described = []
    for index, output in enumerate(outputs):
        array = np.ascontiguousarray(output)
        file = folder / f"{called}{index}.raw"
        array.tofile(file)
        described.append({"dtype": str(array.dtype), "shape": array.shape, "file": str(file)})
    return described


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
