"""Readers that needs the original value, and readers that do not see a shift."""

from __future__ import annotations

from onnx import TensorProto

from tests.soundness.random_graphs.draft import B, Draft, H

__all__ = ["Readers"]

_KINDS = (
    "sigmoid", "matmul", "softmax", "log_softmax", "size", "shape", "dead", "weight", "outer",
    "recurrent", "experts",
)  # fmt: skip


class Readers(Draft):
    """Ends of streams."""

    def read(self) -> None:
        kind = self.rng.choice(_KINDS)
        self.made[f"reader {kind}"] += 1
        getattr(self, f"read_{kind}")(self.stream())

    def leave(self) -> None:
        self.made["stream is an output"] += 1
        self.body.outputs.append(self.stream())

    def read_sigmoid(self, x: str) -> None:
        self.body.outputs.append(self.node("Sigmoid", x))

    def read_matmul(self, x: str) -> None:
        self.body.hidden.append(self.node("MatMul", x, self.weight(self.C, H)))

    def read_recurrent(self, x: str) -> None:
        """A layer over the batch as its steps, with a bias or without one."""
        op_type, gates = self.rng.choice((("RNN", 1), ("GRU", 3), ("LSTM", 4)))
        if self.dtype not in {TensorProto.DOUBLE, TensorProto.FLOAT}:
            return self.read_sigmoid(x)
        self.made[f"reader {op_type}"] += 1
        weights = [self.weight(1, gates * H, C) for C in (self.C, H)]
        if self.chance(0.7):
            weights.append(self.weight(1, 2 * gates * H))
        rest = {"linear_before_reset": 1} if op_type == "GRU" and self.chance(0.5) else {}
        return self.body.outputs.append(self.node(op_type, x, *weights, hidden_size=H, **rest))

    def read_experts(self, x: str) -> None:
        """A weight for each of the batch, stored or picked, at times with a bias for each."""
        weight = self.weight(B, self.C, H)
        if self.chance(0.4):
            weight = self.node("Gather", self.weight(3, self.C, H), self.ints(*range(B)), axis=0)
        y = self.node("MatMul", x, weight)
        if self.chance(0.6):
            y = self.node("Add", y, self.weight(B, 1, H))
        self.body.hidden.append(y)

    def read_softmax(self, x: str) -> None:
        """Axis 2 alone, and below opset 13 all axes from 1 or 2 on."""
        self.body.outputs.append(self.node("Softmax", x, axis=self.rng.choice((1, 2, 2, 2))))

    def read_log_softmax(self, x: str) -> None:
        self.body.outputs.append(self.node("LogSoftmax", x, axis=2))

    def read_size(self, x: str) -> None:
        count = self.node("Cast", self.node("Size", x), to=self.dtype)
        self.body.outputs.append(self.node("Mul", self.scalar(0.01), count))

    def read_shape(self, x: str) -> None:
        self.body.outputs.append(self.node("Shape", x))

    def read_dead(self, x: str) -> None:
        """Nothing reads the result, so its value does not matter."""
        y = self.node("Sigmoid", x)
        if self.chance(0.5):
            self.node("Exp", y)

    def read_weight(self, x: str) -> None:
        """An exact reader of a weight: a tied table."""
        known = [name for names in self.weights.values() for name in names]
        if known and self.body is self.main:
            self.body.outputs.append(self.node("Tanh", self.rng.choice(known)))

    def read_outer(self, x: str) -> None:
        """Scores between tokens: x times itself."""
        self.body.outputs.append(self.node("MatMul", x, self.swap(self.stream())))
