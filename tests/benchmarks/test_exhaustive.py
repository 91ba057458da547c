"""The winner of a search beside the best of all its candidates."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import onnxruntime as ort
import pytest

from benchmarks import tune
from onnxfold.tuning.facts import ModelFacts
from onnxfold.tuning.tune_result import Candidate, Status, TuneResult


@pytest.mark.campaign
@pytest.mark.parametrize("memory", [1 << 30, 1])  # of all at once, and of one beside the winner
def test_all_right_candidates_are_timed_and_the_winner_is_compared_with_the_best(
    memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "available_bytes", lambda: memory)
    chain = "h0 = MatMul (x, w)" + "".join(f" h{n} = MatMul (h{n - 1}, w)" for n in range(1, 8))
    head = '<ir_version: 9, opset_import: ["" : 17]> g (float[64,256] x, float[256,256] w) => '
    heavy = f"{head} (float[64,256] t) {{ {chain} t = MatMul (h7, w) }}"
    light = f"{head} (float[64,256] t) {{ t = MatMul (x, w) }}"
    source, kept = tmp_path / "model.onnx", tmp_path / "kept"
    kept.mkdir()
    onnx.save(onnx.parser.parse_model(light), source)
    for number, text in ((1, light), (2, heavy)):
        onnx.save(onnx.parser.parse_model(text), kept / f"0{number}-chain.onnx")
    first = Candidate((), Status.RIGHT)
    light_one = Candidate(("slim",), Status.RIGHT)
    heavy_one = Candidate(("fold-ort",), Status.RIGHT)
    skipped = Candidate(("fusions",), Status.SKIPPED)
    result = TuneResult([first, light_one, heavy_one, skipped], heavy_one, ModelFacts("bert"))
    about = {
        "onnxruntime": ort.__version__, "model": "m", "dtype": "fp32",
        "batch": 64, "sequence": 0,
    }  # fmt: skip
    row = tune.against_best(result, source, kept, [], 2.0, about)
    assert (row.candidates, row.skipped, row.winner) == (3, 1, "fold-ort")
    assert row.best in ("slim", "the model as it is")
    assert row.of_best < 0.5  # nine products for one
