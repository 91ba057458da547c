"""A model shaped like GPT-J, of any size, made tensor by tensor.

    python -m benchmarks.gptj OUT.onnx --width 4096 --layers 28

The graph is GPT-J's: h + attention(n) + mlp(n) with one norm n = LN(h) per layer, rotary positions,
a causal mask, and an untied head. Weights are cut out of one seeded block of normal numbers with a
mean, at another place for each tensor, so that 12 GB cost seconds and few MB; they are stored in
shards next to the model, each closed when the next tensor would exceed its size.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from benchmarks.harness import arguments

__all__ = ["Size", "main", "make"]

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
        """Return how many there are, without what all layers share."""
        d = self.width
        layer = 12 * d * d + 7 * d
        return self.layers * layer + 2 * self.words * d + self.words + 2 * d


# Values of a layer, {h} the stream that it reads and {i} its number; weights have capital letters.
_LAYER = """
n{i} = LayerNormalization<axis=-1, epsilon=1e-5>({h}, gamma{i}, beta{i})
{q} {k}
v{i} = MatMul(n{i}, V{i}) vs{i} = Reshape(v{i}, to_heads) vh{i} = Transpose<perm=[0,2,1,3]>(vs{i})
keys{i} = Transpose<perm=[0,1,3,2]>(kr{i}) scores{i} = MatMul(qr{i}, keys{i})
scaled{i} = Mul(scores{i}, scale) masked{i} = Add(scaled{i}, mask)
softmax{i} = Softmax<axis=-1>(masked{i}) mixed{i} = MatMul(softmax{i}, vh{i})
back{i} = Transpose<perm=[0,2,1,3]>(mixed{i}) flat{i} = Reshape(back{i}, to_width)
attention{i} = MatMul(flat{i}, O{i})
wide{i} = MatMul(n{i}, U{i}) up{i} = Add(wide{i}, a{i})
square{i} = Mul(up{i}, up{i}) cube{i} = Mul(square{i}, up{i}) small{i} = Mul(cube{i}, gelu_c)
bent{i} = Add(up{i}, small{i}) inner{i} = Mul(bent{i}, gelu_s) tanh{i} = Tanh(inner{i})
gate{i} = Add(tanh{i}, one) half{i} = Mul(up{i}, half) gelu{i} = Mul(half{i}, gate{i})
narrow{i} = MatMul(gelu{i}, D{i}) mlp{i} = Add(narrow{i}, b{i})
branches{i} = Add(attention{i}, mlp{i}) h{i} = Add(branches{i}, {h})
"""
_ROTATED = """
{x}{i} = MatMul(n{i}, {X}{i}) {x}s{i} = Reshape({x}{i}, to_heads)
{x}h{i} = Transpose<perm=[0,2,1,3]>({x}s{i})
{x}f{i} = Slice({x}h{i}, zero, rotary, last_axis) {x}p{i} = Slice({x}h{i}, rotary, head, last_axis)
{x}t{i} = MatMul({x}f{i}, quarter_turn) {x}c{i} = Mul({x}f{i}, cos) {x}i{i} = Mul({x}t{i}, sin)
{x}b{i} = Add({x}c{i}, {x}i{i}) {x}r{i} = Concat<axis=-1>({x}b{i}, {x}p{i})
"""
_FIRST = """
length = Shape<start=1, end=2>(ids)
cos = Slice(all_cos, zero, length, first_axis) sin = Slice(all_sin, zero, length, first_axis)
both = Concat<axis=0>(length, length) mask = Slice(all_mask, two_zeros, both, both_axes)
h = Gather<axis=0>(wte, ids)
"""
_LAST = """
n = LayerNormalization<axis=-1, epsilon=1e-5>({h}, gamma, beta)
product = MatMul(n, lm_head) logits = Add(product, lm_bias)
"""


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

    def drawn(self, name: str, *shape: int) -> None:
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

    def given(self, name: str, array: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> None:
        """Add an array that stays in the model, of integers or of the model's type."""
        made = np.asarray(array, dtype or self._dtype)
        self.tensors.append(onnx.numpy_helper.from_array(made, name))

    def norm(self, which: object, width: int) -> None:
        """Add a gamma and a beta: normal numbers of deviation 0.1."""
        for name, centre in ((f"gamma{which}", 1.0), (f"beta{which}", 0.0)):
            self.given(name, centre + 0.1 * self._generator.standard_normal(width))

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
        kind = helper.np_dtype_to_tensor_dtype(self._dtype)
        tensor = TensorProto(name=name, dims=shape, data_type=kind)
        tensor.data_location = TensorProto.EXTERNAL
        nbytes = int(np.prod(shape)) * self._dtype.itemsize
        place = {"location": self.shards[-1].name, "offset": offset, "length": nbytes}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        return tensor


