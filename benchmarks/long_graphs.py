"""Cost of long graphs, with the proof: sums of many parts, and models of many norms.

    python -m benchmarks.long_graphs [--kinds constants norms ...] [--nodes 1000 10000 100000]

Each graph is folded in this process, and a row has the processor's seconds and their quotient by
the number of nodes: where a stage is not linear, that grows.  Rows go to
benchmarks/results/long_graphs.csv.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import onnx

import onnxfold
from benchmarks.graphs import model, node
from benchmarks.harness import arguments
from benchmarks.rows import RESULTS, Row, append, tell

__all__ = ["BUILDERS", "doubled", "model_of_nodes", "norms", "quotients", "sum_of"]

WIDTH: Final = 8


def sum_of(kind: str, count: int) -> onnx.ModelProto:
    """A LayerNorm after a sum of ``count`` parts: one constant, constants, or linear layers.

    ``numbers and constants``: in turns, which no bias absorbs.
    """
    texts = ["MatMul x W -> t0"]
    for i in range(count):
        if kind == "one constant":
            part = "c"
        elif kind == "constants":
            part = f"c{i}"
        elif kind == "numbers and constants":
            part = f"{'nc'[i % 2]}{i}"
        else:
            part = f"e{i}"
            texts.append(f"MatMul x W{i} -> e{i}")
        texts.append(f"Add t{i} {part} -> t{i + 1}")
    return _model([*texts, f"LayerNormalization t{count} gamma -> y"])


def doubled(count: int) -> onnx.ModelProto:
    """A LayerNorm after ``count`` sums of a value and itself, with twice as many ways each."""
    sums = [f"Add t{i} t{i} -> t{i + 1}" for i in range(count)]
    return _model(["MatMul x W -> t0", *sums, f"LayerNormalization t{count} gamma -> y"])


def quotients(count: int) -> onnx.ModelProto:
    """Post-LN blocks of a layer, a sum and a norm in eight operators, none of which folds."""
    block = """MatMul t{0} W -> p{0}; Add p{0} t{0} -> h{0}; ReduceMean h{0} -> m{0};
        Sub h{0} m{0} -> d{0}; Pow d{0} two -> s{0}; ReduceMean s{0} -> v{0}; Add v{0} eps -> e{0};
        Sqrt e{0} -> r{0}; Div d{0} r{0} -> q{0}; Mul q{0} g -> t{1}"""
    texts = _times(block, count)
    texts[:2] = [text.replace("t0", "x") for text in texts[:2]]
    return _model([*texts, f"Identity t{count} -> y"])


def norms(count: int) -> onnx.ModelProto:
    """Pre-LN blocks of LayerNorm, layer, Relu and layer: seven nodes each."""
    block = """LayerNormalization t{0} g{0} b{0} -> n{0}; MatMul n{0} A{0} -> p{0};
        Add p{0} a{0} -> q{0}; Relu q{0} -> r{0}; MatMul r{0} Z{0} -> s{0}; Add s{0} z{0} -> u{0};
        Add t{0} u{0} -> t{1}"""
    last = f"LayerNormalization t{count} gamma -> y"
    return _model(["MatMul x W -> t0", *_times(block, count), last])


def _times(block: str, count: int) -> list[str]:
    return [text.strip().format(i, i + 1) for i in range(count) for text in block.split(";")]


def _model(texts: Sequence[str]) -> onnx.ModelProto:
    """Return a model of these nodes; the name of a constant says what it is."""
    axes = {"axes": [-1]}
    nodes = [node(text, **(axes if text.startswith("ReduceMean") else {})) for text in texts]
    made = {"x", *(name for each in nodes for name in each.output)}
    given = {name: None for each in nodes for name in each.input if name not in made}
    rng = np.random.default_rng(0)
    return model_of_nodes(nodes, {name: _constant(name, rng) for name in given})


def _constant(name: str, rng: np.random.Generator) -> np.ndarray:
    known = {"two": 2.0, "eps": 1e-5, "gamma": np.ones(WIDTH)}
    if name in known:
        return np.asarray(known[name], np.float32)
    shape = (WIDTH, WIDTH) if name[0].isupper() else () if name[0] == "n" else (WIDTH,)
    size = 0.3 if name[0] in "AZ" else 1.0
    return np.asarray(size * rng.normal(size=shape), np.float32)


def model_of_nodes(
    nodes: Sequence[onnx.NodeProto], constants: Mapping[str, npt.ArrayLike]
) -> onnx.ModelProto:
    """Return a model that takes x and gives y, rows of :data:`WIDTH` numbers."""
    shape = ("batch", WIDTH)
    return model(nodes, {"x": shape}, {"y": shape}, constants, opset=17)


# By kind, how a model of about so many nodes is made.
BUILDERS: Final[Mapping[str, Callable[[int], onnx.ModelProto]]] = {
    "one constant": lambda nodes: sum_of("one constant", nodes),
    "constants": lambda nodes: sum_of("constants", nodes),
    "numbers and constants": lambda nodes: sum_of("numbers and constants", nodes),
    "layers": lambda nodes: sum_of("layers", nodes // 2),
    "norms": lambda nodes: norms(nodes // 7),
    "quotients": lambda nodes: quotients(nodes // 10),
    "doubled": doubled,
}


def rows_of(kind: str, sizes: list[int]) -> Iterator[Row]:
    """Yield a row for each number of nodes."""
    onnxfold.optimize(BUILDERS[kind](10), check=0)  # imports
    for size in sizes:
        made = BUILDERS[kind](size)
        start = time.process_time()
        report = onnxfold.optimize(made, check=0).report
        seconds = time.process_time() - start
        # One fold, proved and not compared; ``left_out``: passes or moves that were not proved.
        yield Row(
            load=round(os.getloadavg()[0], 2),
            kind=kind,
            nodes=len(made.graph.node),
            folded=report["inspect"]["summary"]["foldable"],
            left_out=len(report.get("left_out") or ()),
            seconds=round(seconds, 3),
            per_node_ms=round(1e3 * seconds / len(made.graph.node), 4),
        )


def main() -> None:
    """Measure, print and keep the rows."""
    kinds, nodes = tuple(BUILDERS), [1000, 10_000, 100_000]
    out = RESULTS / "long_graphs.csv"
    options = arguments(__doc__, {"--kinds": kinds, "--nodes": nodes, "--out": out})
    for kind in options.kinds:
        for row in rows_of(kind, options.nodes):
            append(options.out, [row])
            tell([row])


if __name__ == "__main__":
    main()
