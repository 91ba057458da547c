"""Hugging Face checkpoints: the same function with weightless norms or a zero-mean stream."""

from onnxfold.checkpoint.folding import CheckpointResult, fold_checkpoint
from onnxfold.checkpoint.plan import CheckpointForm

__all__ = ["CheckpointForm", "CheckpointResult", "fold_checkpoint"]
