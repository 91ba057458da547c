"""Synthetic inputs, drawn as the check draws them, which do not represent real data."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from onnxfold.inputs import InputSpec, make_inputs
from onnxfold.inputs.data.input_signature import InputSignature
from onnxfold.inputs.data.shards import Batch, DataOptions, Shard

_ROWS = 64
_DRAWN_TOGETHER = 2  # the batch of the first sample of a draw


@dataclass(frozen=True, slots=True)
class Synthetic:
    """Draws of two rows each, every one with its own seed.

    The inputs are drawn once, in :meth:`shards`, since they need the graph; they are small.
    """

    drawn: tuple[dict[str, np.ndarray], ...] = field(repr=False)
    signature: InputSignature
    options: DataOptions

    @staticmethod
    def of(model: ir.Model, signature: InputSignature, options: DataOptions) -> "Synthetic":
        """Draw inputs for a model; raises UsageError if an input cannot be drawn."""
        count = -(-(options.rows or _ROWS) // _DRAWN_TOGETHER)
        drawn = tuple(
            make_inputs(model, InputSpec(), count=1, seed=options.seed + number)[0]
            for number in range(count)
        )
        return Synthetic(drawn, signature, options)

    @property
    def kind(self) -> str:
        return "synthetic"

    def shards(self) -> list[Shard]:
        step = _DRAWN_TOGETHER
        return [
            Shard("synthetic inputs", number * step, (number + 1) * step, number)
            for number in range(len(self.drawn))
        ]

    def batches(self, shard: Shard) -> Iterator[Batch]:
        feeds = self.drawn[shard.offset]
        mask = self.signature.mask_input(self.options.mask)
        kept = None if mask is None else feeds[mask] != 0
        yield Batch(feeds, shard.stop - shard.start, shard.start, kept)
