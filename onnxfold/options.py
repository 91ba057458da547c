"""What a user can ask of optimize: every option, declared once; light to import."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "DEFAULT_NOISE_LIMIT",
    "DEFAULT_RANGE_LIMIT",
    "DEFAULT_SPLIT_BYTES",
    "Options",
    "Target",
]

DEFAULT_SPLIT_BYTES = 1 << 20
DEFAULT_RANGE_LIMIT = 16.0  # four of the eight bits of an integer weight
DEFAULT_NOISE_LIMIT = 4.0


class Target(StrEnum):
    """What the output model may contain."""

    PORTABLE = "portable"
    ONNX = "onnx"
    ORT = "ort"


@dataclass(frozen=True, slots=True)
class Options:
    """What a user can ask of optimize; the fields are the options of the command line."""

    target: Target = Target.PORTABLE
    allow_split: int = DEFAULT_SPLIT_BYTES
    exclude: str | None = None
    check: int = 2
    noise_limit: float = DEFAULT_NOISE_LIMIT
    rtol: float | None = None
    atol: float | None = None
    inputs: tuple[str, ...] = ()
    seed: int = 0
    providers: tuple[str, ...] = ()
    memory: float | None = None
    save_as_external_data: bool | None = None
    share_weights: bool = False
    fuse_residual: bool = True
    fuse_affine: bool = True
    range_limit: float = DEFAULT_RANGE_LIMIT
    dry_run: bool = False
    force: bool = False
    fail_if_unchanged: bool = False
