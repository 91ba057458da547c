"""Time Add and Sum upstream of a norm in several versions of ONNX Runtime.

    python -m benchmarks.skip_norms PYTHON .. [--out benchmarks/results/skip_norms.csv]

Each PYTHON is an interpreter that has a version of onnxruntime and numpy. A session fuses Add and
LayerNormalization into SkipLayerNormalization, but not Sum; which is faster depends on the version,
and `--target ort` decides by it (``onnxfold/targets/sums.py``). Chains of 24 pairs on tensors of 1
x 128 x 768 floats (of rank 3, for others are not fused), one thread, taking turns; the ratio of the
medians.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.rows import RESULTS, Conditions, append, conditions

LENGTH, ROWS, SIZE = 24, 128, 768
NORMS = {"LayerNormalization": ("gamma", "beta"), "SimplifiedLayerNormalization": ("gamma",)}
# Runs where nothing but onnxruntime and numpy is installed.
RUNNER = """
import json, sys, time
import numpy as np
import onnxruntime as ort
options = ort.SessionOptions()
options.log_severity_level, options.intra_op_num_threads = 4, 1
paths = sys.argv[1:]
sessions = [ort.InferenceSession(p, options, providers=["CPUExecutionProvider"]) for p in paths]
rng = np.random.default_rng(0)
feeds = {name: rng.standard_normal((1, 128, 768)).astype("f") for name in ("y0", "s")}
times = [[] for _ in paths]
for _ in range(23):
    for session, spent in zip(sessions, times):
        start = time.perf_counter()
        session.run(None, feeds)
        spent.append(time.perf_counter() - start)
print(json.dumps([ort.__version__, times]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipRow(Conditions):
    """One version and norm: how long Add and the norm take, in units of Sum and the norm.

    `p10` and `p90` are of the rounds' ratios.
    """

    onnxruntime: str
    norm: str
    add_to_sum: float
    p10: float
    p90: float


def chain(addition: str, norm: str) -> onnx.ModelProto:
    """LENGTH pairs of an addition and a norm."""
    nodes = []
    for i in range(LENGTH):
        nodes.append(helper.make_node(addition, [f"y{i}", "s"], [f"t{i}"]))
        inputs = [f"t{i}", *NORMS[norm]]
        nodes.append(helper.make_node(norm, inputs, [f"y{i + 1}"], axis=-1, epsilon=1e-5))

    def info(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", ROWS, SIZE])

    weights = {"gamma": np.ones(SIZE, np.float32), "beta": np.zeros(SIZE, np.float32)}
    graph = helper.make_graph(
        nodes,
        "chain",
        [info("y0"), info("s")],
        [info(f"y{LENGTH}")],
        [numpy_helper.from_array(weights[name], name) for name in NORMS[norm]],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def measure(python: str, norm: str, folder: Path) -> SkipRow:
    """Time both additions in one process of this interpreter."""
    paths = []
    for addition in ("Add", "Sum"):
        paths.append(str(folder / f"{addition}.onnx"))
        onnx.save(chain(addition, norm), paths[-1])
    command = [python, "-c", RUNNER, *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    version, (add, total) = json.loads(done.stdout.splitlines()[-1])
    ratios = np.array(add[3:]) / np.array(total[3:])
    p10, p90 = np.percentile(ratios, (10, 90))
    return SkipRow(
        **conditions(),
        onnxruntime=version,
        norm=norm,
        add_to_sum=round(float(np.median(add[3:]) / np.median(total[3:])), 3),
        p10=round(float(p10), 3),
        p90=round(float(p90), 3),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("python", nargs="+")
    parser.add_argument("--out", type=Path, default=RESULTS / "skip_norms.csv")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(p, norm, Path(folder)) for p in options.python for norm in NORMS]
    append(options.out, rows)


if __name__ == "__main__":
    main()
