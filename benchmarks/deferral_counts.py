"""Multiplications by the scale of an RMSNorm for one token, in blocks of the sizes of known models.

    python -m benchmarks.deferral_counts

writes benchmarks/results/deferral_counts.csv, from which ``python docs/generate.py`` makes a table
of docs/theory.md. The counts come from the plan of ``--defer all`` for the block; no weight is
made.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import onnx
import onnx_ir as ir

import onnxfold.pipeline  # noqa: F401  # brings what finds norms
from benchmarks.rows import RESULTS, tell, write
from onnxfold.options import Defer
from onnxfold.passes.base import Settings
from onnxfold.passes.deferral.decide import decide
from onnxfold.passes.prepare.working_copy import prepare

__all__ = ["BLOCKS", "Sizes", "count"]


class Sizes(NamedTuple):
    """Width n of the stream, f of the hidden layer; heads, key heads, and the size of each."""

    model: str
    n: int
    f: int
    heads: int
    keys: int
    h: int


LLAMA = Sizes("Llama 3.1 8B", n=4096, f=14336, heads=32, keys=8, h=128)
LLAMA2 = Sizes("Llama 2 7B", n=4096, f=11008, heads=32, keys=32, h=128)
QWEN = Sizes("Qwen3 8B", n=4096, f=12288, heads=32, keys=8, h=128)
T5 = Sizes("T5 large", n=1024, f=4096, heads=16, keys=16, h=64)

_NORM = "n = RMSNormalization<axis=-1>(x, ones) "
_GLU = "g = MatMul(n, W) u = MatMul(n, U) "
_TAIL = "y = MatMul(m, V)"


def _heads(name: str, layer: str, heads: str) -> str:
    return (
        f"{name} = MatMul(n, {layer}) {name}4 = Reshape({name}, {heads}) "
        f"{name}t = Transpose<perm=[0,2,1,3]>({name}4) "
    )


def _rotated(name: str, given: str) -> str:
    return (
        f"{name}c = Mul({given}, cos) {name}a, {name}b = Split<axis=3, num_outputs=2>({given}) "
        f"{name}m = Neg({name}b) {name}r = Concat<axis=3>({name}m, {name}a) "
        f"{name}s = Mul({name}r, sin) {name}y = Add({name}c, {name}s) "
    )


def _again(name: str, gamma: str) -> str:
    return f"{name}n = RMSNormalization<axis=-1>({name}t, {gamma}) "


_QKV = _heads("q", "Q", "many") + _heads("k", "K", "few") + _heads("v", "L", "few")
_NORMED = _again("q", "one") + _again("k", "one")
_SCALED = _again("q", "qgamma") + _again("k", "kgamma")
_SPELLED = _rotated("q", "qt") + _rotated("k", "kt")
_CALLED = "".join(f"{x}y = RotaryEmbedding({x}t, c3, s3) " for x in "qk")
_AGAIN = _rotated("q", "qn") + _rotated("k", "kn")
BLOCKS = (
    (1, "linear", T5, _NORM + "y = MatMul(n, W)"),
    (4, "linear, ReLU, linear", T5, _NORM + "g = MatMul(n, W) m = Relu(g) " + _TAIL),
    (5, "SwiGLU", LLAMA, _NORM + _GLU + "e = Sigmoid(g) i = Mul(g, e) m = Mul(i, u) " + _TAIL),
    (6, "ReGLU", LLAMA, _NORM + _GLU + "i = Relu(g) m = Mul(i, u) " + _TAIL),
    (6, "bilinear GLU", LLAMA, _NORM + _GLU + "m = Mul(g, u) " + _TAIL),
    (7, "q, k, v, without RoPE", T5, _NORM + _QKV),
    (7, "q, k, v, with RoPE", LLAMA, _NORM + _QKV + _SPELLED),
    (7, "q, k, v, with RotaryEmbedding", LLAMA, _NORM + _QKV + _CALLED),
    (7, "q, k, v, with RotaryEmbedding", LLAMA2, _NORM + _QKV + _CALLED),
    (8, "linear, norm", QWEN, _NORM + _heads("q", "Q", "many") + _again("q", "one")),
    (9, "q, k, v, with norms of q and k", QWEN, _NORM + _QKV + _NORMED + _AGAIN),
    (9, "q, k, v, with norms of q and k, and gammas", QWEN, _NORM + _QKV + _SCALED + _AGAIN),
)


def count(figure: int, block: str, sizes: Sizes, body: str) -> SimpleNamespace:
    """Return multiplications by s, and by gammas of queries and keys, for one token.

    ``figure``: the paper's.  ``norm``: by the norm itself; ``behind``: by s after every layer that
    reads it, and by gammas; ``deferred``: by the plan, which saves ``saved`` of those.
    """
    info = prepare(_model(sizes, body)).info
    (norm,) = decide(info, Settings(defer=Defer.ALL)).norms
    readers = info.by_ref()[norm.output].consumers()
    widths = [(info.shape(node.outputs[0]) or ())[-1] for node in readers]
    gammas = sum(sizes.heads if x == "q" else sizes.keys for x in "qk" if f"{x}gamma" in body)
    behind = sum(width for width in widths if isinstance(width, int)) + gammas * sizes.h
    deferred = sizes.n + gammas * sizes.h - norm.multiplications_saved
    counts = {"norm": sizes.n, "behind": behind, "deferred": deferred, "saved": behind - deferred}
    return SimpleNamespace(**sizes._asdict(), figure=figure, block=block, **counts)


def _model(sizes: Sizes, body: str) -> ir.Model:
    """Return a block that reads x: [B, T, n], and tables of [B, 1, T, h] for RoPE."""
    made = [name for name in ("y", "qy", "ky", "qn", "qt", "kt", "vt") if f" {name} =" in body]
    read = [name for name in made if f"({name}," in body or f" {name})" in body]
    ends = [name for name in made if name not in read]
    outputs = ", ".join(f"float[{'B,T,N' if name == 'y' else 'B,H,T,D'}] {name}" for name in ends)
    tensors = {k: t for k, t in _tensors(sizes).items() if f"{k})" in body or f"{k}," in body}
    inputs = [f"float[B,T,{sizes.n}] x", *(f"float[B,1,T,{sizes.h}] {x}" for x in ("cos", "sin"))]
    inputs += [f"float[B,T,{sizes.h // 2}] {x}" for x in ("c3", "s3")]
    for name, tensor in tensors.items():
        kind = "int64" if tensor.dtype is ir.DataType.INT64 else "float"
        inputs.append(f"{kind}{list(tensor.shape.numpy())} {name}")
    text = f"""<ir_version: 10, opset_import: ["": 23]>
    block ({", ".join(inputs)}) => ({outputs}) {{ {body} }}"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    for value in list(model.graph.inputs):
        if value.name in tensors:
            model.graph.inputs.remove(value)
            value.const_value = tensors[value.name]
            model.graph.register_initializer(value)
    return model


