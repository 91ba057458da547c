"""Many models: every file of a folder is tuned, here one after the other or by the nodes of Ray.

Models are spread, never the candidates of one: those are timed in turns on one machine. Searches on
one node take turns at its devices (`onnxfold.tuning.child`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onnxfold.errors import ModelError, OnnxfoldError, UsageError, one_line
from onnxfold.tuning.options import TuneOptions
from onnxfold.tuning.tuner import tune


@dataclass(frozen=True, slots=True)
class FleetRow:
    """What came of one model: the chain that was written and its gain, or the error."""

    model: str
    output: str
    winner: str | None = None
    ratio: float | None = None
    error: str | None = None
    exit_code: int = 0


Told = Callable[[FleetRow, int, int], None]  # a row, how many are done, of how many


def tune_folder(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str],
    options: TuneOptions,
    *,
    ray: str | None = None,
    told: Told | None = None,
) -> list[FleetRow]:
    """Tune every .onnx file under a folder into the same place under another folder.

    ``ray`` is the address of a cluster whose nodes find both folders under their paths; "local"
    starts one here.  A model that fails is a row, and the others go on.  Raises UsageError where
    there are no models, where the folders are one, or without Ray or the cluster.
    """
    root, target = Path(folder), Path(output)
    if root.resolve() == target.resolve():
        raise UsageError(f"{target}: the results need a folder of their own")
    models = sorted(path for path in root.rglob("*.onnx") if target not in path.parents)
    if not models:
        raise UsageError(f"{root}: it holds no .onnx file")
    pairs = [(path.absolute(), target.absolute() / path.relative_to(root)) for path in models]
    rows = []
    tuned = _here(pairs, options) if ray is None else _in_cluster(pairs, options, ray)
    for row in tuned:
        rows.append(row)
        if told is not None:
            told(row, len(rows), len(pairs))
    return sorted(rows, key=lambda row: row.model)


def _here(pairs: Sequence[tuple[Path, Path]], options: TuneOptions) -> Iterator[FleetRow]:
    for model, output in pairs:
        yield tuned(model, output, options)


def tuned(model: Path, output: Path, options: TuneOptions) -> FleetRow:
    """Tune one model of a fleet; what goes wrong is in its row."""
    row = FleetRow(str(model), str(output))
    kept = options.keep_candidates
    if kept is not None:
        options = replace(options, keep_candidates=kept / model.stem)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        result = tune(model, output, options)
    except OnnxfoldError as error:
        return replace(row, error=str(error), exit_code=error.exit_code)
    except OSError as error:
        return replace(row, error=one_line(error), exit_code=ModelError.exit_code)
    winner = result.winner
    return row if winner is None else replace(row, winner=winner.name, ratio=winner.ratio)


def _in_cluster(
    pairs: Sequence[tuple[Path, Path]], options: TuneOptions, address: str
) -> Iterator[FleetRow]:
    """Yield rows as models are done, each tuned by a task of Ray."""
    from onnxfold.geometry.cluster import connected

    with connected(address, "tuning on a cluster") as ray:
        remote = ray.remote(num_cpus=options.threads, max_retries=1)(tuned)
        tasks: dict[Any, tuple[Path, Path]] = {
            remote.remote(model, output, options): (model, output) for model, output in pairs
        }
        while tasks:
            (done, *_), _ = ray.wait(list(tasks), num_returns=1)
            model, output = tasks.pop(done)
            try:
                yield ray.get(done)
            except ray.exceptions.RayError as error:
                what = f"a worker of Ray died with it: {one_line(error)}"
                yield FleetRow(str(model), str(output), error=what, exit_code=3)
