"""Count what sessions of several versions of ONNX Runtime execute of float16 files.

    python -m benchmarks.half_sessions PYTHON .. [--out benchmarks/results/half_sessions.csv]

Each PYTHON is an interpreter that has a version of onnxruntime and numpy. Small recipes are
exported in float16, and optimized for each target; sessions on CPUs run both, and their profiles
count the kernels that ran, and those that are norms in one operator.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

import onnxfold
from benchmarks.harness import arguments
from benchmarks.rows import RESULTS, Row, append
from models.exporter import export

RECIPES = ("gpt2", "opt-125m", "vit-b16")
OPSET, IR_VERSION = 18, 9  # which ONNX Runtime 1.17 reads
FILES = {"export": None, "onnx": "onnx", "ort": "ort"}
# Runs where nothing but onnxruntime and numpy is installed.
RUNNER = """
import collections, json, os, sys
import numpy as np
import onnxruntime as ort
options = ort.SessionOptions()
options.log_severity_level, options.enable_profiling = 4, True
options.profile_file_prefix = os.path.join(sys.argv[2], "profile")
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
types = {"tensor(int64)": np.int64, "tensor(float16)": np.float16, "tensor(float)": np.float32}
shapes = json.loads(sys.argv[3])
feeds = {v.name: np.ones(shapes[v.name], types[v.type]) for v in session.get_inputs()}
session.run(None, feeds)
with open(session.end_profiling()) as file:
    events = [event for event in json.load(file) if event.get("cat") == "Node"]
ran = [e["args"]["op_name"] for e in events if e["name"].endswith("kernel_time")]
print(json.dumps([ort.__version__, collections.Counter(ran)]))
"""
_SIZE = 8  # of every dimension that is open


def files_of(recipe: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the float16 export of a recipe and what is made of it for each target."""
    source = export(recipe, folder, opset=OPSET, dtype="fp16", small=True)
    model = ir.load(source)
    model.ir_version = IR_VERSION
    ir.save(model, source)
    for name, target in FILES.items():
        path = folder / f"{recipe}.{name}.onnx"
        if target is None:
            yield name, source
        else:
            onnxfold.optimize(source, path, target=target)
            yield name, path


def count(python: str, path: Path, folder: Path) -> tuple[str, dict[str, int]]:
    """Return the version of ONNX Runtime of an interpreter, and the kernels that it ran."""
    inputs = ir.load(path).graph.inputs
    shapes = {v.name: [d if isinstance(d, int) else _SIZE for d in v.shape or ()] for v in inputs}
    command = [python, "-c", RUNNER, str(path), str(folder), json.dumps(shapes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    version, counts = json.loads(done.stdout.splitlines()[-1])
    return version, counts


def rows_of(pythons: list[str], folder: Path) -> Iterator[Row]:
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


def main() -> None:
    options = arguments(__doc__, {"python": {"nargs": "+"}, "--out": RESULTS / "half_sessions.csv"})
    with tempfile.TemporaryDirectory() as folder:
        append(options.out, list(rows_of(options.python, Path(folder))))


if __name__ == "__main__":
    main()
