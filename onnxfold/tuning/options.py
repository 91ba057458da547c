"""The options of `tune` and `rotate`, each declared once with its help."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from onnxfold.errors import UsageError
from onnxfold.fleet import check_threads
from onnxfold.option_checks import bytes_of, check_count, check_number, listed
from onnxfold.options import (
    ROTATIONS,
    Device,
    ForceOption,
    InputsOption,
    Metric,
    SeedOption,
    Told,
    member,
)


class TargetPrecision(StrEnum):
    """Precisions of weights and activations; the first keeps the model's own."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """The options of `onnxfold tune`; see the command's help.

    timed: whether the device is available, so that candidates can be timed on it. Raises UsageError
    for invalid numbers.
    """

    device: Annotated[Device, Told("Where the model will run.")] = Device.CPU
    threads: Annotated[int, Told("Threads within an operator.", metavar="N")] = 1
    precision: Annotated[
        tuple[TargetPrecision, ...],
        Told(
            "What the model may become; repeat for several. **fp32**, the default, keeps the "
            "precision of IN; the others have an error budget.",
            metavar="fp32|fp16|bf16|int8|int4",
        ),
    ] = (TargetPrecision.FP32,)
    data: Annotated[
        Path | None,
        Told(
            "A file or folder of inputs to compare on as well, as **measure** reads it.",
            metavar="DATA",
        ),
    ] = None
    inputs: InputsOption = ()
    samples: Annotated[int, Told("Drawn sets of inputs.", metavar="N")] = 2
    seed: SeedOption = 0
    budget: Annotated[float, Told("How long the search may take.", metavar="SECONDS")] = 600.0
    step_seconds: Annotated[
        float, Told("How long one step of one chain may take.", metavar="SECONDS")
    ] = 300.0
    memory: Annotated[
        float | None,
        Told("What one step may allocate; otherwise most of what is free.", metavar="GB"),
    ] = None
    metric: Annotated[
        Metric | None,
        Told(
            "What a model of **reduced precision** is judged by; top1 and kl are for logits.",
            metavar="relative|cosine|top1|kl",
            type=str | None,
        ),
    ] = None
    max_error: Annotated[
        float | None,
        Told(
            "The largest error by --metric that is right; otherwise what suits the precision.",
            metavar="X",
        ),
    ] = None
    kernels: Annotated[
        bool,
        Told(
            "Whether the result may need the onnxfold library to be fast.",
            flag="--kernels/--no-kernels",
        ),
    ] = True
    chains: Annotated[
        tuple[str, ...],
        Told(
            'Try this chain of steps alone, as "fusions > optimizer > int8"; repeat for several. '
            "One alone is written if it is right, whatever its time.",
            metavar="CHAIN",
            flag="--chain",
        ),
    ] = ()
    model_type: Annotated[
        str | None, Told("Model type for ONNX Runtime's optimizer.", metavar="NAME")
    ] = None
    num_heads: Annotated[int | None, Told("Attention heads, for the same.", metavar="N")] = None
    hidden_size: Annotated[int | None, Told("Hidden size, for the same.", metavar="N")] = None
    jobs: Annotated[int, Told("Files that are built at once.", metavar="N")] = 1
    keep_candidates: Annotated[
        Path | None, Told("Keep the file of every candidate in a new folder.", metavar="DIR")
    ] = None
    force: ForceOption = False
    timed: bool = True

    def __post_init__(self) -> None:
        for name in ("budget", "step_seconds", "max_error"):
            check_number(f"--{name.replace('_', '-')}", getattr(self, name))
        for name in ("samples", "threads", "jobs", "num_heads", "hidden_size", "seed"):
            check_count(f"--{name.replace('_', '-')}", getattr(self, name))
        if not self.budget > 0:
            raise UsageError(f"--budget takes seconds, more than 0, not {self.budget:g}")
        if not self.step_seconds > 0:
            raise UsageError(f"--step-seconds must be more than 0, not {self.step_seconds:g}")
        if self.samples < 1:
            raise UsageError(f"--samples must be at least 1, not {self.samples}")
        if self.threads < 1 or self.jobs < 1:
            raise UsageError("--threads and --jobs must be at least 1")
        check_threads("--threads", self.threads)
        check_threads("--jobs", self.jobs)
        bytes_of(self.memory)
        if not self.precision:
            raise UsageError("--precision names no precision")
        if TargetPrecision.BF16 in self.precision and self.device is not Device.CUDA:
            raise UsageError("--precision bf16 is for GPUs: name --device cuda with it")

    @property
    def providers(self) -> tuple[str, ...]:
        """The execution providers of the device, or the CPU's if it is not available."""
        cuda = ("CUDAExecutionProvider",) if self.device is Device.CUDA and self.timed else ()
        return (*cuda, "CPUExecutionProvider")

    @property
    def memory_bytes(self) -> int | None:
        """The memory limit of a child process, or None."""
        return bytes_of(self.memory)


QUANTIZERS: Mapping[str, str] = {
    "int8": "int8",
    "int8-channel": "int8-channel",
    "int4": "int4-blocks32",
}


@dataclass(frozen=True, slots=True)
class RotationOptions:
    """The options of `onnxfold rotate`. Raises UsageError for invalid ones.

    to: the quantizer that the file is written for.
    """

    to: str = "int8"
    matrix: Annotated[str, Told("Which orthogonal matrices.", metavar="hadamard|random")] = (
        "hadamard"
    )
    seeds: Annotated[int, Told("How many rotations are tried.", metavar="N")] = 4
    data: Annotated[
        Path | None, Told("Inputs of yours to measure on; otherwise drawn.", metavar="FILE|DIR")
    ] = None
    inputs: InputsOption = ()
    samples: Annotated[int, Told("Drawn sets of inputs.", metavar="N")] = 4
    seed: SeedOption = 0
    allow_split: Annotated[
        int, Told("Store a weight twice when it is at most this large.", metavar="BYTES")
    ] = 1 << 30
    force: ForceOption = False

    def __post_init__(self) -> None:
        if self.to not in QUANTIZERS:
            raise UsageError(f"--to takes {', '.join(QUANTIZERS)}, not '{self.to}'")
        if self.matrix not in ROTATIONS or self.matrix == "off":
            raise UsageError(f"--matrix takes hadamard or random, not '{self.matrix}'")
        if self.seeds < 1 or self.samples < 1:
            raise UsageError("--seeds and --samples must be at least 1")


def precision_named(name: str) -> TargetPrecision:
    """Return the precision of a name; raises UsageError for an unknown one."""
    return member(TargetPrecision, name, f"precision '{name}'")


def tune_options(
    *,
    device: Device | str = Device.CPU,
    precision: Sequence[str] | str = "fp32",
    data: str | os.PathLike[str] | None = None,
    metric: str | None = None,
    chains: Sequence[str] = (),
    keep_candidates: str | os.PathLike[str] | None = None,
    **options: Any,
) -> TuneOptions:
    """Return options with their names read; raises UsageError for an invalid one."""
    return TuneOptions(
        device=member(Device, device, f"device '{device}'"),
        precision=tuple(dict.fromkeys(map(precision_named, listed(precision)))),
        data=None if data is None else Path(data),
        metric=None if metric is None else member(Metric, metric, f"metric '{metric}'"),
        chains=listed(chains),
        keep_candidates=None if keep_candidates is None else Path(keep_candidates),
        **options,
    )
