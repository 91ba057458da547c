"""Small models whose streams are far larger than float16's numbers, in many spellings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.builders import Array, model_of

WIDTH, HIDDEN, WORDS = 16, 24, 32
FEEDS = {"ids": np.array([[1, 5, 7], [2, 30, 0]], np.int64)}
LARGE = 2.0**17


@dataclass
class Builder:
    """Nodes and weights that grow."""

    size: float = LARGE
    width: int = WIDTH
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(3))

    def weight(self, name: str, *shape: int, size: float = 1.0) -> str:
        scaled = self.rng.standard_normal(shape) * size
        self.weights[name] = scaled.astype(np.float32)
        return name

    def constant(self, name: str, number: object, dtype: type = np.float32) -> str:
        self.weights[name] = np.array(number, dtype)
        return name

    def node(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(
            helper.make_node(op, inputs, [output], name=f"{output}.node", **attributes)
        )
        return output

    def norm(self, kind: str, x: str, name: str, gamma_size: float = 1.0) -> str:
        """Add a norm of a kind; what it gives is of the size of gamma."""
        gamma = self.weight(f"{name}.gamma", self.width, size=0.2 * gamma_size)
        self.weights[gamma] += np.float32(gamma_size)
        if kind == "layer":
            beta = self.weight(f"{name}.beta", self.width, size=0.3 * gamma_size)
            return self.node("LayerNormalization", [x, gamma, beta], name, epsilon=1e-5)
        if kind == "rms":
            return self.node("RMSNormalization", [x, gamma], name, epsilon=1e-5)
        y = x
        if kind == "layer pieces":
            mean = self.node("ReduceMean", [x], f"{name}.mean", axes=[-1])
            y = self.node("Sub", [x, mean], f"{name}.centred")
        square = self.node("Pow", [y, self.constant(f"{name}.two", 2.0)], f"{name}.square")
        mean = self.node("ReduceMean", [square], f"{name}.ms", axes=[-1])
        added = self.node("Add", [mean, self.constant(f"{name}.eps", 1e-5)], f"{name}.add")
        root = self.node("Sqrt", [added], f"{name}.root")
        if kind == "gemma":
            one = self.constant(f"{name}.one", 1.0)
            self.weights[gamma] -= np.float32(1)
            n = self.node("Mul", [x, self.node("Reciprocal", [root], f"{name}.r")], f"{name}.n")
            return self.node("Mul", [n, self.node("Add", [one, gamma], f"{name}.g")], name)
        if kind == "bare":
            del self.weights[gamma]
            return self.node("Div", [y, root], name)
        n = self.node("Div", [y, root], f"{name}.n")
        scaled = self.node("Mul", [n, gamma], name if kind == "rms pieces" else f"{name}.scaled")
        if kind == "rms pieces":
            return scaled
        return self.node("Add", [scaled, self.weight(f"{name}.beta", self.width)], name)

    def block(self, kind: str, x: str, i: int) -> str:
        n = self.norm(kind, x, f"norm{i}")
        up = self.node("MatMul", [n, self.weight(f"up{i}", self.width, HIDDEN)], f"u{i}")
        t = self.node("Tanh", [up], f"t{i}")
        down = self.weight(f"down{i}", HIDDEN, self.width, size=self.size)
        d = self.node("MatMul", [t, down], f"d{i}")
        b = self.node("Add", [self.weight(f"bias{i}", self.width, size=self.size), d], f"b{i}")
        return self.node("Add", [x, b], f"x{i + 1}")

    def model(self, outputs: Mapping[str, int], opset: int = 17) -> onnx.ModelProto:
        kinds = {name: (TensorProto.FLOAT, ["batch", "time", n]) for name, n in outputs.items()}
        ids = {"ids": (TensorProto.INT64, ["batch", "time"])}
        return model_of(self.nodes, ids, kinds, self.weights, opset=opset)


def wide_stream(
    kind: str = "layer", size: float = LARGE, width: int = WIDTH, blocks: int = 2
) -> onnx.ModelProto:
    """An embedding, blocks that write into the stream, and a head behind a last norm."""
    b = Builder(size, width)
    x = b.node("Gather", [b.weight("table", WORDS, width, size=size), "ids"], "x0")
    for i in range(blocks):
        x = b.block(kind, x, i)
    last = b.norm(kind, x, "last")
    b.node("MatMul", [last, b.weight("head", width, WORDS)], "logits")
    return b.model({"logits": WORDS}, opset=23 if kind == "rms" else 17)


def post_norms(kind: str = "rms pieces", size: float = LARGE) -> onnx.ModelProto:
    """As Gemma 2 and 3: what a block gives is normalised, gamma is large, and then added."""
    b = Builder()
    x = b.node("Gather", [b.weight("table", WORDS, WIDTH, size=size), "ids"], "x0")
    for i in range(2):
        n = b.norm(kind, x, f"norm{i}")
        up = b.node("MatMul", [n, b.weight(f"up{i}", WIDTH, HIDDEN)], f"u{i}")
        t = b.node("Tanh", [up], f"t{i}")
        d = b.node("MatMul", [t, b.weight(f"down{i}", HIDDEN, WIDTH)], f"d{i}")
        x = b.node("Add", [x, b.norm(kind, d, f"post{i}", size)], f"x{i + 1}")
    b.node("MatMul", [b.norm(kind, x, "last"), b.weight("head", WIDTH, WORDS)], "logits")
    return b.model({"logits": WORDS}, opset=23 if kind == "rms" else 17)


def tied(size: float = LARGE) -> onnx.ModelProto:
    """One table of numbers of size 1 for words and head, times a constant where words are read."""
    b = Builder(size)
    table = b.weight("table", WORDS, WIDTH)
    words = b.node("Gather", [table, "ids"], "words")
    x = b.node("Mul", [words, b.constant("root", size)], "x0")
    for i in range(2):
        x = b.block("rms pieces", x, i)
    head = b.node("Transpose", [table], "head", perm=[1, 0])
    b.node("MatMul", [b.norm("rms pieces", x, "last"), head], "logits")
    return b.model({"logits": WORDS})


def tied_at_once(size: float = LARGE) -> onnx.ModelProto:
    """The same table where words are read as they are: they need a product of their own."""
    b = Builder(size)
    table = b.weight("table", WORDS, WIDTH)
    x = b.node("Gather", [table, "ids"], "x0")
    for i in range(2):
        x = b.block("rms pieces", x, i)
    head = b.node("Transpose", [table], "head", perm=[1, 0])
    b.node("MatMul", [b.norm("rms pieces", x, "last"), head], "logits")
    return b.model({"logits": WORDS})


def linear_reader(size: float = LARGE) -> onnx.ModelProto:
    """A layer that reads the stream itself, beside the norms."""
    b = Builder(size)
    x = b.node("Gather", [b.weight("table", WORDS, WIDTH, size=size), "ids"], "x0")
    for i in range(2):
        x = b.block("layer", x, i)
    b.node("MatMul", [x, b.weight("probe", WIDTH, 4, size=1 / size)], "probed")
    b.node("MatMul", [b.norm("layer", x, "last"), b.weight("head", WIDTH, WORDS)], "logits")
    return b.model({"logits": WORDS, "probed": 4})


def activation_first(size: float = LARGE) -> onnx.ModelProto:
    """As Whisper's encoder: an activation gives the first value of the stream."""
    b = Builder(size)
    words = b.node("Gather", [b.weight("table", WORDS, WIDTH), "ids"], "words")
    x = b.node("Add", [b.node("Erf", [words], "e"), b.weight("positions", WIDTH)], "x0")
    for i in range(2):
        x = b.block("layer", x, i)
    b.node("MatMul", [b.norm("layer", x, "last"), b.weight("head", WIDTH, WORDS)], "logits")
    return b.model({"logits": WORDS})