def _tensors(sizes: Sizes) -> dict[str, ir.TensorProtocol]:
    n, f, h = sizes.n, sizes.f, sizes.h
    layers = {"W": (n, f), "U": (n, f), "V": (f, n), "Q": (n, sizes.heads * h)}
    layers |= {"K": (n, sizes.keys * h), "L": (n, sizes.keys * h)}
    made: dict[str, ir.TensorProtocol] = {
        name: ir.LazyTensor(
            partial(_zeros, shape), dtype=ir.DataType.FLOAT, shape=ir.Shape(shape), name=name
        )
        for name, shape in layers.items()
    }
    gamma = np.arange(1, h + 1, dtype=np.float32)
    arrays = {"ones": np.ones(n, np.float32), "one": np.ones(h, np.float32)}
    arrays |= {"qgamma": gamma, "kgamma": gamma}
    heads = {"many": sizes.heads, "few": sizes.keys}
    whole = {name: np.array([0, 0, count, h], np.int64) for name, count in heads.items()}
    return made | {name: ir.tensor(array) for name, array in (arrays | whole).items()}


def _zeros(shape: tuple[int, ...]) -> ir.Tensor:
    return ir.Tensor(np.zeros(shape, np.float32))


def main() -> None:
    """Count all blocks and write the file."""
    rows = [count(*block) for block in BLOCKS]
    write(RESULTS / "deferral_counts.csv", rows)
    tell(rows)


if __name__ == "__main__":
    main()
