"""Every row of the operator table with one facet false, and what the planner then does.

The planner believes the table; random graphs around the operator show it where it errs.  The proof
asks no table, so that no wrong model may pass it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from onnxfold.operators import table
from onnxfold.operators.row import Elements, Family, Layer, Operator, Shapes
from tests.operators.mutants import ROLES, Broken
from tests.operators.rows import transfer_for, with_transfer
from tests.soundness.checking import check, settings_of
from tests.soundness.random_graphs import sampled_graph

__all__ = ["Flip", "flips", "outcomes"]

_DATA = (None, (0,), (1,), (0, 1))


@dataclass(frozen=True, slots=True)
class Flip:
    """One facet of one row, and what is said of it instead: another row, or a broken law."""

    row: Operator
    facet: str
    false: Operator | type[Broken]

    def believed(self, patch: pytest.MonkeyPatch) -> None:
        """Let the planner believe it until the patch is undone."""
        if isinstance(self.false, Operator):
            patch.setitem(table.ROWS, self.row.key, self.false)
        else:
            with_transfer(patch, self.row, self.false(transfer_for(self.row)))


def flips(row: Operator) -> Iterator[Flip]:
    """Yield every facet of a row turned to each false value that there is, or to a few of many."""
    for facet, false in (*_laws(row), *_numbers(row), *_others(row)):
        yield Flip(row, facet, false)


def _laws(row: Operator) -> Iterator[tuple[str, Operator | type[Broken]]]:
    if row.family is not None:
        yield from ((f"law {role.__name__}", role) for role in ROLES)
        return
    for family in (Family.ADDITIVE, Family.SHIFT_INVARIANT):
        yield f"law {family.name}", replace(row, family=family, opaque=None)


def _numbers(row: Operator) -> Iterator[tuple[str, Operator]]:
    """Yield what is false of the numbers: what is done to them, and to which inputs' of them."""
    family = row.family or Family.ADDITIVE
    plain = replace(row, family=family, opaque=None, unless=(), no_shift="")
    for level in Elements:
        if level < row.elements:
            yield f"elements {level.name}", replace(plain, elements=level)
    if row.unless:
        yield "unless", replace(row, unless=())
    if row.no_shift:
        yield "no_shift", replace(row, no_shift="", elements=Elements.AVERAGES)
    if row.family is not None:
        yield "alone", replace(row, alone=not row.alone)
        yield from ((f"data {data}", replace(row, data=data)) for data in _DATA if data != row.data)
    if row.bias is not None:
        yield "bias", replace(row, bias=None)
    if row.masks:
        yield "masks", replace(row, masks=())


def _others(row: Operator) -> Iterator[tuple[str, Operator]]:
    for layer in Layer if row.layer is not None else ():
        if layer is not row.layer:
            yield f"layer {layer.name}", replace(row, layer=layer)
    for shape in Shapes:
        if shape is not row.shape:
            yield f"shape {shape.name}", replace(row, shape=shape)
    if row.adds_first != (0, 1):
        yield "adds_first", replace(row, adds_first=(0, 1))
    if not row.foldable:
        yield "foldable", replace(row, foldable=True)
    if not row.rounded:
        yield "rounded", replace(row, rounded=True)
    if row.random:
        yield "random", replace(row, random=False)
    yield "decides", replace(row, decides=not row.decides)
    if row.tables:
        yield "tables", replace(row, tables=())


def outcomes(flip: Flip, graphs: int) -> Counter[str]:
    """Fold random graphs while a flip is in effect, and count the outcomes by their first word.

    "right": the model computes the function; "proof": it was refused; "numbers": a wrong model was
    proved. Other errors are named by ``check``.
    """
    tally: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        flip.believed(patch)
        for seed in range(graphs):
            rng = random.Random(seed)  # noqa: S311 # no secret
            drawn = replace(settings_of(seed), allow_split_bytes=1 << 20, exclude=None)
            graph = sampled_graph(rng, flip.row.key)
            failure = check(graph, replace(drawn, fuse_affine=True)).failure
            tally["right" if failure is None else failure.partition(":")[0]] += 1
    return tally
