"""Small gated residual streams, and which norms could fold: every subset of weights, tried.

The oracle knows no law.  It centres each subset of the weights in float64, computes the model by
numpy, and keeps a subset where no output differs; a norm folds where its input has mean 0 then.
Nothing is copied or inserted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["C", "Sketch", "foldable_by_trial", "gated_stream", "layer_norm", "to_onnx"]

Array = npt.NDArray[Any]
B, T, C = 2, 3, 6  # norms of two elements would hardly depend on them
_EPSILON = 1e-5
_MOST_WEIGHTS = 7
_EQUAL = 1e-9


@dataclass(frozen=True, slots=True)
class _Step:
    """One operator: its name in ONNX, operands, result, attributes and what numpy computes."""

    op_type: str
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, Any]
    run: Callable[..., Array]


@dataclass(slots=True)
class Sketch:
    """A model as steps; ``writers``: along which axes each weight may be centred."""

    steps: list[_Step] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    writers: dict[str, set[int]] = field(default_factory=dict)
    norms: dict[str, tuple[str, int]] = field(default_factory=dict)  # result: input and groups
    outputs: list[str] = field(default_factory=list)

    def step(self, op_type: str, run: Callable[..., Array], *inputs: str, **attributes: Any) -> str:
        """Add an operator and return its result."""
        output = f"v{len(self.steps)}"
        self.steps.append(_Step(op_type, inputs, output, attributes, run))
        return output

    def weight(self, array: Array, axis: int | None) -> str:
        """Add a weight, which an operator writes a stream with along ``axis``."""
        name = f"w{len(self.weights)}"
        self.weights[name] = array
        if axis is not None:
            self.writers[name] = {axis}
        return name

    def values(self, feeds: Mapping[str, Array], weights: Mapping[str, Array]) -> dict[str, Array]:
        """Return every value."""
        known = {**feeds, **weights}
        for step in self.steps:
            known[step.output] = step.run(*(known[name] for name in step.inputs))
        return known


def gated_stream(rng: random.Random) -> Sketch:
    """A residual stream of blocks that end in a linear layer, an activation or a gate."""
    return _Maker(rng).make()


class _Maker:
    def __init__(self, rng: random.Random):
        self.rng, self.sketch = rng, Sketch()
        self.numbers = np.random.default_rng(rng.getrandbits(32))

    def make(self) -> Sketch:
        h = self.linear("x")
        for _ in range(self.rng.choice((1, 2, 2, 3))):
            h = self.passed(h)
            if self.rng.random() < 0.15:
                self.read(h)
            written = self.written(self.branch(self.norm(h)))
            if self.rng.random() < 0.1:
                h = self.norm(h)
            operands = self.rng.sample([h, written], 2)
            h = self.sketch.step("Add", np.add, *operands)
            if len(self.sketch.writers) >= _MOST_WEIGHTS - 2:
                break
        last = self.norm(h)
        self.sketch.outputs.append(last)
        if self.rng.random() < 0.1:
            self.sketch.outputs.append(h)
        return self.sketch

    def normal(self, *shape: int) -> Array:
        return self.numbers.standard_normal(shape) + 0.5

    def linear(self, x: str) -> str:
        """A linear layer of [B, T, C], as a product from either side, or a table beside it."""
        kind = self.rng.choice(("matmul", "matmul", "biased", "left", "shared"))
        if kind == "left":
            w = self.sketch.weight(self.normal(C, C), 0)
            y = self.sketch.step("MatMul", np.matmul, w, self.swapped(x))
            return self.swapped(y)
        known = [name for name, axes in self.sketch.writers.items() if axes == {1}]
        shared = kind == "shared" and known
        w = self.rng.choice(known) if shared else self.sketch.weight(self.normal(C, C), 1)
        y = self.sketch.step("MatMul", np.matmul, x, w)
        if kind != "biased":
            return y
        return self.sketch.step("Add", np.add, y, self.sketch.weight(self.normal(C), 0))

    def swapped(self, x: str) -> str:
        return self.sketch.step("Transpose", lambda a: np.swapaxes(a, 1, 2), x, perm=[0, 2, 1])

    def norm(self, x: str) -> str:
        groups = 2 if self.rng.random() < 0.15 else 1
        read = self.shaped(x, groups) if groups > 1 else x
        plain = self.rng.random() < 0.15
        size = C // groups
        gamma = np.ones(size) if plain else 1 + self.numbers.random(size)
        beta = np.zeros(size) if plain else self.normal(size)
        names = [self.sketch.weight(array, None) for array in (gamma, beta)]
        y = self.sketch.step(
            "LayerNormalization", layer_norm, read, *names, axis=-1, epsilon=_EPSILON
        )
        self.sketch.norms[y] = x, groups
        return self.shaped(y, 0) if groups > 1 else y

    def shaped(self, x: str, groups: int) -> str:
        """[B, T, C] as [B, T, groups, C / groups], and back where there are none."""
        sizes = (B, T, groups, C // groups) if groups else (B, T, C)
        shape = self.sketch.weight(np.array(sizes), None)
        return self.sketch.step("Reshape", lambda a, _: a.reshape(sizes), x, shape)

    def branch(self, y: str) -> str:
        """What a block does before it writes: at times as a stream with a norm of its own."""
        f = self.linear(y)
        if self.rng.random() < 0.25 and len(self.sketch.writers) < _MOST_WEIGHTS - 2:
            f = self.linear(self.norm(f))
        return f

    def written(self, f: str) -> str:
        kind = self.rng.choice(("plain", "plain", "relu", "row gate", "gate", "scale", "softmax"))
        step = self.sketch.step
        if kind == "relu":
            return step("Relu", lambda a: np.maximum(a, 0), f)
        if kind == "row gate":
            return step("Mul", np.multiply, f, "row")
        if kind == "gate":
            return step("Mul", np.multiply, f, step("Sigmoid", _sigmoid, "x"))
        if kind == "scale":
            return step("Mul", np.multiply, f, self.sketch.weight(np.array(0.5), None))
        return step("Softmax", _softmax, f, axis=-1) if kind == "softmax" else f

    def passed(self, h: str) -> str:
        kind = self.rng.choice(("", "", "", "negative", "turned", "mixed", "tokens", "centred"))
        step = self.sketch.step
        if kind == "negative":
            return step("Neg", np.negative, h)
        if kind == "turned":
            return self.swapped(self.swapped(h))
        if kind == "mixed":
            mixer = self.sketch.weight(self.normal(T, T), None)
            return step("MatMul", np.matmul, mixer, h)
        if kind == "tokens":
            token = self.sketch.weight(self.normal(1, 1, C), 2)
            shape = self.sketch.weight(np.array([B, 1, C]), None)
            row = step("Expand", lambda a, _: np.broadcast_to(a, (B, 1, C)), token, shape)
            joined = step("Concat", lambda *a: np.concatenate(a, 1), row, h, axis=1)
            places = self.sketch.weight(np.arange(1, T + 1), None)
            return step("Gather", lambda a, at: a[:, at], joined, places, axis=1)
        return h

    def read(self, h: str) -> None:
        """Readers of the stream beside the norms: those that see a shift, and those that do not."""
        kind = self.rng.choice(("sigmoid", "softmax", "head"))
        if kind == "softmax":
            self.sketch.outputs.append(self.sketch.step("Softmax", _softmax, h, axis=-1))
        elif kind == "head":
            head = self.sketch.weight(self.normal(C, 2), None)
            self.sketch.outputs.append(self.sketch.step("MatMul", np.matmul, h, head))
        else:
            self.sketch.outputs.append(self.sketch.step("Sigmoid", _sigmoid, h))


def layer_norm(x: Array, gamma: Array, beta: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return np.asarray(
        centred / np.sqrt((centred**2).mean(-1, keepdims=True) + _EPSILON) * gamma + beta
    )


def _softmax(x: Array) -> Array:
    y = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(y / y.sum(-1, keepdims=True))


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def feeds(rng: random.Random) -> dict[str, Array]:
    """Inputs for a sketch."""
    numbers = np.random.default_rng(rng.getrandbits(32))
    x, row = numbers.standard_normal((B, T, C)), numbers.standard_normal((B, T, 1))
    return {"x": x + 1, "row": row}


def foldable_by_trial(sketch: Sketch, given: Mapping[str, Array]) -> frozenset[str]:
    """Return the most norms that some subset of centred weights lets fold."""
    before = sketch.values(given, sketch.weights)
    best: frozenset[str] = frozenset()
    for weights in _choices(sketch):
        after = sketch.values(given, weights)
        if all(_equal(before[name], after[name]) for name in sketch.outputs):
            norms = sketch.norms.items()
            found = frozenset(y for y, (x, n) in norms if _is_centred(_grouped(after[x], n)))
            best = max(best, found, key=len)
    return best


def _choices(sketch: Sketch) -> Iterator[dict[str, Array]]:
    """Yield the weights with each subset centred, by whole axes or by groups of a norm."""
    counts = {1, *(groups for _, groups in sketch.norms.values())}
    options = [
        [weight, *(_centred(weight, axis, n) for axis in sorted(axes) for n in sorted(counts)
                   if weight.shape[axis] % n == 0)]
        for name, axes in sketch.writers.items() for weight in (sketch.weights[name],)
    ]  # fmt: skip
    for choice in product(*options):
        yield {**sketch.weights, **dict(zip(sketch.writers, choice, strict=True))}


def _centred(weight: Array, axis: int, groups: int) -> Array:
    last = _grouped(np.moveaxis(weight, axis, -1), groups)
    centred = (last - last.mean(-1, keepdims=True)).reshape(*last.shape[:-2], -1)
    return np.moveaxis(centred, -1, axis)


def _grouped(x: Array, groups: int) -> Array:
    return x.reshape(*x.shape[:-1], groups, -1)


def _equal(a: Array, b: Array) -> bool:
    return bool(np.abs(a - b).max() <= _EQUAL * max(1.0, float(np.abs(a).max())))


def _is_centred(x: Array) -> bool:
    return bool(np.abs(x.mean(-1)).max() <= _EQUAL * max(1.0, float(np.abs(x).max())))


def to_onnx(sketch: Sketch) -> onnx.ModelProto:
    """The sketch as a float64 model."""
    shapes = {"x": [B, T, C], "row": [B, T, 1]}
    read = {name for step in sketch.steps for name in step.inputs}
    graph = helper.make_graph(
        [
            helper.make_node(
                step.op_type, step.inputs, [step.output], step.output, **step.attributes
            )
            for step in sketch.steps
        ],
        "sketch",
        [
            helper.make_tensor_value_info(name, TensorProto.DOUBLE, shape)
            for name, shape in shapes.items()
            if name in {"x", *read}
        ],
        [helper.make_empty_tensor_value_info(name) for name in dict.fromkeys(sketch.outputs)],
        [numpy_helper.from_array(array, name) for name, array in sketch.weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
