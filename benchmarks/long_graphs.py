"""Cost of long graphs, with the proof: sums of many parts, and models of many norms.

    python -m benchmarks.long_graphs [--kinds constants norms ...] [--nodes 1000 10000 100000]

Each graph is folded in this process, and a row has the processor's seconds and their quotient by
the number of nodes: where a stage is not linear, that grows.  Rows go to
benchmarks/results/long_graphs.csv.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from benchmarks.rows import RESULTS, Conditions, append, conditions

__all__ = ["BUILDERS", "model_of_nodes", "norms", "quotients", "sum_of"]

WIDTH: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRow(Conditions):
    """One fold, proved and not compared; ``left_out``: passes or moves that were not proved."""

    load: float
    kind: str
    nodes: int
    folded: int
    left_out: int
    seconds: float
    per_node_ms: float


def sum_of(kind: str, count: int) -> onnx.ModelProto:
    """A LayerNorm after a sum of ``count`` parts: one constant, constants, or linear layers.

    ``numbers and constants``: in turns, which no bias absorbs.
    """
    rng = np.random.default_rng(0)
    made: dict[str, np.ndarray] = {}

    def weight(name: str, *shape: int) -> str:
        made.setdefault(name, rng.normal(size=shape).astype(np.float32))
        return name

    nodes = [helper.make_node("MatMul", ["x", weight("W", WIDTH, WIDTH)], ["t0"])]
    for i in range(count):
        if kind == "one constant":
            part = weight("c", WIDTH)
        elif kind == "constants":
            part = weight(f"c{i}", WIDTH)
        elif kind == "numbers and constants":
            part = weight(f"c{i}", *([WIDTH] * (i % 2)))
        else:
            part = f"e{i}"
            made_of = ["x", weight(f"W{i}", WIDTH, WIDTH)]
            nodes.append(helper.make_node("MatMul", made_of, [part]))
        nodes.append(helper.make_node("Add", [f"t{i}", part], [f"t{i + 1}"]))
    nodes.append(helper.make_node("LayerNormalization", [f"t{count}", "gamma"], ["y"]))
    made["gamma"] = np.ones(WIDTH, np.float32)
    return model_of_nodes(nodes, made)


def quotients(count: int) -> onnx.ModelProto:
    """Post-LN blocks of a layer, a sum and a norm in eight operators, none of which folds."""
    rng = np.random.default_rng(0)
    made = {
        "W": rng.normal(size=(WIDTH, WIDTH)).astype(np.float32),
        "g": rng.normal(size=WIDTH).astype(np.float32),
        "two": np.float32(2),
        "eps": np.float32(1e-5),
    }
    nodes = []
    for i in range(count):
        x, h = f"t{i}" if i else "x", f"h{i}"
        nodes += [
            helper.make_node("MatMul", [x, "W"], [f"p{i}"]),
            helper.make_node("Add", [f"p{i}", x], [h]),
            helper.make_node("ReduceMean", [h], [f"m{i}"], axes=[-1]),
            helper.make_node("Sub", [h, f"m{i}"], [f"d{i}"]),
            helper.make_node("Pow", [f"d{i}", "two"], [f"s{i}"]),
            helper.make_node("ReduceMean", [f"s{i}"], [f"v{i}"], axes=[-1]),
            helper.make_node("Add", [f"v{i}", "eps"], [f"e{i}"]),
            helper.make_node("Sqrt", [f"e{i}"], [f"r{i}"]),
            helper.make_node("Div", [f"d{i}", f"r{i}"], [f"q{i}"]),
            helper.make_node("Mul", [f"q{i}", "g"], [f"t{i + 1}"]),
        ]
    nodes.append(helper.make_node("Identity", [f"t{count}"], ["y"]))
    return model_of_nodes(nodes, made)


def norms(count: int) -> onnx.ModelProto:
    """Pre-LN blocks of LayerNorm, layer, Relu and layer: seven nodes each."""
    rng = np.random.default_rng(0)
    made = {"W": rng.normal(size=(WIDTH, WIDTH)).astype(np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "W"], ["t0"])]
    for i in range(count):
        for name in ("g", "b", "a", "z"):
            made[f"{name}{i}"] = rng.normal(size=WIDTH).astype(np.float32)
        for name in ("A", "Z"):
            made[f"{name}{i}"] = rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) * 0.3
        nodes += [
            helper.make_node("LayerNormalization", [f"t{i}", f"g{i}", f"b{i}"], [f"n{i}"]),
            helper.make_node("MatMul", [f"n{i}", f"A{i}"], [f"p{i}"]),
            helper.make_node("Add", [f"p{i}", f"a{i}"], [f"q{i}"]),
            helper.make_node("Relu", [f"q{i}"], [f"r{i}"]),
            helper.make_node("MatMul", [f"r{i}", f"Z{i}"], [f"s{i}"]),
            helper.make_node("Add", [f"s{i}", f"z{i}"], [f"u{i}"]),
            helper.make_node("Add", [f"t{i}", f"u{i}"], [f"t{i + 1}"]),
        ]
    made["gamma"] = np.ones(WIDTH, np.float32)
    nodes.append(helper.make_node("LayerNormalization", [f"t{count}", "gamma"], ["y"]))
    return model_of_nodes(nodes, made)


def model_of_nodes(
    nodes: list[onnx.NodeProto], constants: Mapping[str, np.ndarray]
) -> onnx.ModelProto:
    """Return a model that takes x and gives y, rows of :data:`WIDTH` numbers."""
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", WIDTH]) for name in "xy"
    )
    tensors = [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()]
    graph = helper.make_graph(nodes, "long", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


# By kind, how a model of about so many nodes is made.
BUILDERS: Final[Mapping[str, Callable[[int], onnx.ModelProto]]] = {
    "one constant": lambda nodes: sum_of("one constant", nodes),
    "constants": lambda nodes: sum_of("constants", nodes),
    "numbers and constants": lambda nodes: sum_of("numbers and constants", nodes),
    "layers": lambda nodes: sum_of("layers", nodes // 2),
    "norms": lambda nodes: norms(nodes // 7),
    "quotients": lambda nodes: quotients(nodes // 10),
}


def rows_of(kind: str, sizes: list[int]) -> Iterator[LongRow]:
    """Yield a row for each number of nodes."""
    onnxfold.optimize(BUILDERS[kind](10), check=0)  # imports
    for size in sizes:
        model = BUILDERS[kind](size)
        start = time.process_time()
        report = onnxfold.optimize(model, check=0).report
        seconds = time.process_time() - start
        yield LongRow(
            **conditions(),
            load=round(os.getloadavg()[0], 2),
            kind=kind,
            nodes=len(model.graph.node),
            folded=report["inspect"]["summary"]["foldable"],
            left_out=len(report.get("left_out") or ()),
            seconds=round(seconds, 3),
            per_node_ms=round(1e3 * seconds / len(model.graph.node), 4),
        )


def main() -> None:
    """Measure, print and keep the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="+", choices=list(BUILDERS), default=list(BUILDERS))
    parser.add_argument("--nodes", nargs="+", type=int, default=[1000, 10_000, 100_000])
    parser.add_argument("--out", type=Path, default=RESULTS / "long_graphs.csv")
    arguments = parser.parse_args()
    for kind in arguments.kinds:
        for row in rows_of(kind, arguments.nodes):
            print(f"{kind:22} {row.nodes:7} nodes {row.folded:6} folded {row.left_out} left out",
                  f"{row.seconds:9.2f} s {row.per_node_ms:7.3f} ms a node", flush=True)  # fmt: skip
            append(arguments.out, [row])


if __name__ == "__main__":
    main()
