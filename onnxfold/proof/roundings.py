"""Whether a region rounds no more than the original's, on rows that are hard for norms.

The test of a relation (tester.py) uses float64 numbers, in which a norm of a constant row is 0
either way. In the types of the model this may differ: a result that is exact for a row of N(0, 1)
may be off by 1 / sqrt(epsilon) on a constant one. The nodes of both models are therefore run again
in the types of the model, on rows of every kind, and compared with a float64 run of the original's:
with t this truth, u the original's numbers, v the other model's and e the unit roundoff,

    rms(v - t)  <=  8 max(rms(u - t), e rms(t), e rms(t of usual rows)).

For a model in float64 a better truth does not exist, so nothing is compared.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from onnxfold.check.reference import Precision, is_wide_float, run_nodes, unit_roundoff
from onnxfold.graph import FLOATS, constant_tensor
from onnxfold.proof.draws import ERRORS
from onnxfold.proof.leaf import Leaf, drawn_pair
from onnxfold.proof.region import Region
from onnxfold.proof.relation import Float64
from onnxfold.proof.sizes import SAMPLINGS, Drawn, Sizes

_LIMIT = 8.0  # regions are small, and with few numbers luck decides a factor of 2
_MOST_INDEX = 1
_CONSTANT, _SHIFT = 3.0, 1e3  # sums of threes are exact in any order
_COMPARED = FLOATS - {ir.DataType.DOUBLE}
KINDS = ("usual", "constant", "shifted", "zero")


class Rows(np.random.Generator):
    """Draws of values whose rows are all of one kind, along any axes."""

    def __init__(self, seed: int, kind: str):
        super().__init__(np.random.PCG64(seed))
        self._kind = kind

    def standard_normal(self, size: tuple[int, ...]) -> Float64:  # type: ignore[override]  # one use
        """Return numbers of this kind in a shape."""
        if self._kind == "constant":
            return np.full(size, _CONSTANT)
        if self._kind == "zero":
            return np.zeros(size)
        drawn = np.asarray(super().standard_normal(size))
        return drawn + _SHIFT if self._kind == "shifted" else drawn


def rounds_more(region: Region) -> str | None:
    """Describe the rows on which the rewritten model errs more than the original, or return None.

    None too if the rows cannot be drawn: then only the relation is known.
    """
    typical = 0.0
    for kind in KINDS:
        try:
            with np.errstate(all="ignore"):
                found = _numbers(region, kind)
        except ERRORS:
            continue
        if found is None:
            continue
        truth, original, rewritten = found
        unit = unit_roundoff(rewritten.dtype)
        if not (np.isfinite(truth).all() and np.isfinite(original).all()):
            continue  # the original overflows
        size = _rms(truth)
        typical = size if kind == "usual" else typical
        noise = max(_rms(original - truth), unit * size, unit * typical)
        error = _rms(rewritten.astype(np.float64) - truth)
        if not error <= _LIMIT * noise:
            ratio = error / noise if noise else np.inf
            name = region.pair[1].name
            return f"on {kind} rows '{name}' errs by {ratio:.2g} times as much as before"
    return None


def _numbers(region: Region, kind: str) -> tuple[Float64, Float64, Drawn] | None:
    """Return the truth, and the numbers of both models in their own types.

    None unless it is a float of 16 or 32 bits.
    """
    u, v = region.pair
    if u is None or v.dtype not in _COMPARED:
        return None
    old, new = _drawn(region, region.sizes(SAMPLINGS[0]), kind)
    exact = {value: _wide(array) for value, array in old.items()}
    truth = run_nodes(region.before, region.old.nodes, exact)[u]
    native = Precision.NATIVE
    original = run_nodes(region.before, region.old.nodes, old, native)[u]
    rewritten = run_nodes(region.after, region.new.nodes, new, native)[v]
    return _exact(truth), _exact(original), rewritten


def _wide(array: Drawn) -> Drawn:
    return array.astype(np.float64) if is_wide_float(array.dtype) else array


def _exact(array: Drawn) -> Float64:
    return array.astype(np.float64)


def _rms(array: Float64) -> float:
    return float(np.sqrt(np.mean(np.square(array)))) if array.size else 0.0


def _drawn(
    region: Region, sizes: Sizes, kind: str
) -> tuple[dict[ir.Value, Drawn], dict[ir.Value, Drawn]]:
    """Return values of the leaves in both models, in their types: weights as usual, others by kind.

    The other model's values are derived from the original's rounded ones.
    """
    old: dict[ir.Value, Drawn] = {}
    new: dict[ir.Value, Drawn] = {}
    activations, weights = Rows(0, kind), Rows(1, "usual")
    for leaf in (leaf.of(sizes) for leaf in region.leaves):
        rng = weights if _is_weight(leaf) else activations
        first, second = _pair(leaf, sizes, rng, old, new)
        if leaf.u is not None:
            old[leaf.u] = first
        if leaf.v is not None:
            new[leaf.v] = second
    return old, new


def _is_weight(leaf: Leaf) -> bool:
    return any(constant_tensor(value) is not None for value in (leaf.u, leaf.v))


def _pair(
    leaf: Leaf,
    sizes: Sizes,
    rng: Rows,
    old: Mapping[ir.Value, Drawn],
    new: Mapping[ir.Value, Drawn],
) -> tuple[Drawn, Drawn]:
    def draw(known: Mapping[ir.Value, Drawn]) -> tuple[Drawn, Drawn]:
        return drawn_pair(leaf, sizes, rng, 1.0, known, new, range(_MOST_INDEX))

    first, second = draw(old)
    rounded = _rounded(leaf, first)
    if leaf.relation.equal and not leaf.fixed:
        return rounded, rounded
    if not leaf.fixed and leaf.u is not None and leaf.zero in (None, leaf.relation.fiber):
        _, second = draw({**old, leaf.u: rounded})
    return rounded, _rounded(leaf, second)


def _rounded(leaf: Leaf, array: Drawn) -> Drawn:
    """Return numbers in the type of a leaf."""
    if leaf.dtype not in FLOATS or leaf.dtype is None:
        return array
    return array.astype(leaf.dtype.numpy())
