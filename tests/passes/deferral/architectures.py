"""Small blocks of known architectures, in any opset: what stands around each of their norms."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from tests.graphs import Array, graph, weights
from tests.passes.deferral.deferral_graphs import rms_norm

__all__ = ["ARCHITECTURES", "TYPES", "Architecture"]

WIDTH, HEADS, SIZE, HIDDEN = 8, 4, 4, 12
_INNER = HEADS * SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Which norms stand where, and what the layers between them do.

    ``before`` and ``behind``: a norm on which side of each branch; ``again``: a norm of queries and
    keys, of each ``head`` or of ``all`` of them at once; ``joined``: one layer for q, k and v;
    ``flat``: layers are Gemm on merged rows.  ``deferred`` and ``cancelled`` are expected.
    """

    deferred: int
    cancelled: int = 0
    layer: bool = False
    before: bool = True
    behind: bool = False
    again: str = ""
    rope: bool = False
    joined: bool = False
    flat: bool = False
    biases: bool = False
    feed_forward: str = "silu"
    gated: bool = True

    def model(self, opset: int, epsilon: float, dtype: str = "double") -> ir.Model:
        """Return a block that reads x: [B, T, 5], after a linear layer and before another."""
        return _Block(self, opset, epsilon).model(dtype)


TYPES: dict[str, tuple[int, npt.DTypeLike]] = {
    "double": (11, np.float64),
    "float": (1, np.float32),
    "float16": (10, np.float16),
    "bfloat16": (16, ml_dtypes.bfloat16),
}
_GELU = (
    "{o}d = Mul({i}, half2) {o}e = Erf({o}d) {o}f = Add({o}e, one) {o}g = Mul({i}, {o}f) "
    "{o} = Mul({o}g, half) "
)
_ACTIVATIONS = {
    "silu": "{o}e = Sigmoid({i}) {o} = Mul({i}, {o}e) ",
    "gelu": _GELU,
    "relu": "{o} = Relu({i}) ",
    "none": "{o} = Identity({i}) ",
}

ARCHITECTURES = {
    "Llama": Architecture(rope=True, deferred=3),
    "Mistral": Architecture(rope=True, deferred=3, joined=True),
    "Qwen3": Architecture(rope=True, again="head", deferred=3, cancelled=2),
    "OLMo2": Architecture(rope=True, again="all", before=False, behind=True, deferred=1),
    "OpenELM": Architecture(rope=True, again="head", joined=True, deferred=3, cancelled=2),
    "Gemma 2": Architecture(rope=True, behind=True, feed_forward="gelu", deferred=3, cancelled=1),
    "Gemma 3": Architecture(
        rope=True, again="head", behind=True, feed_forward="gelu", deferred=3, cancelled=3
    ),
    "T5": Architecture(feed_forward="relu", gated=False, deferred=3),
    "T5 gated": Architecture(feed_forward="gelu", deferred=3),
    "OPT": Architecture(layer=True, biases=True, feed_forward="relu", gated=False, deferred=3),
    "GPT-2": Architecture(
        layer=True,
        biases=True,
        feed_forward="gelu",
        gated=False,
        joined=True,
        flat=True,
        deferred=3,
    ),
    "ViT": Architecture(layer=True, biases=True, feed_forward="gelu", gated=False, deferred=3),
    "ReGLU": Architecture(rope=True, feed_forward="relu", deferred=3),
    "bilinear GLU": Architecture(rope=True, feed_forward="none", deferred=3),
}


