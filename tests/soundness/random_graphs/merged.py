"""Random models of norms that tools have merged, of nasty rows, and behind long sums."""

from __future__ import annotations

import random

import numpy as np
from onnx import numpy_helper

from tests.soundness.random_graphs.draft import B, H, RandomGraph, T
from tests.soundness.random_graphs.norms import EPSILON
from tests.soundness.random_graphs.streams import Streams

__all__ = ["ENDS", "PARTS", "ROWS", "merged_graph"]

# The content of a table's row; the norms after it normalize some of these directly.
ROWS = ("constant", "shifted", "zero", "large", "plain")
PARTS = ("constant", "Constant node", "row of a table", "layer", "number", "again")
ENDS = ("gamma", "beta", "gamma and beta", "nothing", "a number", "a gate")
_LONGEST = 12


def merged_graph(rng: random.Random) -> RandomGraph:
    """A model of norms that share all but gamma and beta."""
    return _Merged(rng).make()


class _Merged(Streams):
    def make(self) -> RandomGraph:
        self.declare()
        self.body.hidden.append("x")
        self.body.streams.append(self._table())
        if self.chance(0.7):
            self.write()
        self.body.streams.append(self._sum(self.stream()))
        for _ in range(self.rng.choice((1, 1, 2))):
            self._merged(self.stream())
            if self.chance(0.4):
                self.carry()
        if self.chance(0.2):
            self._of_constants()
        if self.chance(0.2):
            self.nest()
        self.finish()
        self.forget_unread()
        return self.finished()

    def _table(self) -> str:
        """Rows that are constant, far from 0, zero and large, each looked up by some token."""
        rows = []
        for kind in ROWS:
            self.made[f"row {kind}"] += 1
            row = self.numbers.standard_normal(self.C)
            rows.append({
                "constant": np.full(self.C, row[0]),
                "shifted": row + 1000.0,
                "zero": np.zeros(self.C),
                "large": 1000.0 * row,
                "plain": row,
            }[kind])  # fmt: skip
        self.feeds["ids"] = np.arange(B * T).reshape(B, T) % len(ROWS)
        return self.node("Gather", self.parameter(np.array(rows), "rows"), "ids")

    def _sum(self, x: str) -> str:
        """Up to a dozen parts, one after the other, or all of them in one Sum."""
        parts = []
        for _ in range(self.rng.choice((0, 1, 2, 5, _LONGEST))):
            kind = self.rng.choice(PARTS)
            self.made[f"part {kind}"] += 1
            parts.append(self._part(kind, x))
        if parts and self.chance(0.3):
            return self.node("Sum", x, *parts)
        total = x
        for part in parts:
            total = self.node("Add", *self.rng.sample([total, part], 2))
        return total

    def _part(self, kind: str, x: str) -> str:
        if kind == "constant":
            return self.weight(self.C)
        if kind == "Constant node":
            array = self.floats(self.numbers.standard_normal((T, self.C)))
            return self.node("Constant", value=numpy_helper.from_array(array))
        if kind == "row of a table":
            return self.node("Gather", self.weight(5, self.C), "ids")
        if kind == "number":
            return self.scalar(self.rng.choice((1.0, -1000.0, 0.0)))
        if kind == "again":
            return x
        return self.node("MatMul", "x", self.weight(H, self.C))

    def _merged(self, x: str) -> None:
        """One quotient, and what makes several norms of it."""
        self.made["merged norms"] += 1
        rms = self.chance(0.25)
        centred = x if rms else self.node("Sub", x, self.mean(x, -1))
        root = self.node("Sqrt", self.node("Add", self._mean_square(centred), self.scalar(EPSILON)))
        if self.chance(0.3):
            quotient = self.node("Mul", centred, self.node("Reciprocal", root))
        else:
            quotient = self.node("Div", centred, root)
        for _ in range(self.rng.choice((2, 2, 3))):
            kind = self.rng.choice(ENDS if self.chance(0.3) else ENDS[:3])
            self.made[f"end {kind}"] += 1
            y = self._end(kind, quotient)
            if self.chance(0.15):
                self.body.streams.append(y)
            h = self.read_linear(y)
            self.body.hidden.append(self.node("Relu", h) if self.chance(0.3) else h)
            self.body.outputs.append(self.body.hidden[-1])

    def _mean_square(self, centred: str) -> str:
        return self.mean(self.node("Mul", centred, centred), -1)

    def _end(self, kind: str, quotient: str) -> str:
        y = quotient
        if kind.startswith("gamma"):
            y = self.node("Mul", *self.rng.sample([y, self.gamma((self.C,))], 2))
        if kind.endswith("beta"):
            y = self.node("Add", *self.rng.sample([y, self.beta((self.C,))], 2))
        if kind == "a number":
            return self.node("Mul", y, self.scalar(0.5))
        return self.node("Mul", y, "gate") if kind == "a gate" else y

    def _of_constants(self) -> None:
        """A norm of a Constant node's value, next to the stream."""
        self.made["norm of a Constant node"] += 1
        array = self.floats(self.numbers.standard_normal((T, self.C)))
        normed = self.layer_norm(
            self.node("Constant", value=numpy_helper.from_array(array)), (self.C,)
        )
        self.body.streams.append(self.node("Add", self.stream(), normed))
