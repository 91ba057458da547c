"""Hugging Face checkpoints: the same function with weightless norms or a zero-mean stream."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxfold.checkpoint.folding import CheckpointResult, fold_checkpoint
    from onnxfold.checkpoint.plan import CheckpointForm

__all__ = ["CheckpointForm", "CheckpointResult", "fold_checkpoint"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'onnxfold.checkpoint' has no attribute '{name}'")
    from onnxfold.checkpoint import folding  # late: the command line lists its commands

    return getattr(folding, name)