class _Block:
    def __init__(self, kind: Architecture, opset: int, epsilon: float):
        self._kind, self._opset, self._epsilon = kind, opset, epsilon
        self._text: list[str] = []
        self._made: dict[str, Array] = {
            "eps": np.array(epsilon),
            "heads": np.array([0, 0, HEADS, SIZE]),
            "three": np.array([0, 0, 3 * HEADS, SIZE]),
            "merged": np.array([0, 0, _INNER]),
            "parts": np.array([HEADS] * 3),
            "halves": np.array([SIZE // 2] * 2),
            "half": np.array(0.5),
            "half2": np.array(0.5**0.5),
            "one": np.array(1.0),
            "root": np.array(SIZE**-0.5),
            "last": np.array([-1]),
            "axis1": np.array([1]),
            "frequencies": np.array([1.0, 0.1]),
            **{f"r{width}": np.array([-1, width]) for width in (WIDTH, _INNER, HIDDEN)},
        }

    def model(self, dtype: str) -> ir.Model:
        made = weights(E=(5, WIDTH), F=(WIDTH, 3))
        self._made |= {"E": made["E"], "F": made["F"]}
        self._add("x0 = MatMul(x, E)")
        if self._kind.rope:
            self._add(
                f"p1 = Cast<to={TYPES[dtype][0]}>(p) p2 = Unsqueeze(p1, last) "
                "an = Mul(p2, frequencies) aa = Concat<axis=-1>(an, an) co = Cos(aa) si = Sin(aa) "
                "cos = Unsqueeze(co, axis1) sin = Unsqueeze(si, axis1)"
            )
        self._add(f"x1 = Add(x0, {self._branch('a', 'x0', self._attention)})")
        self._add(f"x2 = Add(x1, {self._branch('f', 'x1', self._feed_forward)})")
        self._add(f"y = MatMul({self._norm('x2', 'last_norm', WIDTH)}, F)")
        inputs = f"{dtype}[B,T,5] x" + (", int64[B,T] p" if self._kind.rope else "")
        text = " ".join(self._text)
        used = {n: a for n, a in self._made.items() if f"{n})" in text or f"{n}," in text}
        numbers = {
            n: a.astype(TYPES[dtype][1]) if a.dtype.kind == "f" else a for n, a in used.items()
        }
        return graph(text, inputs, f"{dtype}[B,T,3] y", numbers, opset=self._opset)

    def _add(self, text: str) -> None:
        self._text.append(text)

    def _weight(self, name: str, *shape: int) -> str:
        self._made |= weights(**{name: shape})
        return name

    def _branch(self, name: str, x: str, compute: object) -> str:
        y = self._norm(x, f"{name}_before", WIDTH) if self._kind.before else x
        assert callable(compute)
        z = str(compute(y))
        return self._norm(z, f"{name}_behind", WIDTH) if self._kind.behind else z

    def _norm(self, x: str, y: str, width: int, *, layer: bool | None = None) -> str:
        gamma = self._weight(f"{y}_gamma", width)
        if self._kind.layer if layer is None else layer:
            return self._layer_norm(x, y, gamma, self._weight(f"{y}_beta", width))
        if self._opset >= 23:
            self._add(f"{y} = RMSNormalization<axis=-1, epsilon={self._epsilon}>({x}, {gamma})")
        else:
            self._add(f"{rms_norm(x, y + '_plain', self._opset)} {y} = Mul({y}_plain, {gamma})")
        return y

    def _layer_norm(self, x: str, y: str, gamma: str, beta: str) -> str:
        if self._opset >= 17:
            attributes = f"axis=-1, epsilon={self._epsilon}"
            self._add(f"{y} = LayerNormalization<{attributes}>({x}, {gamma}, {beta})")
            return y
        mean = "<axes=[-1], keepdims=1>"
        self._add(
            f"{y}_m = ReduceMean{mean}({x}) {y}_c = Sub({x}, {y}_m) {y}_s = Mul({y}_c, {y}_c) "
            f"{y}_v = ReduceMean{mean}({y}_s) {y}_w = Add({y}_v, eps) {y}_r = Sqrt({y}_w) "
            f"{y}_n = Div({y}_c, {y}_r) {y}_g = Mul({y}_n, {gamma}) {y} = Add({y}_g, {beta})"
        )
        return y

    def _linear(self, x: str, y: str, before: int, behind: int) -> str:
        weight = self._weight(f"{y}_W", before, behind)
        bias = self._weight(f"{y}_b", behind) if self._kind.biases else ""
        if self._kind.flat:
            self._made[f"{y}_shape"] = np.array([2, -1, behind])
            self._add(f"{y}_f = Reshape({x}, r{before}) {y}_g = Gemm({y}_f, {weight}, {bias})")
            self._add(f"{y} = Reshape({y}_g, {y}_shape)")
            return y
        self._add(f"{y}{'_p' if bias else ''} = MatMul({x}, {weight})")
        if bias:
            self._add(f"{y} = Add({y}_p, {bias})")
        return y

    def _attention(self, y: str) -> str:
        for name, part in zip("qkv", self._parts(y), strict=True):
            again = part
            if self._kind.again == "head" and name != "v":
                again = self._norm(part, f"{name}_again", SIZE)
            self._add(f"{name}t = Transpose<perm=[0,2,1,3]>({again})")
        q, k = (self._turned(name) if self._kind.rope else f"{name}t" for name in "qk")
        self._add(
            f"kT = Transpose<perm=[0,1,3,2]>({k}) sc = MatMul({q}, kT) ss = Mul(sc, root) "
            "pr = Softmax<axis=-1>(ss) ov = MatMul(pr, vt) ot = Transpose<perm=[0,2,1,3]>(ov) "
            "om = Reshape(ot, merged)"
        )
        return self._linear("om", "o", _INNER, WIDTH)

    def _parts(self, y: str) -> list[str]:
        """Return q, k and v: [B, T, heads, size]."""
        if self._kind.joined:
            self._linear(y, "qkv", WIDTH, 3 * _INNER)
            self._add("qkv4 = Reshape(qkv, three) q4, k4, v4 = Split<axis=2>(qkv4, parts)")
            return ["q4", "k4", "v4"]
        for name in "qkv":
            part = self._linear(y, name, WIDTH, _INNER)
            if self._kind.again == "all" and name != "v":
                part = self._norm(part, f"{name}_again", _INNER)
            self._add(f"{name}4 = Reshape({part}, heads)")
        return ["q4", "k4", "v4"]

    def _turned(self, name: str) -> str:
        x = f"{name}t"
        self._add(
            f"{x}1, {x}2 = Split<axis=3>({x}, halves) {x}m = Neg({x}2) {x}c = Mul({x}, cos) "
            f"{x}r = Concat<axis=3>({x}m, {x}1) {x}s = Mul({x}r, sin) {x}y = Add({x}c, {x}s)"
        )
        return f"{x}y"

    def _feed_forward(self, y: str) -> str:
        gate = self._linear(y, "gate", WIDTH, HIDDEN)
        self._add(_ACTIVATIONS[self._kind.feed_forward].format(i=gate, o="act"))
        inner = "act"
        if self._kind.gated:
            up = self._linear(y, "up", WIDTH, HIDDEN)
            self._add(f"inner = Mul(act, {up})")
            inner = "inner"
        return self._linear(inner, "down", HIDDEN, WIDTH)
