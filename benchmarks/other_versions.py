"""What several versions of ONNX Runtime do: of float16 files, and of Add and Sum before a norm.

    python -m benchmarks.other_versions PYTHON .. [--parts half_sessions skip_norms]

Each PYTHON is an interpreter that has a version of onnxruntime and numpy; rows go to the file of
the part in benchmarks/results.

half_sessions: small recipes are exported in float16, and optimized for each target; sessions on
CPUs run both, and their profiles count the kernels that ran, and those that are norms in one
operator.

skip_norms: a session fuses Add and LayerNormalization into SkipLayerNormalization, but not Sum;
which is faster depends on the version, and `--target ort` decides by it
(``onnxfold/targets/sums.py``). Chains of 24 pairs on tensors of 1 x 128 x 768 floats (of rank 3,
for others are not fused), one thread, taking turns; the ratio of the medians.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

import onnxfold
from benchmarks.harness import arguments, quantiles
from benchmarks.kernel_methods import chain
from benchmarks.rows import RESULTS, Row, append, tell
from models.exporter import export

RECIPES = ("gpt2", "opt-125m", "vit-b16")
OPSET, IR_VERSION = 18, 9  # which ONNX Runtime 1.17 reads
FILES = {"export": None, "onnx": "onnx", "ort": "ort"}
LENGTH, SHAPE = 24, (128, 768)
NORMS = {"LayerNormalization": "scale bias", "SimplifiedLayerNormalization": "scale"}
_SIZE = 8  # of every dimension that is open
# Run where nothing but onnxruntime and numpy is installed.
_BEGINS = """
import collections, json, os, sys, time
import numpy as np
import onnxruntime as ort
options = ort.SessionOptions()
options.log_severity_level = 4
given = sys.argv[1:]
def opened(path):
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
"""
_COUNTS = f"""{_BEGINS}
options.enable_profiling = True
options.profile_file_prefix = os.path.join(given[1], "profile")
session = opened(given[0])
types = {{"tensor(int64)": np.int64, "tensor(float16)": np.float16, "tensor(float)": np.float32}}
shapes = json.loads(given[2])
feeds = {{v.name: np.ones(shapes[v.name], types[v.type]) for v in session.get_inputs()}}
session.run(None, feeds)
with open(session.end_profiling()) as file:
    events = [event for event in json.load(file) if event.get("cat") == "Node"]
ran = [e["args"]["op_name"] for e in events if e["name"].endswith("kernel_time")]
print(json.dumps([ort.__version__, collections.Counter(ran)]))
"""
_TIMES = f"""{_BEGINS}
options.intra_op_num_threads = 1
sessions = [opened(path) for path in given]
rng = np.random.default_rng(0)
feeds = {{name: rng.standard_normal((1, 128, 768)).astype("f") for name in ("y0", "s")}}
times = [[] for _ in sessions]
for _ in range(23):
    for session, spent in zip(sessions, times):
        start = time.perf_counter()
        session.run(None, feeds)
        spent.append(time.perf_counter() - start)
print(json.dumps([ort.__version__, times]))
"""


def ran(python: str, program: str, *words: str | Path) -> Any:
    """Return what a program prints last in an interpreter."""
    command = [python, "-c", program, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def files_of(recipe: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the float16 export of a recipe and what is made of it for each target."""
    source = export(recipe, folder, opset=OPSET, dtype="fp16", small=True)
    model = ir.load(source)
    model.ir_version = IR_VERSION
    ir.save(model, source)
    for name, target in FILES.items():
        path = folder / f"{recipe}.{name}.onnx" if target else source
        if target:
            onnxfold.optimize(source, path, target=target)
        yield name, path


def count(python: str, path: Path, folder: Path) -> tuple[str, dict[str, int]]:
    """Return the version of ONNX Runtime of an interpreter, and the kernels that it ran."""
    inputs = ir.load(path).graph.inputs
    shapes = {v.name: [d if isinstance(d, int) else _SIZE for d in v.shape or ()] for v in inputs}
    version, counts = ran(python, _COUNTS, path, folder, json.dumps(shapes))
    return version, counts


def half_sessions(pythons: Sequence[str], folder: Path) -> Iterator[Row]:
    """Yield a row for each file and interpreter."""
    for recipe in RECIPES:
        for name, path in files_of(recipe, folder):
            for python in pythons:
                version, counts = count(python, path, folder)
                yield Row(
                    onnxruntime=version,
                    model=recipe,
                    opset=OPSET,
                    file=name,
                    nodes=sum(counts.values()),
                    norms=sum(n for op, n in counts.items() if op.endswith("LayerNormalization")),
                )


def skip_norms(pythons: Sequence[str], folder: Path) -> Iterator[Row]:
    """Yield a row for each norm and interpreter, which times both additions in one process."""
    for norm, affine in NORMS.items():
        paths = [folder / f"{addition}.onnx" for addition in ("Add", "Sum")]
        for path in paths:
            link = f"{path.stem} y{{0}} s -> t{{1}}; {norm} t{{1}} {affine} -> y{{1}}"
            onnx.save(chain(link, LENGTH, ["batch", *SHAPE], opset=17), path)
        for python in pythons:
            version, times = ran(python, _TIMES, *paths)
            add, total = np.array(times)[:, 3:]
            # How long Add and the norm take, in units of Sum and the norm; percentiles of rounds.
            yield Row(
                onnxruntime=version,
                norm=norm,
                add_to_sum=round(float(np.median(add) / np.median(total)), 3),
                **quantiles(add / total, 3, p10=10, p90=90),
            )


_PARTS = {"half_sessions": half_sessions, "skip_norms": skip_norms}


def main(words: Sequence[str] | None = None) -> None:
    """Measure the parts that are asked for, and append their rows."""
    given = {"python": {"nargs": "+"}, "--parts": tuple(_PARTS), "--results": RESULTS}
    options = arguments(__doc__, given, words)
    with tempfile.TemporaryDirectory() as folder:
        for part in options.parts:
            rows = list(_PARTS[part](options.python, Path(folder)))
            append(options.results / f"{part}.csv", rows)
            tell(rows)


if __name__ == "__main__":
    main()