def between_streams(size: float = LARGE, *, shared: bool = False) -> onnx.ModelProto:
    """As ConvNeXt: a layer that reads one stream writes another.

    ``shared``: all have one bias of zeros; another has the name that a copy of it would take.
    """
    b = Builder(size)
    x = b.node("Gather", [b.weight("table", WORDS, WIDTH, size=size), "ids"], "x0")
    for i in range(2):
        inner = b.node("MatMul", [x, b.weight(f"square{i}", WIDTH, WIDTH)], f"inner{i}")
        if shared:
            inner = b.node("Add", [inner, b.weight("bias", WIDTH, size=0)], f"h{i}")
        n = b.norm("layer", inner, f"norm{i}")
        t = b.node("Tanh", [n], f"t{i}")
        d = b.node("MatMul", [t, b.weight(f"down{i}", WIDTH, WIDTH, size=size)], f"d{i}")
        bias = "bias" if shared and i else b.weight("bias.fused", WIDTH, size=size)
        x = b.node("Add", [x, b.node("Add", [d, bias], f"b{i}")], f"x{i + 1}")
    b.node("MatMul", [b.norm("layer", x, "last"), b.weight("head", WIDTH, WORDS)], "logits")
    return b.model({"logits": WORDS})


def plain_rms(first: str = "") -> onnx.ModelProto:
    """RMSNorms without gamma; a layer of the stream's width writes and reads it.

    ``first``: the operator between the words and a norm with which the stream begins.
    """
    b = Builder(1.0)
    x = b.node("Gather", [b.weight("table", WORDS, WIDTH), "ids"], "x0")
    if first:
        x = b.norm("bare", b.node(first, [x], "made"), "first")
    for i in range(2):
        n = b.norm("bare", x, f"norm{i}")
        t = b.node(
            "Tanh", [b.node("MatMul", [n, b.weight(f"up{i}", WIDTH, HIDDEN)], f"u{i}")], f"t{i}"
        )
        d = b.node("MatMul", [t, b.weight(f"down{i}", HIDDEN, WIDTH)], f"d{i}")
        x = b.node(
            "Add", [x, b.node("Add", [b.weight(f"bias{i}", WIDTH), d], f"b{i}")], f"x{i + 1}"
        )
    probed = b.node("MatMul", [x, b.weight("square", WIDTH, WIDTH)], "probed")
    assert probed
    b.node("MatMul", [b.norm("bare", x, "last"), b.weight("head", WIDTH, WORDS)], "logits")
    return b.model({"logits": WORDS, "probed": WIDTH})


