"""Settings of ONNX Runtime's transformers optimizer, guessed from the graph.

The optimizer searches for the patterns of one model type, with a number of heads and a hidden size.
A wrong guess only costs speed: the result is checked like any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxfold.graph.traversal import all_nodes
from onnxfold.shapes import infer
from onnxfold.tuning.options import TuneOptions

_COMPARISONS = frozenset({"Less", "LessOrEqual", "Greater", "GreaterOrEqual"})
# A stored causal mask has at least the first length; masks beyond the second are not examined.
_LEAST_MASK, _LARGEST_MASK = 4, 1 << 22
# Batch, tokens, heads, size; with a 3 in the middle for queries, keys and values in one.
_SPLITS = frozenset({(0, 2, 1, 3), (0, 2, 3, 1), (2, 0, 3, 1, 4), (0, 2, 3, 1, 4)})
_ROLLS = 4  # Concats of two Slices of one value: the shifted windows of Swin


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model type of ONNX Runtime's optimizer, and the sizes of attention (0 if unknown)."""

    model_type: str
    num_heads: int = 0
    hidden_size: int = 0

    def override(self, options: TuneOptions) -> ModelFacts:
        """Return the facts with the user's settings instead, if given."""
        heads, size = options.num_heads, options.hidden_size
        return ModelFacts(
            options.model_type or self.model_type,
            self.num_heads if heads is None else heads,
            self.hidden_size if size is None else size,
        )

    def __str__(self) -> str:
        if not self.num_heads:
            return self.model_type
        return f"{self.model_type}, {self.num_heads} heads, hidden size {self.hidden_size}"


def guess(model: ir.Model) -> ModelFacts:
    """Guess the facts of a model."""
    typed = infer(model.clone()).model
    nodes = list(all_nodes(typed))
    heads, hidden = _attention(nodes)
    return ModelFacts(_model_type(typed, nodes), heads, hidden)


def _model_type(model: ir.Model, nodes: list[ir.Node]) -> str:
    inputs = {v for v in model.graph.inputs if not v.is_initializer()}
    if any(_embeds(node) for node in nodes):
        if any("encoder" in str(value.name) for value in inputs):
            return "bart"
        if not _is_causal(model, nodes):
            return "bert"
        pools = any(node.op_type == "ArgMax" for node in nodes)
        return "clip" if pools and not any("past" in str(v.name) for v in inputs) else "gpt2"
    ranks = {len(v.shape) for v in inputs if v.shape is not None}
    if 4 in ranks:
        return "swin" if sum(map(_rolls, nodes)) >= _ROLLS else "vit"
    return "bart" if any(node.op_type == "Conv" for node in nodes) else "bert"


def _embeds(node: ir.Node) -> bool:
    """Whether a node reads rows of a stored table."""
    table, indices = node.inputs[:2] if node.op_type == "Gather" else (None, None)
    if table is None or indices is None or table.const_value is None:
        return False
    return len(table.const_value.shape) == 2 and indices.const_value is None


def _is_causal(model: ir.Model, nodes: list[ir.Node]) -> bool:
    if any(node.op_type == "Trilu" for node in nodes):
        return True
    if any(node.attributes.get_int("is_causal", 0) for node in nodes):
        return True
    ranges = any(node.op_type == "Range" for node in nodes)
    if ranges and any(node.op_type in _COMPARISONS and _follows_range(node) for node in nodes):
        return True
    return any(map(_is_triangular, model.graph.initializers.values()))


def _follows_range(node: ir.Node) -> bool:
    """Whether both operands come from a Range through operators that only move elements."""
    return all(value is not None and _source(value) == "Range" for value in node.inputs)


def _source(value: ir.Value) -> str:
    moves = {"Add", "Cast", "Expand", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
    producer = value.producer()
    while producer is not None and producer.op_type in moves and producer.inputs:
        first = producer.inputs[0]
        if first is None:
            break
        producer = first.producer()
    return "" if producer is None else producer.op_type


def _is_triangular(value: ir.Value) -> bool:
    tensor = value.const_value
    shape = () if tensor is None else tensor.shape.numpy()
    if tensor is None or len(shape) < 2 or shape[-1] < _LEAST_MASK or shape[-1] != shape[-2]:
        return False
    if tensor.size > _LARGEST_MASK:
        return False
    mask = tensor.numpy().reshape(-1, *shape[-2:])[0]
    upper = np.triu(np.ones(mask.shape, dtype=np.bool_), 1)
    above, below = mask[upper], mask[~upper]
    return bool(np.all(above == above[0]) and np.all(below == below[0]) and above[0] != below[0])


def _rolls(node: ir.Node) -> bool:
    """Whether a node concatenates two parts of one value in another order."""
    if node.op_type != "Concat" or len(node.inputs) != 2:
        return False
    parts = [value.producer() for value in node.inputs if value is not None]
    if len(parts) != 2 or any(part is None or part.op_type != "Slice" for part in parts):
        return False
    sources = {part.inputs[0] for part in parts if part is not None}
    return len(sources) == 1


def _attention(nodes: list[ir.Node]) -> tuple[int, int]:
    """Return heads and hidden size as most Transposes split into heads."""
    counts = Counter(sizes for node in nodes for sizes in _split(node))
    if not counts:
        return 0, 0
    heads, size = counts.most_common(1)[0][0]
    return heads, heads * size


def _split(node: ir.Node) -> Iterator[tuple[int, int]]:
    """Yield heads and their size if a node splits channels, or all of attention, into heads."""
    if node.op_type != "Transpose" or node.inputs[0] is None:
        return
    order = tuple(node.attributes.get_ints("perm", ()))
    shape = node.inputs[0].shape
    if order not in _SPLITS or shape is None or len(shape) != len(order):
        return
    producer = node.inputs[0].producer()
    heads, size = shape[-2], shape[-1]
    reshaped = producer is not None and producer.op_type in ("Reshape", "Split", "Gather")
    if reshaped and isinstance(heads, int) and isinstance(size, int) and heads > 1:
        yield heads, size
