"""Time of a norm and its replacements in ONNX Runtime, for few and for many elements.

    python -m benchmarks.fixed_costs [--rounds 61] [--out benchmarks/results/fixed_costs.csv]

Each method is a session of 32 links in a row, on one thread; all methods of a shape are timed in
turns, by processor time. Other work on the machine only adds to it: `us` is the 10th percentile of
the rounds, for one link, `of_layer_norm` its ratio to LayerNormalization's. The replacement of a
norm is cheaper for many elements, and dearer by an operator for few: ``onnxfold/targets/costs.py``
takes from here the cost of an operator of any size (`Costs.operator`, an Add of one row), and of a
row of an Add (`Costs.row`).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from benchmarks.rows import RESULTS, Conditions, conditions, write

__all__ = ["METHODS", "main", "measured"]

LINKS = 32
SIZES = (32, 96, 192, 384, 768)
ROWS = (1, 16, 64, 256)
LEAST_SECONDS = 0.002  # of one turn
LAYER = "LayerNormalization"
_NORM = (LAYER, "{x} gamma beta", "{y}")
_RMS = ("SimplifiedLayerNormalization", "{x} gamma", "{y}")
_JOINED = "Add + LayerNormalization, joined"
# What the operators of a link are, with their inputs and outputs.
METHODS: dict[str, tuple[tuple[str, str, str], ...]] = {
    LAYER: (_NORM,),
    "RMS norm": (_RMS,),
    "RMS norm + Add of beta": ((_RMS[0], _RMS[1], "{y}n"), ("Add", "{y}n beta", "{y}")),
    "ReduceMean + Sub": (("ReduceMean", "{x} axes", "{y}m"), ("Sub", "{x} {y}m", "{y}")),
    "Add of beta": (("Add", "{x} beta", "{y}"),),
    _JOINED: (("SkipLayerNormalization", "{x} s gamma beta", "{y}"),),
    "Sum + LayerNormalization": (("Sum", "{x} s", "{y}t"), (LAYER, "{y}t gamma beta", "{y}")),
    "Add + RMS norm": (("Add", "{x} s", "{y}t"), (_RMS[0], "{y}t gamma", "{y}")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedCostRow(Conditions):
    """The processor's time of one link of a method at one shape."""

    onnxruntime: str
    method: str
    rows: int
    size: int
    us: float
    of_layer_norm: float


def chain(method: str, rows: int, size: int) -> onnx.ModelProto:
    """LINKS links of a method, each reading the result of its predecessor."""
    nodes = []
    for number in range(LINKS):
        names = {"x": f"y{number}", "y": f"y{number + 1}"}
        for op, inputs, outputs in METHODS[method]:
            domain = "com.microsoft" if op.startswith("Skip") else ""
            settings = {"axis": -1} if op in (LAYER, _RMS[0]) else {}
            read, made = (text.format(**names).split() for text in (inputs, outputs))
            nodes.append(helper.make_node(op, read, made, domain=domain, **settings))
    weights = {
        "gamma": np.linspace(0.9, 1.1, size, dtype=np.float32),
        "beta": np.linspace(-1, 1, size, dtype=np.float32),
        "axes": np.array([-1]),
    }
    used = {name for node in nodes for name in node.input}
    shape = [1, rows, size]
    ends = [name for name in ("y0", "s") if name in used]
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names]
        for names in (ends, [f"y{LINKS}"])
    )
    given = [numpy_helper.from_array(weights[name], name) for name in weights if name in used]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "chain", inputs, outputs, given)
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


class _Chain:
    """A session of a chain that executes exactly what the method names."""

    def __init__(self, method: str, rows: int, size: int, scratch: Path) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 4
        options.optimized_model_filepath = str(scratch)
        self._session = ort.InferenceSession(
            chain(method, rows, size).SerializeToString(),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=["SkipLayerNormFusion"],
        )
        left = [node.op_type for node in onnx.load(scratch).graph.node]
        if sorted(left) != sorted([op for op, *_ in METHODS[method]] * LINKS):
            raise RuntimeError(f"'{method}' became {sorted(set(left))}; its time means nothing")
        rng = np.random.default_rng(0)
        self._feeds = {
            value.name: rng.standard_normal((1, rows, size)).astype(np.float32)
            for value in self._session.get_inputs()
        }
        self._runs = 1
        while self.turn() * self._runs < LEAST_SECONDS:
            self._runs *= 2

    def turn(self) -> float:
        """Return the processor's seconds of one run."""
        start = time.process_time()
        for _ in range(self._runs):
            self._session.run(None, self._feeds)
        return (time.process_time() - start) / self._runs


def measured(rows: int, size: int, rounds: int) -> Iterator[FixedCostRow]:
    """Yield a row for each method at one shape."""
    with tempfile.TemporaryDirectory() as folder:
        chains = [_Chain(method, rows, size, Path(folder) / "s.onnx") for method in METHODS]
        turns = range(rounds)
        seconds = np.array([[each.turn() for each in chains] for _ in turns]) / LINKS
    best = np.percentile(seconds, 10, axis=0)
    for method, spent in zip(METHODS, best, strict=True):
        yield FixedCostRow(
            **conditions(),
            onnxruntime=ort.__version__,
            method=method,
            rows=rows,
            size=size,
            us=round(float(spent) * 1e6, 3),
            of_layer_norm=round(float(spent / best[0]), 3),
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every shape, and write the rows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fixed_costs", description=__doc__)
    parser.add_argument("--rounds", type=int, default=61)
    parser.add_argument("--out", type=Path, default=RESULTS / "fixed_costs.csv")
    chosen = parser.parse_args(arguments)
    found: list[FixedCostRow] = []
    for size in SIZES:
        for rows in ROWS:
            made = list(measured(rows, size, chosen.rounds))
            found += made
            told = ", ".join(f"{row.method} {row.us:.2f} ({row.of_layer_norm:.2f})" for row in made)
            print(f"{rows} x {size}: {told}")
    write(chosen.out, found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
