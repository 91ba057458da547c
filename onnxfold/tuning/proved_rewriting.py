"""Rewritings of our own before other tools, each proved: it computes what the model did."""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import prod
from typing import TypeAlias

import onnx_ir as ir

from onnxfold.errors import OnnxfoldError
from onnxfold.graph import FLOATS
from onnxfold.graph.edit import make_input
from onnxfold.proof import Certificate, prove
from onnxfold.shapes import infer

_LEAST_WEIGHT = 16  # elements
Rewriting: TypeAlias = Callable[[ir.Model], int]  # in place; how many places it changed
Undoing: TypeAlias = Callable[[ir.Model, ir.Model], ir.Model]


class NotRewritten(OnnxfoldError):  # noqa: N818
    """A model stays as it is; the message says why."""


def proved(before: ir.Model, after: ir.Model, computed: Collection[str] = ()) -> str | None:
    """Run both models part by part on random numbers; return what is not equal, None: nothing.

    A rewriting gives no hints to the proof (`onnxfold.proof`), which finds by itself what to
    compare. Weights that both store are random too: equality for any weights includes these, and
    equal layers are tested once. ``computed``: values that no test may draw, such as masks: no
    random number is infinite.
    """
    models = [model.clone() for model in (before, after)]
    stored = [model.graph.initializers for model in models]
    both = stored[0].keys() & stored[1].keys()
    for name in [name for name in stored[0] if name in both]:
        twins = [weights[name] for weights in stored]
        if twins[0].const_value is twins[1].const_value and _is_weight(twins[0]):
            for weight in twins:
                make_input(weight)
    for value in (value for node in models[1].graph for value in node.outputs):
        if value.name in computed and not value.is_graph_output():
            value.name = f"{value.name}.computed"  # no counterpart in the original
    old, new = map(infer, models)
    shown = prove(old, new, Certificate(by_name_alone=True))
    return None if shown.passed else shown.failures[0]


def _is_weight(value: ir.Value) -> bool:
    """Whether a tensor holds more than a number or two for a formula."""
    sizes = () if value.shape is None else value.shape.numpy()
    return value.dtype in FLOATS and prod(sizes) >= _LEAST_WEIGHT


def rewritten(model: ir.Model, rewriting: Rewriting, undone: Undoing | None = None) -> ir.Model:
    """Return the result of a rewriting of a model, which is not changed; raises NotRewritten.

    ``undone`` checks what no proof compares, such as stored copies, and reverts it.
    """
    made = model.clone()
    if not rewriting(made):
        return model
    if failure := proved(model, made if undone is None else undone(model, made)):
        raise NotRewritten(f"not proved: {failure}")
    return made
