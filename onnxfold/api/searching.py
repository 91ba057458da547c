"""tune and rotate: create and measure several files, and keep the best."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onnxfold.api.known_names import suggesting
from onnxfold.options import Device, GivenInputs

if TYPE_CHECKING:
    from onnxfold.options import Metric
    from onnxfold.tuning.options import TargetPrecision
    from onnxfold.tuning.rotation_search import RotationResult
    from onnxfold.tuning.search import Listener
    from onnxfold.tuning.tune_result import TuneResult

# Arguments of the functions here that are not options.
_NOT_OPTIONS = frozenset({"model", "output", "progress"})


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
    given = {name: value for name, value in locals().items() if name not in _NOT_OPTIONS}
    from onnxfold.tuning import tuner as tuning
    from onnxfold.tuning.options import tune_options

    return tuning.tune(model, output, tune_options(**given), progress)


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
    given = {name: value for name, value in locals().items() if name not in _NOT_OPTIONS}
    from onnxfold.tuning.options import RotationOptions
    from onnxfold.tuning.rotation_search import search

    chosen = RotationOptions(**given | {"data": None if data is None else Path(data)})
    return search(model, output, chosen)
