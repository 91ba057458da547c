"""Cost of the sums of `onnxfold measure`: the instrumented session against the plain one.

    python -m benchmarks.geometry MODEL.onnx [--batch 8] [--length 128] [--rounds 15]

Both sessions run on the same inputs of [batch, length] and take turns; the ratio is the median over
the rounds. `sums` is the time from the outputs of a session to merged statistics. The bar is 1.15
for BERT-base at batch 8 and length 128.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from benchmarks.harness import CPU, arguments
from benchmarks.rows import RESULTS, Row, append, tell
from onnxfold import model_io
from onnxfold.geometry.accumulate import kept_tables, of_tables
from onnxfold.geometry.instrument import instrument
from onnxfold.inputs import InputSpec, make_inputs
from onnxfold.inputs.data import Batch
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.runtime.interleaved_timing import RunCounts, Variant, take_turns

BAR = 1.15


def measured(path: Path, batch: int, length: int, threads: int, rounds: int) -> Row:
    import onnxruntime

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
        onnxruntime=onnxruntime.__version__,
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


def main() -> None:
    numbers = {"--batch": 8, "--length": 128, "--threads": 2, "--rounds": 15}
    given = arguments(__doc__, {"model": Path, **numbers, "--out": RESULTS / "geometry.csv"})
    row = measured(given.model, given.batch, given.length, given.threads, given.rounds)
    append(given.out, [row])
    tell([row])


if __name__ == "__main__":
    main()
