"""What sessions execute of float16 files: counted in any interpreter, and said on the page."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import onnxruntime

from benchmarks.other_versions import count
from benchmarks.rows import RESULTS

ROOT = Path(__file__).parents[2]


def test_kernels_are_counted_in_the_interpreter(tmp_path: Path) -> None:
    version, kernels = count(sys.executable, ROOT / "tests" / "recipes" / "gpt2.onnx", tmp_path)
    assert version == onnxruntime.__version__
    assert kernels["LayerNormalization"] + kernels.get("SkipLayerNormalization", 0) == 5


def test_the_page_has_the_rows_of_gpt2() -> None:
    with (RESULTS / "half_sessions.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == "gpt2"]
    nodes = {(row["onnxruntime"], row["file"]): row["nodes"] for row in rows}

    def of(version: str) -> tuple[str, ...]:
        return tuple(nodes[version, name] for name in ("onnx", "export", "ort"))

    newer, new, old = of("1.22.0"), of("1.32.0"), of("1.17.3")
    said = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
    assert newer[1] == newer[2]
    assert f"takes {newer[0]} nodes in 1.22.0, and {newer[1]} as exported in float16" in said
    assert f"in 1.32.0 {new[0]}, {new[1]} and {new[2]}; in 1.17.3" in said
    assert f"too, {old[0]}, {old[1]} and {old[2]})" in said
