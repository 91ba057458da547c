"""How long recognition takes over 1 to 1000 decomposed layer norms: it is linear in the graph.

    python -m benchmarks.recognition

prints a table and appends its rows to benchmarks/results/recognition.csv.  Times are processor
time, which other work on the machine does not lengthen as it does the time on the clock.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from benchmarks.rows import RESULTS, Conditions, append, conditions
from onnxfold.norms import find_norms
from onnxfold.shapes import infer

__all__ = ["main", "tower"]

WIDTH = 64
LAYERS = (1, 2, 6, 12, 24, 48, 96, 500, 1000)
_RUNS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RecognitionRow(Conditions):
    """Medians over the runs; ``load`` is the load average of the minute before."""

    load: float
    norms: int
    nodes: int
    runs: int
    view_ms: float
    find_ms: float
    find_ms_per_norm: float


def tower(layers: int) -> onnx.ModelProto:
    """A residual tower of `layers` norms in the spelling of torch, each with a linear layer."""
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, npt.NDArray[np.float32]] = {
        "two": np.array(2, np.float32),
        "e": np.array(1e-5, np.float32),
    }
    x = "x0"
    for i in range(layers):
        for name in ("g", "b"):
            constants[f"{name}{i}"] = rng.standard_normal(WIDTH).astype(np.float32)
        constants[f"w{i}"] = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32)
        lines = (
            f"ReduceMean {x} -> u{i}", f"Sub {x} u{i} -> d{i}", f"Pow d{i} two -> q{i}",
            f"ReduceMean q{i} -> v{i}", f"Add v{i} e -> f{i}", f"Sqrt f{i} -> s{i}",
            f"Div d{i} s{i} -> n{i}", f"Mul n{i} g{i} -> m{i}", f"Add m{i} b{i} -> y{i}",
            f"MatMul y{i} w{i} -> z{i}", f"Add {x} z{i} -> x{i + 1}",
        )  # fmt: skip
        for line in lines:
            op_type, *inputs, _, output = line.split()
            axes = {"axes": [-1]} if op_type == "ReduceMean" else {}
            nodes.append(helper.make_node(op_type, inputs, [output], name=output, **axes))
        x = f"x{i + 1}"
    dims = ["batch", "time", WIDTH]
    graph = helper.make_graph(
        nodes,
        "tower",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, dims)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def main() -> int:
    """Measure, print and keep the rows; returns the exit code."""
    load = round(os.getloadavg()[0], 2)
    _measured(LAYERS[0])  # what is imported and compiled once
    print(f"{'norms':>6} {'view, ms':>10} {'find, ms':>10} {'per norm, ms':>13}")
    rows = []
    for layers in LAYERS:
        times = [_measured(layers) for _ in range(_RUNS)]
        view_ms, find_ms = (round(median(run[part] for run in times), 3) for part in (0, 1))
        each = round(find_ms / layers, 4)
        rows.append(
            RecognitionRow(
                load=load,
                norms=layers,
                nodes=11 * layers,
                runs=_RUNS,
                view_ms=view_ms,
                find_ms=find_ms,
                find_ms_per_norm=each,
                **conditions(),
            )
        )
        print(f"{layers:>6} {view_ms:>10.1f} {find_ms:>10.1f} {each:>13.2f}")
    append(RESULTS / "recognition.csv", rows)
    return 0


def _measured(layers: int) -> tuple[float, float]:
    """Return the milliseconds for the view of a tower and for finding its norms."""
    model = ir.from_proto(tower(layers))
    start = time.process_time()
    view = infer(model)
    viewed = time.process_time()
    sites = find_norms(view)
    found = time.process_time()
    if len(sites) != layers:
        raise SystemExit(f"{len(sites)} of {layers} norms found")
    return 1e3 * (viewed - start), 1e3 * (found - viewed)


if __name__ == "__main__":
    sys.exit(main())
