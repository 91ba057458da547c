"""The options of `tune`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from onnxfold.check.error_metrics import Metric
from onnxfold.errors import UsageError
from onnxfold.options import (
    Device,
    GivenInputs,
    bytes_of,
    check_number,
    check_threads,
    member,
)

DEFAULT_BUDGET_S = 600.0


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

    device: Device = Device.CPU
    threads: int = 1
    precisions: tuple[TargetPrecision, ...] = (TargetPrecision.FP32,)
    inputs: GivenInputs = ()
    data: Path | None = None
    samples: int = 2
    seed: int = 0
    budget: float = DEFAULT_BUDGET_S
    step_seconds: float = 300.0
    memory: float | None = None
    metric: Metric | None = None
    max_error: float | None = None
    kernels: bool = True
    chains: tuple[str, ...] = ()
    model_type: str | None = None
    num_heads: int | None = None
    hidden_size: int | None = None
    jobs: int = 1
    keep_candidates: Path | None = None
    force: bool = False
    timed: bool = True

    def __post_init__(self) -> None:
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
        for name in ("max_error", "num_heads", "hidden_size", "seed"):
            check_number(f"--{name.replace('_', '-')}", getattr(self, name))
        bytes_of(self.memory)
        if not self.precisions:
            raise UsageError("--precision names no precision")
        if TargetPrecision.BF16 in self.precisions and self.device is not Device.CUDA:
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
    names = (precision,) if isinstance(precision, str) else tuple(precision)
    return TuneOptions(
        device=member(Device, device, f"device '{device}'"),
        precisions=tuple(dict.fromkeys(map(precision_named, names))),
        data=None if data is None else Path(data),
        metric=None if metric is None else member(Metric, metric, f"metric '{metric}'"),
        chains=tuple(chains),
        keep_candidates=None if keep_candidates is None else Path(keep_candidates),
        **options,
    )