def attention(heads: int = 4) -> onnx.ModelProto:
    """Values in heads, mixed by scores of the words, joined again and read by a layer."""
    b, size = Builder(1.0), WIDTH // heads
    words = b.node("Gather", [b.weight("table", WORDS, WIDTH), "ids"], "words")
    split = b.constant("split", [0, 0, heads, size], np.int64)
    joint = b.constant("joint", [0, 0, WIDTH], np.int64)
    made = {}
    for name in ("queries", "keys", "values"):
        product = b.node("MatMul", [words, b.weight(name, WIDTH, WIDTH)], f"{name}.product")
        biased = b.node("Add", [product, b.weight(f"{name}.bias", WIDTH)], f"{name}.biased")
        active = biased if name == "values" else b.node("Tanh", [biased], f"{name}.active")
        shaped = b.node("Reshape", [active, split], f"{name}.shaped")
        perm = [0, 2, 3, 1] if name == "keys" else [0, 2, 1, 3]
        made[name] = b.node("Transpose", [shaped], f"{name}.heads", perm=perm)
    scores = b.node("MatMul", [made["queries"], made["keys"]], "scores")
    weights = b.node("Softmax", [scores], "weights", axis=-1)
    mixed = b.node("MatMul", [weights, made["values"]], "mixed")
    turned = b.node("Transpose", [mixed], "turned", perm=[0, 2, 1, 3])
    rows = b.node("Reshape", [turned, joint], "rows")
    b.node("MatMul", [rows, b.weight("joined", WIDTH, WORDS)], "logits")
    model = b.model({"logits": WORDS})
    model.graph.name = "heads"
    return model


WIDE = {
    "layer": wide_stream("layer"),
    "layer pieces": wide_stream("layer pieces"),
    "rms": wide_stream("rms"),
    "rms pieces": wide_stream("rms pieces"),
    "gemma": wide_stream("gemma"),
    "post-norms": post_norms("rms pieces"),
    "post-norms, gemma": post_norms("gemma"),
    "post-norms, layer": post_norms("layer"),
    "post-norms, rms": post_norms("rms"),
    "post-norms, bare": post_norms("bare"),
    "tied": tied(),
    "tied at once": tied_at_once(),
    "linear reader": linear_reader(),
    "between streams": between_streams(),
    "activation first": activation_first(),
}
