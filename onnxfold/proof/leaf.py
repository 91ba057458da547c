"""A value from which a region starts, and random numbers for it in both models."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
import onnx_ir as ir

from onnxfold.graph import FLOATS, Fiber, Shape, constant_tensor
from onnxfold.proof.relation import Float64, Relation, means
from onnxfold.proof.sizes import Drawn, Sizes
from onnxfold.weights.edited import EditedTensor

_SMALLEST_NORMAL = float(np.finfo(np.float64).smallest_normal)  # its reciprocal is finite
MAY_BE_FLOATS = FLOATS | {None}


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """A value of one or both models from which a region starts.

    ``array`` or ``given`` fix it (the original's numbers and the other model's), otherwise it is
    drawn; ``zero``: v has mean 0 along it. ``shape``: symbolic.
    """

    u: ir.Value | None
    v: ir.Value | None
    relation: Relation
    shape: Shape
    dtype: ir.DataType | None
    array: Drawn | None = None
    given: Drawn | None = None
    zero: Fiber | None = None
    slack: float = 0.0

    def of(self, sizes: Sizes) -> Leaf:
        """Return the leaf of smaller tensors."""
        arrays = [None if a is None else sizes.constant(a) for a in (self.array, self.given)]
        zero = None if self.zero is None else sizes.fiber(self.zero)
        relation = self.relation.of(sizes)
        return replace(self, relation=relation, array=arrays[0], given=arrays[1], zero=zero)

    @property
    def fibers(self) -> tuple[Fiber, ...]:
        """The fibers along which something is claimed."""
        turn = self.relation.turn
        known = (self.relation.fiber, self.zero, None if turn is None else turn.fiber)
        return tuple(fiber for fiber in known if fiber is not None)

    @property
    def kept(self) -> set[int]:
        """The sizes of axes whose numbers a smaller tensor would lose."""
        known = tuple(dim if isinstance(dim, int) else 0 for dim in self.shape)
        return self.relation.kept(known).union(
            *(a.shape for a in (self.array, self.given) if a is not None)
        )

    @property
    def fixed(self) -> bool:
        """Whether it is a constant with known numbers."""
        return self.array is not None or self.given is not None

    def all_finite(self) -> Leaf:
        """Return the leaf with 1 where its constant is NaN or infinite."""
        return replace(self, array=_finite(self.array), given=_finite(self.given))

    def as_stored(self) -> Leaf:
        """Return the leaf in which an edited constant that only the original reads is rounded."""
        tensor = constant_tensor(self.u) if self.v is None and self.array is not None else None
        return replace(self, array=tensor.numpy()) if isinstance(tensor, EditedTensor) else self

    def with_reciprocal(self, sizes: Collection[int]) -> Leaf:
        """Return the leaf with 1 / n, n one of the sizes, instead of its rounding."""
        if self.v is not None or self.array is None or self.array.size != 1:
            return self
        number = float(self.array.reshape(()))
        n = round(1 / number) if _SMALLEST_NORMAL <= number < 1 else 1
        if n == 1 or n not in sizes or self.array.dtype.type(1 / n) != number or 1 / n == number:
            return self
        return replace(self, array=np.full(self.array.shape, 1 / n))

    @property
    def random(self) -> bool:
        """Whether it is drawn, in one shape for both models, as floating-point numbers."""
        return not self.fixed and self.relation.short is None and self.dtype in MAY_BE_FLOATS

    def with_zero(self, fiber: Fiber) -> Leaf:
        """Return the leaf with v of mean 0 along a fiber; a constant is then drawn as well."""
        return replace(self, zero=fiber, array=None, given=None)

    @property
    def differs_along(self) -> frozenset[int]:
        """The axes along which the relation of the models' numbers varies.

        A test covers only the elements that it reads.
        """
        array = self.given if self.array is None else self.array
        r = self.relation.r
        known = (fiber.part for fiber in self.fibers if fiber.part is not None)
        parts = frozenset(digit.axis for part in known for digit in part.digits)
        if self.relation.turn is not None:
            parts |= frozenset(self.relation.turn.fiber.axes)
        if r is None and self.u is not None and self.v is not None and self.relation.known:
            return parts
        if r is None and (array is None or array.dtype.kind not in "fV"):
            return parts
        shape = r.shape if array is None and r is not None else self.shape
        return frozenset(axis for axis, dim in enumerate(shape) if dim != 1)

    @property
    def key(self) -> tuple[object, ...]:
        """Return a key shared by leaves that are drawn in the same way."""
        arrays = tuple(
            None if a is None else (a.shape, a.dtype, _digest(a)) for a in (self.array, self.given)
        )
        return (self.shape, self.dtype, self.zero, self.relation.key, *arrays)


def _digest(array: Drawn) -> bytes:
    """Return a few bytes that identify the numbers of a weight, which may be large."""
    return blake2b(np.ascontiguousarray(array).tobytes()).digest()


def _finite(array: Drawn | None) -> Drawn | None:
    if array is None or array.dtype.kind != "f":
        return array
    return np.where(np.isfinite(array), array, array.dtype.type(1))


def drawn_pair(
    leaf: Leaf,
    sizes: Sizes,
    rng: np.random.Generator,
    scale: float,
    old: Mapping[ir.Value, Drawn],
    new: Mapping[ir.Value, Drawn],
    integers: range,
) -> tuple[Drawn, Drawn]:
    if leaf.fixed:
        return _fixed(leaf)
    u = None if leaf.u is None else old.get(leaf.u)
    v = None if leaf.v is None else new.get(leaf.v)
    shape = sizes.of(leaf.shape)
    if leaf.dtype not in MAY_BE_FLOATS:
        if not leaf.relation.equal:
            raise ArithmeticError("integers are equal or unknown")
        made = next((a for a in (u, v) if a is not None), None)
        made = _discrete(leaf.dtype, shape, rng, integers) if made is None else made
        return made, made
    if u is not None and v is not None:
        raise ArithmeticError("both are known")
    if u is None and v is None and leaf.relation.reverse and leaf.zero is None:
        u = rng.standard_normal(shape) * scale
    if u is not None:
        return u, _of_original(leaf, u.astype(np.float64), rng, scale)
    if v is None:
        v = rng.standard_normal(leaf.relation.shape_of_counterpart(shape)) * scale
        v = v if leaf.zero is None else v - means(v, leaf.zero)
    if leaf.u is None:
        return v, v
    return leaf.relation.original(v.astype(np.float64), rng, scale), v


def _fixed(leaf: Leaf) -> tuple[Drawn, Drawn]:
    """Return the numbers of a constant in both models."""
    first = leaf.given if leaf.array is None else leaf.array
    second = leaf.array if leaf.given is None else leaf.given
    if first is None or second is None:
        raise ArithmeticError("a constant has no numbers")
    return first, second


def _of_original(leaf: Leaf, u: Float64, rng: np.random.Generator, scale: float) -> Float64:
    if leaf.zero is None:
        return leaf.relation.counterpart(u, rng, scale)
    if leaf.relation.fiber != leaf.zero:
        raise ArithmeticError("its mean is 0")
    return u - means(u, leaf.zero)


def _discrete(
    dtype: ir.DataType | None, shape: tuple[int, ...], rng: np.random.Generator, integers: range
) -> Drawn:
    kind = np.dtype(bool) if dtype is None else dtype.numpy()
    if kind.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if kind.kind not in "iu":
        raise ArithmeticError(f"no numbers of type {kind}")
    return rng.integers(integers.start, integers.stop, shape).astype(kind)