def _constants(weights: _Weights, size: Size) -> None:
    """Add what all layers share: shapes, numbers, rotations and the mask."""
    integers = {
        "to_heads": [0, 0, -1, _HEAD], "to_width": [0, 0, size.width], "zero": [0],
        "rotary": [_ROTARY], "head": [_HEAD], "last_axis": [-1], "first_axis": [0],
        "both_axes": [0, 1], "two_zeros": [0, 0],
    }  # fmt: skip
    for name, values in integers.items():
        weights.given(name, values, np.int64)
    numbers = {"scale": _HEAD**-0.5, "gelu_c": 0.044715, "gelu_s": (2 / np.pi) ** 0.5}
    for name, number in {**numbers, "one": 1.0, "half": 0.5}.items():
        weights.given(name, number)
    angles = np.outer(np.arange(_POSITIONS), 10000.0 ** (-np.arange(0, _ROTARY, 2) / _ROTARY))
    weights.given("all_cos", np.repeat(np.cos(angles), 2, axis=1))
    weights.given("all_sin", np.repeat(np.sin(angles), 2, axis=1))
    turn = np.zeros((_ROTARY, _ROTARY))
    even = np.arange(0, _ROTARY, 2)
    turn[even + 1, even], turn[even, even + 1] = -1.0, 1.0
    weights.given("quarter_turn", turn)
    weights.given("all_mask", np.triu(np.full((_POSITIONS, _POSITIONS), -1e4), 1))


def _texts(weights: _Weights, size: Size) -> Iterator[str]:
    """Yield the nodes of the model, and write the weights that they read."""
    h, d = "h", size.width
    yield _FIRST
    for i in range(size.layers):
        weights.norm(i, d)
        shapes = {"Q": (d, d), "K": (d, d), "V": (d, d), "O": (d, d), "U": (d, 4 * d)}
        for name, shape in {**shapes, "a": (4 * d,), "D": (4 * d, d), "b": (d,)}.items():
            weights.drawn(f"{name}{i}", *shape)
        q, k = (_ROTATED.format(x=x, X=x.upper(), i=i) for x in "qk")
        yield _LAYER.format(h=h, i=i, q=q, k=k)
        h = f"h{i}"
    yield _LAST.format(h=h)


def make(path: Path, size: Size) -> list[Path]:
    """Write the model and its shards; returns all files, the model first."""
    weights = _Weights(path, size)
    weights.drawn("wte", size.words, size.width)
    _constants(weights, size)
    body = "".join(_texts(weights, size))
    weights.norm("", size.width)
    weights.drawn("lm_head", size.width, size.words)
    weights.drawn("lm_bias", size.words)
    weights.close()
    head = '<ir_version: 10, opset_import: ["": 17]> gptj (int64[batch, length] ids) => '
    kind = "float" if size.dtype == "float32" else size.dtype
    logits = f"{kind}[batch, length, {size.words}] logits"
    model = onnx.parser.parse_model(f"{head}({logits}) {{ {body} }}")
    for node in model.graph.node:
        node.name = node.output[0]
    model.graph.initializer.extend(weights.tensors)
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
