"""The recommended order of tools runs as docs/pipeline.md prints it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests.optimized import TORCH_IS_MISSING
from tests.project.test_readme import blocks

pytestmark = pytest.mark.torch
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
DIGITS = ROOT / "models" / "digits_vit"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all commands have run."""
    pytest.importorskip("torch", reason=TORCH_IS_MISSING)
    made = tmp_path_factory.mktemp("pipeline")
    (made / "models").symlink_to(ROOT / "models")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for line in "".join(blocks("sh", PAGE)).splitlines():
        words = shlex.split(line)
        done = subprocess.run(
            words, cwd=made, env={**os.environ, "PATH": path}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stderr}"
    return made


def _operators(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


@pytest.mark.campaign
def test_the_recommended_order_keeps_fusions_and_folds_every_norm(folder: Path) -> None:
    fused, folded, int8 = (
        _operators(folder / f"{name}.onnx") for name in ("fused", "folded", "int8")
    )
    assert (fused["SkipLayerNormalization"], fused["LayerNormalization"]) == (8, 1)
    assert folded["SimplifiedLayerNormalization"] == 9
    assert folded["BiasGelu"] == fused["BiasGelu"] == 4
    # But the scores of attention, and their products with V.
    products = folded["MatMul"] + folded["Gemm"] - 2 * 4
    assert int8["MatMulInteger"] == products


@pytest.mark.campaign
def test_the_quantised_file_classifies_as_the_export_does(folder: Path) -> None:
    heldout = np.load(DIGITS / "heldout.npz")
    images = heldout["images"].astype(np.float32)
    expected, found = (
        ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        .run(None, {"images": images})[0]
        .argmax(axis=1)
        for path in (DIGITS / "digits_vit.onnx", folder / "int8.onnx")
    )
    assert np.mean(expected == found) > 0.97  # int8 may turn a doubtful digit
