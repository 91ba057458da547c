"""The property that every line of the law table must have, checked on one sample.

Backward, ``Carried``:     f(P x1, P x2, rest) = P f(x1, x2, rest), and a shift of each carried
                           input, alone and together, is a shift of the output along its own fiber.
Backward, ``ZeroMean``:    the output's mean along the fiber is 0.
Forward, ``()``:           a shift of the input changes no output.
Forward, points:           it is a shift of the outputs named, and changes no other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from onnxfold.graph import AxisBlock, Fiber, ModelInfo, Reader, Shape
from onnxfold.operators.families.transfer import Carried, ZeroMean
from onnxfold.refusal import Refusal
from onnxfold.streams import fiber_parts
from onnxfold.streams.model_transfers import ModelTransfers, Point
from tests.operators.projector import mean_along, project
from tests.operators.sample import Array, Draw, Sample

__all__ = ["UnsoundError", "check_sample"]

_FIBERS_PER_VALUE = 4


class UnsoundError(AssertionError):
    """A law said what the numbers deny."""


def check_sample(sample: Sample, draw: Draw) -> Counter[str]:
    """Raise UnsoundError where the law is wrong on the sample; count what it answered."""
    return _Check(sample, draw).run()


class _Check:
    def __init__(self, sample: Sample, draw: Draw):
        self.sample, self.draw = sample, draw
        self.view: ModelInfo = sample.view()
        self.node = next(iter(self.view.nodes()))
        self.transfers = ModelTransfers(self.view, ())
        self.f = sample.evaluator()
        self.x = sample.arrays()
        self.y = self.f(self.x)
        self.tally: Counter[str] = Counter()

    def run(self) -> Counter[str]:
        for index, result in enumerate(self.y):
            shape = self.view.shape(self.node.outputs[index])
            if shape is None:
                self.tally["unknown shape"] += 1
                continue
            sizes = [self.sample.resolved(dim) for dim in shape]
            if len(sizes) != result.ndim or any(
                size not in (None, n) for size, n in zip(sizes, result.shape, strict=True)
            ):
                raise UnsoundError(
                    f"{self._name()} has shape {result.shape}, the view says {shape}"
                )
            for fiber in self._fibers(shape, result.shape):
                self._check_backward(index, fiber)
        for index, operand in enumerate(self.sample.operands):
            if operand is None or not operand.moves:
                continue
            for fiber in self._fibers(operand.dims, operand.array.shape):
                self._check_effect(index, fiber)
        return self.tally

    def _name(self) -> str:
        shapes = [None if o is None else o.dims for o in self.sample.operands]
        return f"{self.sample.op_type}-{self.sample.opset} {shapes} {self.sample.attributes}"

    def _fibers(self, shape: Shape, sizes: tuple[int, ...]) -> Iterator[Fiber]:
        """Yield the empty fiber, and random ones of whole axes and of blocks."""
        yield Fiber(())
        if 0 in sizes:
            return
        for _ in range(_FIBERS_PER_VALUE):
            blocks = []
            for axis, (dim, size) in enumerate(zip(shape, sizes, strict=True)):
                if self.draw.chance(0.45):
                    blocks += self._block(axis, isinstance(dim, int), size)
            yield self._some(Fiber.of(blocks), shape, sizes)

    def _some(self, fiber: Fiber, shape: Shape, sizes: tuple[int, ...]) -> Fiber:
        """Return the fiber, at times of a part: the sets at some positions of an adjacent digit."""
        axes = [
            axis
            for axis, size in enumerate(sizes)
            if size > 1 and isinstance(shape[axis], int) and axis not in fiber.axes
        ]
        if not axes or self.draw.chance(0.5):
            return fiber
        axis = self.draw.pick(axes)
        (digit,) = self._block(axis, known=True, size=sizes[axis])
        chosen = [self.draw.chance(0.5) for _ in range(digit.size)]
        return fiber.within((digit,), chosen) if any(chosen) and digit.size > 1 else fiber

    def _block(self, axis: int, known: bool, size: int) -> list[AxisBlock]:
        if known and self.draw.chance(0.7):
            return [AxisBlock(axis, 1, size, 1)]
        divisors = [n for n in range(1, size + 1) if size % n == 0]
        inner = self.draw.pick(divisors)
        length = self.draw.pick([n for n in divisors if (size // inner) % n == 0])
        return [AxisBlock(axis, inner, length, size // inner // length if known else None)]

    def _check_backward(self, output: int, fiber: Fiber) -> None:
        origin = self.transfers.backward(Point(self.node.outputs[output], fiber))
        where = f"{self._name()}, output {output}, {fiber or 'empty fiber'}"
        self._check_cut(output, fiber, where)
        if isinstance(origin, Refusal):
            self.tally["refused"] += 1
            return
        if isinstance(origin, ZeroMean):
            self.tally["zero mean"] += 1
            self._equal(mean_along(self.y[output], fiber), 0.0, f"{where}: a mean that is not 0")
            return
        self.tally["carried"] += bool(fiber.blocks)
        self.tally["carried elsewhere"] += any(inner != fiber for _, inner in origin.inputs)
        self._check_centring(origin, output, fiber, where)
        for chosen in [(pair,) for pair in origin.inputs] + [origin.inputs]:
            self._check_shift(chosen, output, fiber, where)

    def _check_cut(self, output: int, fiber: Fiber, where: str) -> None:
        """P cut(x) = cut(P x) for P of the part alone, whose shift no other output sees."""
        source = fiber_parts.before_cut(self.view, self.node.outputs[output], fiber)
        if source is None:
            return
        self.tally["cut"] += 1
        self._check_centring(Carried(((0, source),)), output, fiber, where)
        arrays = list(self.x)
        arrays[0] = self._shifted(self._moving(0, where), source, 0)
        results = self.f(arrays)
        for other in range(len(self.y)):
            moved = self._change(results, other)
            moved = project(moved, fiber) if other == output else moved
            self._equal(moved, 0.0, f"{where}: a shift of the part reaches output {other}")

    def _check_centring(self, origin: Carried, output: int, fiber: Fiber, where: str) -> None:
        arrays = list(self.x)
        for index, inner in origin.inputs:
            arrays[index] = self._like(project(self._moving(index, where), inner), index)
        expected = project(self.y[output], fiber)
        self._equal(self.f(arrays)[output], expected, f"{where}: P does not commute")

    def _check_shift(
        self, chosen: tuple[tuple[int, Fiber], ...], output: int, fiber: Fiber, where: str
    ) -> None:
        arrays = list(self.x)
        for index, inner in chosen:
            arrays[index] = self._shifted(self._moving(index, where), inner, index)
        moved = self._change(self.f(arrays), output)
        self._equal(project(moved, fiber), 0.0, f"{where}: a shift of {chosen} is no shift")

    def _check_effect(self, index: int, fiber: Fiber) -> None:
        value = self.node.inputs[index]
        if value is None:
            return
        response = self.transfers.forward(Point(value, fiber), Reader(self.node, index))
        where = f"{self._name()}, input {index}, {fiber or 'empty fiber'}"
        if isinstance(response, Refusal):
            self.tally["exact"] += 1
            return
        self.tally["equivariant" if response else "invariant"] += bool(fiber.blocks)
        arrays = list(self.x)
        arrays[index] = self._shifted(self._moving(index, where), fiber, index)
        results = self.f(arrays)
        outer = {point.value: point.fiber for point in response}
        for output, value in enumerate(self.node.outputs):
            moved = self._change(results, output)
            if value in outer:
                moved = project(moved, outer[value])
            self._equal(moved, 0.0, f"{where}: {response} is not what happens")

    def _moving(self, index: int, where: str) -> Array:
        operand = self.sample.operands[index]
        if operand is None or not operand.moves:
            raise UnsoundError(
                f"{where}: carries input {index}, which holds no values of the stream"
            )
        return operand.array

    def _shifted(self, array: Array, fiber: Fiber, index: int) -> Array:
        return self._like(array + mean_along(3 * self.draw.normal(array.shape), fiber), index)

    def _like(self, array: Array, index: int) -> Array:
        operand = self.sample.operands[index]
        return array if operand is None else array.astype(operand.array.dtype)

    def _change(self, results: list[Array], output: int) -> Array:
        return results[output].astype(np.float64) - self.y[output].astype(np.float64)

    def _equal(self, a: Array, b: Array | float, message: str) -> None:
        scale = max([1.0, *(float(np.abs(y.astype(np.float64)).max(initial=0)) for y in self.y)])
        worst = float(np.abs(np.asarray(a, np.float64) - b).max(initial=0))
        if not worst <= self.sample.tolerance * 1e2 * scale:
            raise UnsoundError(f"{message} (off by {worst:g})")
