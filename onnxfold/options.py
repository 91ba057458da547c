"""What a user can ask of optimize."""

from __future__ import annotations

from dataclasses import dataclass

from onnxfold.analysis import DEFAULT_SPLIT_BYTES
from onnxfold.lower.target import Target
from onnxfold.rewrite.ranges import DEFAULT_RANGE_LIMIT
from onnxfold.verification import DEFAULT_LIMIT

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """What a user can ask of optimize; the fields are the options of the command line."""

    target: Target = Target.PORTABLE
    allow_split: int = DEFAULT_SPLIT_BYTES
    exclude: str | None = None
    check: int = 2
    noise_limit: float = DEFAULT_LIMIT
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
