"""Functions that compare models: verify by their outputs, bench by their times."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfold.api.known_names import suggesting
from onnxfold.check import BudgetVerification, ModelSource, Verification
from onnxfold.errors import UsageError
from onnxfold.model_io.sources import open_source
from onnxfold.option_checks import bytes_of, listed
from onnxfold.options import GivenInputs
from onnxfold.pipeline.error_context import error_context
from onnxfold.pipeline.stage_timer import Stages, StageTimer
from onnxfold.wording import worded

if TYPE_CHECKING:
    from onnxfold.runtime.bench import Benchmark


@suggesting
def verify(  # noqa: PLR0913  # each is an option of the command line
    original: Any,
    rewritten: Any,
    *,
    inputs: GivenInputs = (),
    providers: Sequence[str] = (),
    memory: float | None = None,
    samples: int | None = None,
    data: str | os.PathLike[str] | None = None,
    rows: int | None = None,
    metric: str | Sequence[str] = (),
    max_error: float | Sequence[float] = (),
    blame: bool = False,
    seed: int = 0,
    limit: float | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    progress: Stages | None = None,
) -> Verification | BudgetVerification:
    """Check that ``rewritten`` computes what ``original`` does, relative to its rounding error.

    Both are models as for :func:`optimize`, and so are ``inputs``; ``memory`` is how many GB the
    comparison may use, by default most of what is free; ``data`` is a file or folder whose first
    ``rows`` rows (32) both run on in addition to ``samples`` drawn ones. With ``metric`` (relative,
    cosine, top1, kl, or several) an error budget decides instead: ``max_error``, or the default for
    the precision of ``rewritten`` (docs/verify.md); inputs are then drawn only without data, or if
    ``samples`` is given. ``blame``: name the nodes at fault on failure. ``limit`` is the allowed
    multiple of the original's own rounding error; ``rtol`` and ``atol`` are additional bounds.
    Raises ModelError if a model cannot be read or run, VerificationError if ``rewritten`` has
    another interface or does not run. A difference is not an error: the result has ``passed``
    False.
    """
    from onnxfold.check.budget import chosen_budget, precision_of
    from onnxfold.check.compare import verify as compare
    from onnxfold.check.compare import verify_within
    from onnxfold.check.traps import check_order
    from onnxfold.inputs import InputSpec

    metrics = [metric] if isinstance(metric, str) else [*metric]
    limits = [max_error] if isinstance(max_error, int | float) else [*max_error]
    bounds = {"limit": limit, "rtol": rtol, "atol": atol}
    _check_metrics(metrics, limits, rows if data is None else None, bounds)
    sources = [open_source(model) for model in (original, rewritten)]
    if sources[1].path is not None:
        check_order(sources[1].path)
    first, second = (ModelSource(source.model, source.path) for source in sources)
    given: dict[str, Any] = {
        "spec": InputSpec.of(inputs) if inputs else None,
        "providers": listed(providers) or None,
        "memory_bytes": bytes_of(memory),
        "progress": StageTimer(progress).part("verify"),
        "samples": (0 if metrics and data is not None else 2) if samples is None else samples,
        "find_blame": blame,
        "seed": seed,
        **{name: bound for name, bound in bounds.items() if bound is not None},
    }
    with error_context(sources[0]):
        label = None
        if data is not None:
            from onnxfold.inputs.data.samples import DEFAULT_ROWS, read_samples

            model, path = sources[0].model, sources[0].path
            read = read_samples(Path(data), model, path, DEFAULT_ROWS if rows is None else rows)
            given["data"], label = read.feeds, read.label
        if metrics:
            budget = chosen_budget(metrics, limits, second.model)
            return replace(verify_within(first, second, budget, **given), data=label)
        verification = compare(first, second, **given)
        precisions = [precision_of(source.model) for source in (first, second)]
        notes = verification.notes
        if not verification.passed and precisions[0] != precisions[1]:
            notes += (worded(f"B is in {precisions[1]}: --metric lets an error budget decide"),)
        return replace(verification, notes=notes, data=label)


def _check_metrics(
    metrics: Sequence[str],
    limits: Sequence[float],
    rows: int | None,
    bounds: Mapping[str, float | None],
) -> None:
    """Raise UsageError for options of a verification that conflict."""
    if limits and not metrics:
        raise UsageError("--max-error needs --metric, which says what it limits")
    if rows is not None:
        raise UsageError("--rows needs --data")
    for name, bound in bounds.items():
        if metrics and bound is not None:
            raise UsageError(f"--{name} is not for --metric, whose limit is --max-error")


@suggesting
def bench(
    models: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *others: str | os.PathLike[str],
    rounds: int = 30,
    threads: int = 1,
    inputs: GivenInputs = (),
    seed: int = 0,
    providers: Sequence[str] = (),
    progress: Stages | None = None,
) -> "Benchmark":
    """Time model files against each other in ONNX Runtime, with and without onnxfold's kernels.

    ``others`` are compared with the first; runs are interleaved, and all get the same ``inputs``,
    as for :func:`optimize`. Raises UsageError for invalid options, ModelError if a model cannot be
    read or run, OnnxfoldError without onnxruntime.
    """
    from onnxfold.runtime.bench import bench as timed

    first = [models] if isinstance(models, str | os.PathLike) else [*models]
    return timed(
        [*first, *others],
        rounds=rounds,
        threads=threads,
        inputs=inputs,
        seed=seed,
        providers=listed(providers),
        progress=progress,
    )
