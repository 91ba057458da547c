"""Writers: what puts constant weights into a stream."""

from __future__ import annotations

from typing import Any

from tests.soundness.random_graphs.draft import Draft, H, T

__all__ = ["Writers"]

_KINDS = (
    "matmul", "matmul", "matmul", "gemm", "gemm", "conv", "conv_transpose", "table", "left",
    "einsum", "position", "bias", "split_writer", "fused_matmul", "grouped_conv", "scaled",
    "shifted", "embedding_sum",
)  # fmt: skip


class Writers(Draft):
    """Makes [B, T, C] values from [B, T, H] values and weights."""

    def write(self) -> None:
        h = self.rng.choice(self.body.hidden[-3:])
        kind = self.rng.choice(_KINDS)
        if kind in ("position", "bias") and not self.body.streams:
            kind = "matmul"
        self.made[f"writer {kind}"] += 1
        new = getattr(self, f"write_{kind}")(h)
        if self.body.streams and self.chance(0.5):
            new = self.node("Add", *self.rng.sample([self.stream(), new], 2))
        self.body.streams.append(new)

    def write_matmul(self, h: str) -> str:
        y = self.node("MatMul", h, self.weight(H, self.C))
        return self.node("Add", y, self.weight(self.C)) if self.chance(0.6) else y

    def write_fused_matmul(self, h: str) -> str:
        flags: dict[str, Any] = {"alpha": self.rng.choice((1.0, -0.5))}
        if self.chance(0.5):
            flags["transB"] = 1
        W = self.weight(self.C, H) if "transB" in flags else self.weight(H, self.C)
        if self.chance(0.3):
            h, flags["transA"] = self.swap(h), 1
        return self.node("FusedMatMul", h, W, domain="com.microsoft", **flags)

    def write_gemm(self, h: str) -> str:
        rows = self.node("Reshape", h, self.ints(-1, H))
        flags: dict[str, Any] = {}
        if self.chance(0.3):
            rows, flags["transA"] = self.node("Transpose", rows, perm=[1, 0]), 1
        if self.chance(0.5):
            flags["transB"] = 1
        for name in ("alpha", "beta"):
            if self.chance(0.4):
                flags[name] = self.rng.choice((0.5, -2.0))
        W = self.weight(self.C, H) if "transB" in flags else self.weight(H, self.C)
        bias = [self.weight(*self.rng.choice(((self.C,), (1, self.C), (1,))))]
        y = self.node("Gemm", rows, W, *bias[: self.rng.randint(0, 1)], **flags)
        return self.node("Reshape", y, self.ints(-1, T, self.C))

    def write_conv(self, h: str) -> str:
        k = self.rng.choice((1, 3))
        inputs = [self.swap(h), self.weight(self.C, H, k), self.weight(self.C)]
        y = self.node("Conv", *inputs[: self.rng.randint(2, 3)], pads=[k // 2, k // 2])
        return self.swap(y)

    def write_grouped_conv(self, h: str) -> str:
        """A depthwise Conv after a product: its channels are not one linear map."""
        y = self.swap(self.node("MatMul", h, self.weight(H, self.C)))
        return self.swap(self.node("Conv", y, self.weight(self.C, 1, 1), group=self.C))

    def write_conv_transpose(self, h: str) -> str:
        inputs = [self.swap(h), self.weight(H, self.C, 1), self.weight(self.C)]
        return self.swap(self.node("ConvTranspose", *inputs[: self.rng.randint(2, 3)]))

    def table(self) -> str:
        if self.chance(0.3):
            return self.node("Transpose", self.weight(self.C, 5), perm=[1, 0])
        return self.weight(5, self.C)

    def write_table(self, h: str) -> str:
        if self.chance(0.2):
            return self.node("GatherND", self.table(), self.unsqueeze("ids", 2))
        return self.node("Gather", self.table(), "ids", axis=0)

    def write_embedding_sum(self, h: str) -> str:
        """A table of tokens and one of positions, at times the same one."""
        tokens = self.table()
        places = tokens if self.chance(0.2) else self.table()
        positions = self.node("Gather", places, self.ints(*range(T)))
        return self.node("Add", self.node("Gather", tokens, "ids"), positions)

    def write_left(self, h: str) -> str:
        return self.swap(self.node("MatMul", self.weight(self.C, H), self.swap(h)))

    def write_einsum(self, h: str) -> str:
        return self.node("Einsum", h, self.weight(H, self.C), equation="bth,hc->btc")

    def write_position(self, h: str) -> str:
        return self.node("Add", self.stream(), self.weight(T, self.C))

    def write_bias(self, h: str) -> str:
        shape = self.rng.choice(((self.C,), (1, self.C), (1, 1, self.C), (T, 1), (1,)))
        return self.node("Add", self.stream(), self.weight(*shape))

    def write_scaled(self, h: str) -> str:
        """LayerScale, or 1/sqrt(d), after a product."""
        y = self.node("MatMul", h, self.weight(H, self.C))
        if self.chance(0.5):
            y = self.node("Add", y, self.weight(self.C))
        if self.chance(0.5):
            return self.node("Mul", y, self.weight(self.C))
        return self.node(self.rng.choice(("Mul", "Div")), y, self.scalar(self.C**0.5))

    def write_shifted(self, h: str) -> str:
        """BatchNormalization after a convolution."""
        y = self.node("Conv", self.swap(h), self.weight(self.C, H, 1))
        shapes = [self.numbers.standard_normal(self.C) for _ in range(3)]
        operands = [self.parameter(array, "bn") for array in shapes]
        variance = self.parameter(0.5 + self.numbers.random(self.C), "bn")
        return self.swap(self.node("BatchNormalization", y, *operands, variance))

    def write_split_writer(self, h: str) -> str:
        """Queries and keys from one product; the parts are cut off the fiber, or along it."""
        if self.chance(0.5):
            y = self.node("MatMul", h, self.weight(H, 2 * self.C))
            parts = self.split(y, -1)
        else:
            wide = self.node("Concat", h, h, axis=1)
            parts = self.split(self.node("MatMul", wide, self.weight(H, self.C)), 1)
        if self.chance(0.3):
            self.made["part of a Split is an output"] += 1
            self.body.outputs.append(parts[1])
        elif self.chance(0.5):
            self.body.streams.append(parts[1])
        return parts[0]
