"""Time Add and Sum upstream of a norm in several versions of ONNX Runtime.

    python -m benchmarks.skip_norms PYTHON .. [--out benchmarks/results/skip_norms.csv]

Each PYTHON is an interpreter that has a version of onnxruntime and numpy. A session fuses Add and
LayerNormalization into SkipLayerNormalization, but not Sum; which is faster depends on the version,
and `--target ort` decides by it (``onnxfold/targets/sums.py``). Chains of 24 pairs on tensors of 1
x 128 x 768 floats (of rank 3, for others are not fused), one thread, taking turns; the ratio of the
medians.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import onnx

from benchmarks.harness import arguments, quantiles
from benchmarks.kernel_methods import chain
from benchmarks.rows import RESULTS, Row, append, tell

LENGTH, ROWS, SIZE = 24, 128, 768
NORMS = {"LayerNormalization": "scale bias", "SimplifiedLayerNormalization": "scale"}
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


def measure(python: str, norm: str, folder: Path) -> Row:
    """Time both additions in one process of this interpreter."""
    paths = []
    for addition in ("Add", "Sum"):
        link = f"{addition} y{{0}} s -> t{{1}}; {norm} t{{1}} {NORMS[norm]} -> y{{1}}"
        paths.append(str(folder / f"{addition}.onnx"))
        onnx.save(chain(link, LENGTH, ["batch", ROWS, SIZE], opset=17), paths[-1])
    command = [python, "-c", RUNNER, *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    version, (add, total) = json.loads(done.stdout.splitlines()[-1])
    # How long Add and the norm take, in units of Sum and the norm; percentiles of the rounds.
    return Row(
        onnxruntime=version,
        norm=norm,
        add_to_sum=round(float(np.median(add[3:]) / np.median(total[3:])), 3),
        **quantiles(np.array(add[3:]) / np.array(total[3:]), 3, p10=10, p90=90),
    )


def main() -> None:
    options = arguments(__doc__, {"python": {"nargs": "+"}, "--out": RESULTS / "skip_norms.csv"})
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(p, norm, Path(folder)) for p in options.python for norm in NORMS]
    append(options.out, rows)
    tell(rows)


if __name__ == "__main__":
    main()
