"""How long recognition takes over 1 to 1000 decomposed layer norms: it is linear in the graph.

    python -m benchmarks.recognition

prints a table and appends its rows to benchmarks/results/recognition.csv.  Times are processor
time, which other work on the machine does not lengthen as it does the time on the clock.
"""

from __future__ import annotations

import os
import sys
import time
from statistics import median

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from benchmarks.graphs import model, node
from benchmarks.rows import RESULTS, Row, append
from onnxfold.recognition import find_norms
from onnxfold.shapes import infer

__all__ = ["main", "tower"]

WIDTH = 64
LAYERS = (1, 2, 6, 12, 24, 48, 96, 500, 1000)
_RUNS = 3
_BLOCK = """ReduceMean x{0} -> u{0}; Sub x{0} u{0} -> d{0}; Pow d{0} two -> q{0};
ReduceMean q{0} -> v{0}; Add v{0} e -> f{0}; Sqrt f{0} -> s{0}; Div d{0} s{0} -> n{0};
Mul n{0} g{0} -> m{0}; Add m{0} b{0} -> y{0}; MatMul y{0} w{0} -> z{0}; Add x{0} z{0} -> x{1}"""


def tower(layers: int) -> onnx.ModelProto:
    """A residual tower of `layers` norms in the spelling of torch, each with a linear layer."""
    rng = np.random.default_rng(0)
    weights: dict[str, npt.NDArray[np.float32]] = {
        "two": np.array(2, np.float32),
        "e": np.array(1e-5, np.float32),
    }
    for i in range(layers):
        for name, shape in (("g", [WIDTH]), ("b", [WIDTH]), ("w", [WIDTH, WIDTH])):
            weights[f"{name}{i}"] = rng.standard_normal(shape).astype(np.float32)
    texts = [t.strip().format(i, i + 1) for i in range(layers) for t in _BLOCK.split(";")]
    nodes = [node(t, **({"axes": [-1]} if t.startswith("Reduce") else {})) for t in texts]
    shape = ["batch", "time", WIDTH]
    return model(nodes, {"x0": shape}, {f"x{layers}": shape}, weights, opset=13)


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
        # Medians over the runs; ``load`` is the load average of the minute before.
        rows.append(
            Row(
                load=load,
                norms=layers,
                nodes=11 * layers,
                runs=_RUNS,
                view_ms=view_ms,
                find_ms=find_ms,
                find_ms_per_norm=each,
            )
        )
        print(f"{layers:>6} {view_ms:>10.1f} {find_ms:>10.1f} {each:>13.2f}")
    append(RESULTS / "recognition.csv", rows)
    return 0


def _measured(layers: int) -> tuple[float, float]:
    """Return the milliseconds for the view of a tower and for finding its norms."""
    made = ir.from_proto(tower(layers))
    start = time.process_time()
    view = infer(made)
    viewed = time.process_time()
    sites = find_norms(view)
    found = time.process_time()
    if len(sites) != layers:
        raise SystemExit(f"{len(sites)} of {layers} norms found")
    return 1e3 * (viewed - start), 1e3 * (found - viewed)


if __name__ == "__main__":
    sys.exit(main())
