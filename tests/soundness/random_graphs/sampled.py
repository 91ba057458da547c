"""Random models around one operator of the law table, drawn by its sampler.

The operator's operands are written by constants, carried or normalized; norms of random fibers
read its results and its operands.  A new line of the table is covered as soon as it has a sampler.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.operators.operators import operator
from tests.operators.sample import Array, Draw, Operand, Sample
from tests.operators.samplers import SAMPLERS
from tests.soundness.random_graphs.draft import Draft, RandomGraph

__all__ = ["DRAWN", "sampled_graph"]

Key = tuple[str, str]
_EPSILON = 2.0**-10
_ONE_TYPE = {("", "Cast"), ("", "CastLike")}


# Drawn by mixtures.py as well; without it here, the seeds that tests name keep their graphs.
DRAWN = sorted(SAMPLERS.keys() - {("", "BatchNormalization")})


def sampled_graph(rng: random.Random, key: Key | None = None) -> RandomGraph:
    """A model around the operator ``key``, or around any of the table."""
    key = rng.choice(DRAWN) if key is None else key
    while True:
        sample: Sample = SAMPLERS[key](Draw(rng))
        if all(0 not in o.array.shape for o in sample.operands if o is not None and o.moves):
            return _Sampled(rng, key, sample).make()


class _Sampled(Draft):
    def __init__(self, rng: random.Random, key: Key, sample: Sample):
        super().__init__(rng, sample.opset)
        self.key, self.sample = key, sample
        self.computes = any(operand is not None and operand.moves for operand in sample.operands)
        if key in _ONE_TYPE or any(
            operand is not None and operand.moves and operand.array.dtype != np.float64
            for operand in sample.operands
        ):
            self.dtype = TensorProto.DOUBLE

    def make(self) -> RandomGraph:
        self.made[f"sampled {'.'.join(filter(None, self.key))}"] += 1
        names = [self.operand(index) for index in range(len(self.sample.operands))]
        if self.sample.domain == "onnxfold":
            self.own(self.sample.op_type, self.sample.attributes["axis"])
        attributes = {"domain": self.sample.domain, **self.sample.attributes}
        results = self.nodes(self.sample.op_type, *names, outputs=self.sample.outputs, **attributes)
        arrays = self.sample.evaluator()(self.sample.arrays())
        for name, array in zip(results, arrays, strict=True):
            self.end(self.not_constant(self.floating(name, array), array), array.shape)
        for name, operand in zip(names, self.sample.operands, strict=True):
            if operand is not None and operand.moves and self.chance(0.3):
                self.end(self.floating(name, operand.array), operand.array.shape)
        operators: tuple[type, ...] = ()
        if self.sample.function is not None:
            function, given = self.sample.function, self.sample.attributes

            def compute(arrays: list[Array | None], own: dict[str, Any]) -> list[Array]:
                # Of any such node: a fold makes others.
                return function(arrays, {k: own[k] for k in given if own.get(k) is not None})

            operators = (operator(self.sample.domain, self.sample.op_type, compute),)
        return self.finished(operators)

    # Operands

    def operand(self, index: int) -> str:
        operand = self.sample.operands[index]
        if operand is None:
            return ""
        if not operand.moves:
            if operand.constant:
                typed = operand.array.dtype == np.float64 and self.computes
                make = self.parameter if typed else self.initializer
                return make(operand.array, f"fixed{index}_")
            name = f"given{index}"
            self.inputs[name] = (
                helper.np_dtype_to_tensor_dtype(operand.array.dtype), list(operand.dims)
            )  # fmt: skip
            self.feeds[name] = operand.array
            return name
        if operand.constant:
            return self.parameter(operand.array, f"weight{index}_")
        draw = self.rng.random()
        if draw < 0.1 or not operand.array.shape:
            self.input(f"x{index}", operand.array, list(operand.dims))
            return f"x{index}"
        written = self.written(index, operand)
        if draw < 0.25:
            return self.layer_norm(written, operand.array.shape, [operand.array.ndim - 1])
        return written

    def written(self, index: int, operand: Operand) -> str:
        """s W + V: W and V are constants of size 1 along symbolic axes, s an input of the rest."""
        shape = operand.array.shape
        symbolic = [isinstance(dim, str) for dim in operand.dims]
        stored = [1 if free else size for free, size in zip(symbolic, shape, strict=True)]
        given = [size if free else 1 for free, size in zip(symbolic, shape, strict=True)]
        dims: list[Any] = [
            dim if free else 1 for free, dim in zip(symbolic, operand.dims, strict=True)
        ]
        s = self.input(f"s{index}", 1 + self.numbers.random(given), dims)
        offset = float(operand.array.mean()) if operand.array.min(initial=0) > 10 else 0.3
        W = self.parameter(self.numbers.standard_normal(stored) + offset, "w")
        if symbolic[-1:] == [False] and shape[-1] > 1 and self.chance(0.4):
            inner = self.node("Mul", s, self.parameter(self.numbers.random((*stored[:-1], 3)), "u"))
            square = np.eye(3, shape[-1]) + 0.2 * self.numbers.standard_normal((3, shape[-1]))
            product = self.node("MatMul", inner, self.parameter(square + 0.2, "w"))
            y = self.node("Add", product, W)
        else:
            y = self.node("Mul", *self.rng.sample([s, W], 2))
            if self.chance(0.4):
                y = self.node("Add", y, self.parameter(self.numbers.standard_normal(stored), "v"))
        return y

    # What reads a value

    def not_constant(self, name: str, array: Array) -> str:
        """What constants alone give, added to something computed: a norm of it would not fold."""
        if self.computes:
            return name
        given = Operand(np.zeros(array.shape), array.shape, constant=False, moves=True)
        computed = self.written(len(self.sample.operands), given)
        return self.node("Add", self.node("Cast", name, to=self.dtype), computed)

    def floating(self, name: str, array: Array) -> str:
        one_type = self.key in _ONE_TYPE and array.dtype.kind not in "iu"
        stays = array.dtype == np.float64 or one_type
        if stays and self.sample.attributes.get("to", TensorProto.DOUBLE) == TensorProto.DOUBLE:
            return name if self.key != ("", "CastLike") else self.node("Cast", name, to=self.dtype)
        return self.node("Cast", name, to=self.dtype)

    def end(self, name: str, shape: tuple[int, ...]) -> None:
        if self.chance(0.1):
            self.body.outputs.append(name)
        count = 2 if self.chance(0.25) else 1
        for _ in range(count):
            self.body.outputs.append(self.read(name, shape))

    def read(self, name: str, shape: tuple[int, ...]) -> str:
        long = [axis for axis, size in enumerate(shape) if size > 1]
        if not long or self.chance(0.1):
            return self.node("Sigmoid", name)
        if self.chance(0.15):
            return self.linear(name, shape)
        if self.chance(0.6):
            axes = [self.rng.choice(long)]
        else:
            axes = [axis for axis in long if self.chance(0.5)] or [long[-1]]
        last = shape[-1]
        if axes == [len(shape) - 1] and last % 2 == 0 and last > 2 and self.chance(0.3):
            blocks = [*shape[:-1], 2, last // 2]
            return self.layer_norm(
                self.node("Reshape", name, self.ints(*self._sizes(blocks))),
                tuple(blocks), [len(blocks) - 1],
            )  # fmt: skip
        y = self.layer_norm(name, shape, axes)
        return self.linear(y, shape) if self.chance(0.4) else y

    def _sizes(self, blocks: list[int]) -> list[int]:
        """As Reshape takes them, with leading dimensions copied."""
        return [0] * (len(blocks) - 2) + blocks[-2:]

    def linear(self, y: str, shape: tuple[int, ...]) -> str:
        product = self.node("MatMul", y, self.parameter(self.numbers.random((shape[-1], 2)), "r"))
        if self.chance(0.5):
            return self.node("Add", product, self.parameter(self.numbers.random(2), "b"))
        return product

    def layer_norm(self, x: str, shape: tuple[int, ...], axes: list[int]) -> str:
        """A norm over any axes: spelled in place, or as an operator after a Transpose."""
        rank = len(shape)
        trailing = axes == list(range(rank - len(axes), rank))
        if self.opset < 17 or not trailing or self.chance(0.3):
            return self._spelled(x, shape, axes)
        part = shape[-len(axes) :]
        inputs = [x, self._own_or(x, part == shape, 1 + self.numbers.random(part), "gamma")]
        if self.chance(0.5):
            inputs.append(self._own_or(x, part == shape, self.numbers.random(part), "beta"))
        return self.node("LayerNormalization", *inputs, axis=-len(axes), epsilon=_EPSILON)

    def _own_or(self, x: str, fits: bool, numbers: Array, role: str) -> str:
        """The numbers as a parameter, or sometimes what is normalized itself, where that fits."""
        if fits and self.chance(0.3):
            self.made["norm scaled or moved by what it normalises"] += 1
            return x
        return self.parameter(numbers, role)

    def _spelled(self, x: str, shape: tuple[int, ...], axes: list[int]) -> str:
        centred = self.node("Sub", x, self.mean(x, *axes))
        variance = self.mean(self.node("Mul", centred, centred), *axes)
        root = self.node("Sqrt", self.node("Add", variance, self.scalar(_EPSILON)))
        y = self.node("Div", centred, root)
        if self.chance(0.5):
            part = [size if axis in axes else 1 for axis, size in enumerate(shape)]
            y = self.node("Mul", y, self.parameter(1 + self.numbers.random(part), "gamma"))
            if self.chance(0.5):
                y = self.node("Add", y, self.parameter(self.numbers.random(part), "beta"))
        return y
