"""Memory of `onnxfold measure`, compared with a session that runs the model on the same data.

    python -m benchmarks.geometry_memory MODEL.onnx [--rows 64] [--length 128] [--batch 8]

Each runs in a separate process, one after the other; peaks are resident memory (VmHWM), which
includes mapped pages of files. The bar is 1 GB above the session's, and 10 MB of results. With
``--plain-rows N`` the plain session loads all of the data and runs the first N rows. With ``--words
N`` the table of words has N rows, repeating the original ones: a model of any number of parameters
with the same time per row, so that a million rows can be measured.
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

from benchmarks.disk import disk_to_disk
from benchmarks.harness import arguments
from benchmarks.rows import RESULTS, Row, append, tell
from onnxfold import model_io

_WORDS = 1000
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


def measured(path: Path, given: argparse.Namespace) -> Row:
    import onnxruntime

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
        onnxruntime=onnxruntime.__version__,
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
    numbers = {"--rows": 64, "--length": 128, "--batch": 8, "--threads": 2}
    more = {"--plain-rows": int, "--words": int, "--out": RESULTS / "geometry_memory.csv"}
    given = arguments(__doc__, {"model": Path, **numbers, **more})
    with tempfile.TemporaryDirectory() as folder:
        model = given.model
        if given.words is not None:
            model = with_words(model, given.words, Path(folder))
        row = measured(model, given)
    append(given.out, [row])
    tell([row])


if __name__ == "__main__":
    main()
