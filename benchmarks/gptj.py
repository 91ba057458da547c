"""A model shaped like GPT-J, of any size, made tensor by tensor.

    python -m benchmarks.gptj OUT.onnx --width 4096 --layers 28

The graph is GPT-J's: h + attention(n) + mlp(n) with one norm n = LN(h) per layer, rotary positions,
a causal mask, and an untied head. Weights are cut out of one seeded block of normal numbers with a
mean, at another place for each tensor, so that 12 GB cost seconds and few MB; they are stored in
shards next to the model, each closed when the next tensor would exceed its size.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from benchmarks.harness import arguments

__all__ = ["Size", "main", "make"]

_OPSET, _IR = 17, 10
_HEAD, _ROTARY, _POSITIONS = 64, 32, 64
_BLOCK = 1 << 22
_DEVIATION, _MEAN = 0.02, 0.005

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Size:
    """How wide, deep and many-worded a model is, and the bytes of a shard."""

    width: int
    layers: int
    words: int = 50400
    dtype: str = "float16"
    shard_bytes: int = 2 << 30

    @property
    def parameters(self) -> int:
        d = self.width
        layer = 12 * d * d + 7 * d
        return self.layers * layer + 2 * self.words * d + self.words + 2 * d


class _Weights:
    """Writes tensors into shards and keeps the references to them."""

    def __init__(self, path: Path, size: Size):
        self._path = path
        self._dtype = np.dtype(size.dtype)
        self._limit = size.shard_bytes
        self._generator = np.random.default_rng(0)
        numbers = self._generator.standard_normal(_BLOCK, dtype=np.float32)
        self._block = (numbers * _DEVIATION + _MEAN).astype(self._dtype)
        self._file: BinaryIO | None = None
        self.shards: list[Path] = []
        self.tensors: list[onnx.TensorProto] = []

    def drawn(self, name: str, *shape: int) -> str:
        """Add a matrix or bias out of the block."""
        count = int(np.prod(shape))
        file = self._shard(count * self._dtype.itemsize)
        self.tensors.append(self._link(name, shape, file.tell()))
        start = int(self._generator.integers(_BLOCK))
        while count:
            piece = self._block[start : start + count]
            file.write(piece.data)
            count -= piece.size
            start = 0
        return name

    def given(self, name: str, array: Array) -> str:
        """Add an array that stays in the model."""
        self.tensors.append(onnx.numpy_helper.from_array(array, name))
        return name

    def around(self, name: str, centre: float, size: int) -> str:
        """Add a gamma or beta: normal numbers of deviation 0.1."""
        numbers = centre + 0.1 * self._generator.standard_normal(size)
        return self.given(name, numbers.astype(self._dtype))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _shard(self, nbytes: int) -> BinaryIO:
        """Return the shard that so many bytes go to next."""
        if self._file is not None and self._file.tell() + nbytes > self._limit:
            self.close()
        if self._file is None:
            self.shards.append(self._path.with_name(f"{self._path.stem}-{len(self.shards)}.data"))
            self._file = self.shards[-1].open("wb")
        return self._file

    def _link(self, name: str, shape: Sequence[int], offset: int) -> onnx.TensorProto:
        tensor = TensorProto(
            name=name,
            dims=shape,
            data_type=helper.np_dtype_to_tensor_dtype(self._dtype),
            data_location=TensorProto.EXTERNAL,
        )
        nbytes = int(np.prod(shape)) * self._dtype.itemsize
        place = {"location": self.shards[-1].name, "offset": offset, "length": nbytes}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        return tensor


class _Graph:
    """Collects nodes; a name is the result's."""

    def __init__(self, weights: _Weights, size: Size):
        self.nodes: list[onnx.NodeProto] = []
        self._weights = weights
        self._size = size

    def add(self, op: str, name: str, *inputs: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def norm(self, name: str, x: str) -> str:
        width = self._size.width
        gamma = self._weights.around(f"{name}.weight", 1.0, width)
        beta = self._weights.around(f"{name}.bias", 0.0, width)
        return self.add("LayerNormalization", name, x, gamma, beta, axis=-1, epsilon=1e-5)

    def linear(self, name: str, x: str, rows: int, columns: int, *, bias: bool) -> str:
        weight = self._weights.drawn(f"{name}.weight", rows, columns)
        if not bias:
            return self.add("MatMul", name, x, weight)
        product = self.add("MatMul", f"{name}.product", x, weight)
        return self.add("Add", name, product, self._weights.drawn(f"{name}.bias", columns))

    def layer(self, index: int, h: str) -> str:
        at, width = f"h.{index}", self._size.width
        n = self.norm(f"{at}.ln_1", h)
        attention = self._attention(f"{at}.attn", n)
        wide = self.linear(f"{at}.mlp.fc_in", n, width, 4 * width, bias=True)
        mlp = self.linear(f"{at}.mlp.fc_out", self._gelu(at, wide), 4 * width, width, bias=True)
        both = self.add("Add", f"{at}.branches", attention, mlp)
        return self.add("Add", f"{at}.out", both, h)

    def _attention(self, at: str, n: str) -> str:
        width = self._size.width
        q, k, v = (self._heads(f"{at}.{part}", n, part != "v_proj") for part in
                   ("q_proj", "k_proj", "v_proj"))  # fmt: skip
        turned = self.add("Transpose", f"{at}.kt", k, perm=[0, 1, 3, 2])
        scores = self.add("MatMul", f"{at}.scores", q, turned)
        scaled = self.add("Mul", f"{at}.scaled", scores, "scale")
        masked = self.add("Add", f"{at}.masked", scaled, "mask")
        weights = self.add("Softmax", f"{at}.softmax", masked, axis=-1)
        mixed = self.add("MatMul", f"{at}.mixed", weights, v)
        back = self.add("Transpose", f"{at}.back", mixed, perm=[0, 2, 1, 3])
        flat = self.add("Reshape", f"{at}.flat", back, "to_width")
        return self.linear(f"{at}.out_proj", flat, width, width, bias=False)

    def _heads(self, name: str, n: str, rotary: bool) -> str:
        width = self._size.width
        flat = self.linear(name, n, width, width, bias=False)
        split = self.add("Reshape", f"{name}.split", flat, "to_heads")
        heads = self.add("Transpose", f"{name}.heads", split, perm=[0, 2, 1, 3])
        if not rotary:
            return heads
        first = self.add("Slice", f"{name}.first", heads, "zero", "rotary", "last_axis")
        rest = self.add("Slice", f"{name}.rest", heads, "rotary", "head", "last_axis")
        turned = self.add("MatMul", f"{name}.turned", first, "quarter_turn")
        cosine = self.add("Mul", f"{name}.cosine", first, "cos")
        sine = self.add("Mul", f"{name}.sine", turned, "sin")
        both = self.add("Add", f"{name}.rotated", cosine, sine)
        return self.add("Concat", f"{name}.joined", both, rest, axis=-1)

    def _gelu(self, at: str, x: str) -> str:
        cube = self.add("Mul", f"{at}.cube", self.add("Mul", f"{at}.square", x, x), x)
        bent = self.add("Add", f"{at}.bent", x, self.add("Mul", f"{at}.small", cube, "gelu_c"))
        tanh = self.add("Tanh", f"{at}.tanh", self.add("Mul", f"{at}.inner", bent, "gelu_s"))
        gate = self.add("Add", f"{at}.gate", tanh, "one")
        half = self.add("Mul", f"{at}.half", x, "half")
        return self.add("Mul", f"{at}.gelu", half, gate)


def _constants(weights: _Weights, graph: _Graph, size: Size) -> None:
    """Add what all layers share: shapes, numbers, rotations; and the mask, from the length."""
    dtype = np.dtype(size.dtype)
    integers = {
        "to_heads": [0, 0, -1, _HEAD],
        "to_width": [0, 0, size.width],
        "zero": [0],
        "rotary": [_ROTARY],
        "head": [_HEAD],
        "last_axis": [-1],
        "first_axis": [0],
        "both_axes": [0, 1],
        "two_zeros": [0, 0],
    }
    for name, values in integers.items():
        weights.given(name, np.asarray(values, np.int64))
    numbers = {"scale": _HEAD**-0.5, "gelu_c": 0.044715, "gelu_s": (2 / np.pi) ** 0.5}
    for name, number in {**numbers, "one": 1.0, "half": 0.5}.items():
        weights.given(name, np.asarray(number, dtype))
    angles = np.outer(np.arange(_POSITIONS), 10000.0 ** (-np.arange(0, _ROTARY, 2) / _ROTARY))
    weights.given("all_cos", np.repeat(np.cos(angles), 2, axis=1).astype(dtype))
    weights.given("all_sin", np.repeat(np.sin(angles), 2, axis=1).astype(dtype))
    turn = np.zeros((_ROTARY, _ROTARY))
    even = np.arange(0, _ROTARY, 2)
    turn[even + 1, even], turn[even, even + 1] = -1.0, 1.0
    weights.given("quarter_turn", turn.astype(dtype))
    weights.given("all_mask", np.triu(np.full((_POSITIONS, _POSITIONS), -1e4), 1).astype(dtype))
    length = graph.add("Shape", "length", "ids", start=1, end=2)
    graph.add("Slice", "cos", "all_cos", "zero", length, "first_axis")
    graph.add("Slice", "sin", "all_sin", "zero", length, "first_axis")
    square = graph.add("Concat", "square", length, length, axis=0)
    graph.add("Slice", "mask", "all_mask", "two_zeros", square, "both_axes")


def make(path: Path, size: Size) -> list[Path]:
    """Write the model and its shards; returns all files, the model first."""
    weights = _Weights(path, size)
    graph = _Graph(weights, size)
    table = weights.drawn("wte", size.words, size.width)
    _constants(weights, graph, size)
    h = graph.add("Gather", "embedding", table, "ids", axis=0)
    for index in range(size.layers):
        h = graph.layer(index, h)
    last = graph.norm("ln_f", h)
    logits = graph.linear("lm_head", last, size.width, size.words, bias=True)
    weights.close()
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(size.dtype))
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "gptj",
            [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"])],
            [helper.make_tensor_value_info(logits, kind, ["batch", "length", size.words])],
            weights.tensors,
        ),
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR,
    )
    path.write_bytes(model.SerializeToString())
    return [path, *weights.shards]


def main() -> int:
    """Make one model; returns the exit code."""
    numbers = {"--width": 4096, "--layers": 28, "--words": 50400, "--dtype": "float16"}
    options = arguments(__doc__, {"output": Path, **numbers})
    size = Size(options.width, options.layers, options.words, options.dtype)
    files = make(options.output, size)
    total = sum(file.stat().st_size for file in files)
    print(f"{size.parameters:,} parameters, {total:,} bytes in {len(files)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
