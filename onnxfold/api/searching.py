"""tune and rotate: create and measure several files, and keep the best."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onnxfold.api.known_names import suggesting
from onnxfold.options import Device, GivenInputs

if TYPE_CHECKING:
    from onnxfold.check.error_metrics import Metric
    from onnxfold.tuning.options import TargetPrecision
    from onnxfold.tuning.rotation_search import RotationResult
    from onnxfold.tuning.search import Listener
    from onnxfold.tuning.tune_result import TuneResult


@suggesting
def tune(  # noqa: PLR0913  # each is an option of the command line
    model: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    device: Device | str = Device.CPU,
    threads: int = 1,
    precision: "Sequence[TargetPrecision | str] | TargetPrecision | str" = "fp32",
    inputs: GivenInputs = (),
    data: str | os.PathLike[str] | None = None,
    samples: int = 2,
    seed: int = 0,
    budget: float = 600.0,
    step_seconds: float = 300.0,
    memory: float | None = None,
    metric: "Metric | str | None" = None,
    max_error: float | None = None,
    kernels: bool = True,
    chains: Sequence[str] = (),
    model_type: str | None = None,
    num_heads: int | None = None,
    hidden_size: int | None = None,
    jobs: int = 1,
    keep_candidates: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: "Listener | None" = None,
) -> "TuneResult":
    """Try chains of tools, check each result against a float64 run, and write the fastest.

    The options are the fields of :class:`onnxfold.tuning.options.TuneOptions`, and ``precision``:
    "fp32" keeps the model's own; "fp16", "bf16", "int8" and "int4" have an error budget; several
    may be given. Raises VerificationError if no requested candidate is correct (then nothing is
    written, and its ``result`` has every candidate), UsageError for invalid options, ModelError for
    a model that no session accepts.
    """
    from onnxfold.tuning import tuner as tuning
    from onnxfold.tuning.options import tune_options

    chosen = tune_options(
        device=device,
        threads=threads,
        precision=precision,
        inputs=inputs,
        data=data,
        samples=samples,
        seed=seed,
        budget=budget,
        step_seconds=step_seconds,
        memory=memory,
        metric=metric,
        max_error=max_error,
        kernels=kernels,
        chains=chains,
        model_type=model_type,
        num_heads=num_heads,
        hidden_size=hidden_size,
        jobs=jobs,
        keep_candidates=keep_candidates,
        force=force,
    )
    return tuning.tune(model, output, chosen, progress)


@suggesting
def rotate(  # noqa: PLR0913  # each is an option of the command line
    model: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    to: str = "int8",
    matrix: str = "hadamard",
    seeds: int = 4,
    data: str | os.PathLike[str] | None = None,
    inputs: GivenInputs = (),
    samples: int = 4,
    seed: int = 0,
    allow_split: int = 1 << 30,
    force: bool = False,
) -> "RotationResult":
    """Write the model in the basis that a quantizer loses least by, or as it is.

    ``to``: "int8", "int8-channel" or "int4", what the file will be quantized to; ``seeds``: how
    many matrices are tried, on ``data`` or on ``samples`` drawn inputs.  Raises ModelError where no
    stream can be rotated (then nothing is written), UsageError for options that make no sense,
    DataError for data that does not suit the model.
    """
    from onnxfold.tuning.rotation_search import RotationOptions, search

    chosen = RotationOptions(
        to=to,
        matrix=matrix,
        seeds=seeds,
        data=None if data is None else Path(data),
        inputs=inputs,
        samples=samples,
        seed=seed,
        allow_split=allow_split,
        force=force,
    )
    return search(model, output, chosen)
