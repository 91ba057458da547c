"""Time and memory of `onnxfold measure`.

    python -m benchmarks.geometry MODEL.onnx [--batch 8] [--length 128] [--rounds 15]
    python -m benchmarks.geometry MODEL.onnx --memory [--rows 64] [--words N] [--plain-rows N]

The instrumented session and the plain one run on the same inputs of [batch, length] and take turns;
the ratio is the median over the rounds. `sums` is the time from the outputs of a session to merged
statistics. The bar is 1.15 for BERT-base at batch 8 and length 128.

With ``--memory`` the command and a session that runs the model on the same data run each in a
process of its own; peaks are resident memory (VmHWM), which includes mapped pages of files. The bar
is 1 GB above the session's, and 10 MB of results. ``--plain-rows N``: the plain session loads all
of the data and runs the first N rows. ``--words N``: the table of words has N rows, repeating the
original ones: a model of any number of parameters with the same time per row, so that a million
rows can be measured. Rows: benchmarks/results/geometry.csv and geometry_memory.csv.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from benchmarks.disk import disk_to_disk
from benchmarks.harness import CPU, arguments
from benchmarks.rows import RESULTS, Row, append, tell
from onnxfold import model_io
from onnxfold.geometry.accumulate import kept_tables, of_tables
from onnxfold.geometry.instrument import instrument
from onnxfold.inputs import InputSpec, make_inputs
from onnxfold.inputs.data import Batch
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.runtime.interleaved_timing import RunCounts, Variant, take_turns

BAR, _WORDS = 1.15, 1000
_PLAIN = """
import sys
import numpy as np, onnxruntime as ort
model, data, batch = sys.argv[1], np.load(sys.argv[2]), int(sys.argv[3])
options = ort.SessionOptions()
options.intra_op_num_threads = int(sys.argv[4])
session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
arrays = {name: data[name] for name in data.files}
for start in range(0, int(sys.argv[5]), batch):
    session.run(None, {name: x[start:start + batch] for name, x in arrays.items()})
"""


def measured(path: Path, batch: int, length: int, threads: int, rounds: int) -> Row:
    """Time both sessions, and the sums."""
    model = model_io.load(path)
    made = instrument(prepare(model).info, seed=0)
    shapes = {str(v.name): (batch, length) for v in model.graph.inputs if len(v.shape or ()) == 2}
    feeds = make_inputs(model, InputSpec(shapes), count=1, seed=0)[0]
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "model.onnx"
        with model_io.stage(made.model, target, external_data=True) as staged:
            files = (path, Path(staged.path))
            sessions = [Variant(file).session(threads, [CPU]) for file in files]
        names = [output.name for output in sessions[1].get_outputs()]
        outputs = dict(zip(names, sessions[1].run(None, feeds), strict=True))
        given = Batch(feeds, batch, 0)

        def sums() -> object:
            return of_tables(made.norms, [kept_tables(made.norms, outputs, given, ())], 0)

        runs = [lambda s=session: s.run(None, feeds) for session in sessions]
        seconds = take_turns([*runs, sums], RunCounts(rounds=rounds))
    plain, instrumented, merged = np.median(seconds, axis=1)
    return Row(
        onnxruntime=ort.__version__,
        model=path.stem,
        norms=len(made.norms),
        batch=batch,
        length=length,
        threads=threads,
        rounds=rounds,
        plain_s=round(float(plain), 4),
        instrumented_s=round(float(instrumented), 4),
        sums_s=round(float(merged), 4),
        ratio=round(float(np.median(seconds[1] / seconds[0])), 3),
        bar=BAR,
    )


def with_words(path: Path, words: int, folder: Path) -> Path:
    """Write the model with its largest weight, the table of words, repeated to so many rows."""
    model = onnx.load(path)
    table = max(model.graph.initializer, key=lambda tensor: tensor.ByteSize())
    rows = onnx.numpy_helper.to_array(table)
    with (folder / "words.data").open("wb") as file:
        for start in range(0, words, len(rows)):
            file.write(rows[: words - start].tobytes())
    table.ClearField("raw_data")
    table.dims[0], table.data_location = words, onnx.TensorProto.EXTERNAL
    table.external_data.add(key="location", value="words.data")
    made = folder / f"{path.stem}-{words}.onnx"
    made.write_bytes(model.SerializeToString())
    return made


def memory(path: Path, given: argparse.Namespace) -> Row:
    """Measure a plain session and `onnxfold measure`, one after the other."""
    rows, length, batch, threads = given.rows, given.length, given.batch, given.threads
    plain_rows = rows if given.plain_rows is None else min(given.plain_rows, rows)
    model = model_io.load(path)
    tensors = [v.const_value for v in model.graph.initializers.values()]
    with tempfile.TemporaryDirectory() as folder:
        data, report = Path(folder) / "data.npz", Path(folder) / "report.json"
        rng = np.random.default_rng(0)
        ids = rng.integers(1, _WORDS, (rows, length))
        arrays: dict[str, Any] = {
            str(v.name): np.ones_like(ids) if "mask" in str(v.name)
            else np.zeros_like(ids) if "type" in str(v.name) else ids
            for v in model.graph.inputs
        }  # fmt: skip
        np.savez(data, **arrays)
        words = [sys.executable, "-c", _PLAIN, str(path), str(data), str(batch), str(threads)]
        words += [str(plain_rows)]
        plain = disk_to_disk(words, [path])
        words = [sys.executable, "-m", "onnxfold", "-q", "measure", str(path), "--data", str(data)]
        words += ["--batch", str(batch), "--threads", str(threads), "--report", str(report)]
        own = disk_to_disk(words, [path])
        found = json.loads(report.read_text(encoding="utf-8"))
        nbytes = report.stat().st_size
    return Row(
        onnxruntime=ort.__version__,
        model=path.stem,
        parameters=sum(tensor.size for tensor in tensors if tensor is not None),
        norms=len(found["norms"]),
        tokens=found["norms"][0]["before"]["norm"]["count"],
        plain_tokens=plain_rows * length,
        batch=batch,
        plain_s=round(plain.seconds, 1),
        measure_s=round(own.seconds, 1),
        plain_peak_mib=round(plain.peak),
        measure_peak_mib=round(own.peak),
        beyond_mib=round(own.peak - plain.peak),
        bar_mib=1024,
        report_bytes=nbytes,
    )


def main() -> None:
    """Measure one model and append its row."""
    numbers = {"--batch": 8, "--length": 128, "--threads": 2, "--rounds": 15, "--rows": 64}
    more = {"--memory": False, "--plain-rows": int, "--words": int, "--out": Path}
    given = arguments(__doc__, {"model": Path, **numbers, **more})
    if given.memory:
        with tempfile.TemporaryDirectory() as folder:
            many = given.words and with_words(given.model, given.words, Path(folder))
            row = memory(many or given.model, given)
    else:
        row = measured(given.model, given.batch, given.length, given.threads, given.rounds)
    append(given.out or RESULTS / f"geometry{'_memory' * given.memory}.csv", [row])
    tell([row])


if __name__ == "__main__":
    main()
