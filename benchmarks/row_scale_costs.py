"""What a product by one number per row costs in ONNX Runtime: for each operator, for each element.

    python -m benchmarks.row_scale_costs [--rounds 21] [--out FILE.csv] [--provider NAME]

Sessions of 64 products in a row by a [1, T, 1], each of a [1, T, n], for several n and T; all take
turns.  The time of a product is fitted, by least squares of relative errors, as
operator + element * T * n; `operator_elements` is how many elements cost as much as one more
operator: what the cut of `--defer` weighs an operator by (onnxfold/targets/costs.py).
`onnx` and `ort` write a Mul for it, `kernels` a ScaleRows of onnxfold's library.
"""

from __future__ import annotations

import tempfile
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort

from benchmarks.graphs import model, node_of_norm
from benchmarks.harness import CPU, arguments
from benchmarks.rows import RESULTS, Row, tell, write
from onnxfold.runtime.interleaved_timing import RunCounts, Variant, take_turns

PRODUCTS = 64
WIDTHS = (128, 512, 1024, 4096)
TOKENS = (1, 16, 128)


def chain(operator: str, width: int) -> onnx.ModelProto:
    """Return products by s one after another, so that none can be left out or joined."""
    nodes = [node_of_norm(f"{operator} y{i} s -> y{i + 1}") for i in range(PRODUCTS)]
    inputs = {"y0": (1, "T", width), "s": (1, "T", 1)}
    return model(nodes, inputs, {f"y{PRODUCTS}": (1, "T", width)}, {}, opset=18)


def measure(operator: str, provider: str, rounds: int, threads: int) -> Row:
    """Time every width and number of tokens in turns, and fit the two costs."""
    rng, runs, sizes = np.random.default_rng(0), [], list[int]()
    with tempfile.TemporaryDirectory() as folder:
        for width in WIDTHS:
            path = Path(folder) / f"{width}.onnx"
            onnx.save(chain(operator, width), path)
            session = Variant(path, kernels=operator == "ScaleRows").session(threads, [provider])
            for tokens in TOKENS:
                feeds = {
                    "y0": rng.standard_normal((1, tokens, width)).astype(np.float32),
                    "s": np.ones((1, tokens, 1), np.float32),
                }
                runs.append(partial(session.run, None, feeds))
                sizes.append(tokens * width)
        spent = take_turns(runs, RunCounts(rounds))
    seconds = np.median(spent, axis=1) / PRODUCTS
    (fixed, each), error = fitted(np.array(sizes, np.float64), seconds)
    return Row(
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


def main() -> None:
    """Measure, print and write the rows."""
    options = arguments(
        __doc__,
        {"--rounds": 21, "--provider": CPU, "--out": RESULTS / "row_scale_costs.csv"},
    )
    rows = []
    for operator, threads in product(("Mul", "ScaleRows"), (1, 2)):
        rows.append(measure(operator, options.provider, options.rounds, threads))
        tell(rows[-1:])
        write(options.out, rows)


if __name__ == "__main__":
    main()
