"""What a product by one number per row costs in ONNX Runtime: for each operator, for each element.

    python -m benchmarks.row_scale_costs [--rounds 21] [--out FILE.csv] [--provider NAME]

Sessions of 64 products in a row by a [1, T, 1], each of a [1, T, n], for several n and T; all take
turns.  The time of a product is fitted, by least squares of relative errors, as
operator + element * T * n; `operator_elements` is how many elements cost as much as one more
operator: what the cut of `--defer` weighs an operator by (onnxfold/targets/deferral_gains.py).
`onnx` and `ort` write a Mul for it, `kernels` a ScaleRows of onnxfold's library.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from benchmarks.rows import RESULTS, Conditions, conditions, write
from onnxfold.operators import functions
from onnxfold.runtime.interleaved_timing import RunCounts, Variant, take_turns

PRODUCTS = 64
WIDTHS = (128, 512, 1024, 4096)
TOKENS = (1, 16, 128)
CPU = "CPUExecutionProvider"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRow(Conditions):
    """A fit for one operator: nanoseconds for each operator and element, and its largest error."""

    onnxruntime: str
    provider: str
    operator: str
    threads: int
    rounds: int
    operator_ns: float
    element_ns: float
    operator_elements: int
    largest_error: float


def chain(operator: str, width: int) -> onnx.ModelProto:
    """Return products by s one after another, so that none can be left out or joined."""
    ours = operator == "ScaleRows"
    values = ["x", *(f"v{number}" for number in range(PRODUCTS - 1)), "y"]
    said: dict[str, Any] = {"domain": functions.DOMAIN, "axis": -1} if ours else {}
    nodes = [helper.make_node(operator, [a, "s"], [b], **said) for a, b in pairwise(values)]
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, "T", size])
        for name, size in (("x", width), ("s", 1), ("y", width))
    ]
    graph = helper.make_graph(nodes, "products", infos[:2], infos[2:])
    opsets = [helper.make_opsetid("", 18)]
    opsets += [helper.make_opsetid(functions.DOMAIN, 1)] if ours else []
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def measure(operator: str, provider: str, rounds: int, threads: int) -> CostRow:
    """Time every width and number of tokens in turns, and fit the two costs."""
    rng, runs, sizes = np.random.default_rng(0), [], list[int]()
    with tempfile.TemporaryDirectory() as folder:
        for width in WIDTHS:
            path = Path(folder) / f"{width}.onnx"
            onnx.save(chain(operator, width), path)
            session = Variant(path, kernels=operator == "ScaleRows").session(threads, [provider])
            for tokens in TOKENS:
                feeds = {
                    "x": rng.standard_normal((1, tokens, width)).astype(np.float32),
                    "s": np.ones((1, tokens, 1), np.float32),
                }
                runs.append(partial(_run, session, feeds))
                sizes.append(tokens * width)
        spent = take_turns(runs, RunCounts(rounds))
    seconds = np.median(spent, axis=1) / PRODUCTS
    (fixed, each), error = fitted(np.array(sizes, np.float64), seconds)
    return CostRow(
        **conditions(),
        onnxruntime=ort.__version__,
        provider=provider,
        operator=operator,
        threads=threads,
        rounds=rounds,
        operator_ns=round(1e9 * fixed, 1),
        element_ns=round(1e9 * each, 4),
        operator_elements=round(fixed / each),
        largest_error=round(error, 3),
    )


def fitted(
    sizes: npt.NDArray[np.float64], seconds: npt.NDArray[np.float64]
) -> tuple[tuple[float, float], float]:
    """Return the fixed time and the time per element, and the largest relative error of the fit."""
    terms = np.stack([np.ones_like(sizes), sizes], axis=1) / seconds[:, None]
    (fixed, each), *_ = np.linalg.lstsq(terms, np.ones_like(seconds), rcond=None)
    return (float(fixed), float(each)), float(np.abs(terms @ (fixed, each) - 1).max())


def _run(session: ort.InferenceSession, feeds: dict[str, npt.NDArray[np.float32]]) -> None:
    session.run(None, feeds)


def main() -> None:
    """Measure, print and write the rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--provider", default=CPU, choices=ort.get_available_providers())
    parser.add_argument("--out", type=Path, default=RESULTS / "row_scale_costs.csv")
    options = parser.parse_args()
    rows = []
    for operator, threads in product(("Mul", "ScaleRows"), (1, 2)):
        rows.append(measure(operator, options.provider, options.rounds, threads))
        row = rows[-1]
        print(
            f"{operator:10} {threads} threads: {row.operator_ns:.0f} ns an operator, "
            f"{row.element_ns:.3f} ns an element, {row.operator_elements} elements an operator "
            f"(largest error {row.largest_error:.0%})",
            flush=True,
        )
        write(options.out, rows)


if __name__ == "__main__":
    main()
