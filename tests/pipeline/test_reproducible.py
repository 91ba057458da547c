"""The same model and options give the same bytes, in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from onnxfold.target import Target
from tests.builders import pre_norm_model


@pytest.mark.parametrize("target", [target.value for target in Target])
def test_the_order_of_sets_does_not_reach_the_file(tmp_path: Path, target: str) -> None:
    """Python orders sets of text by a seed that each process draws.

    With a set of functions in the writer, two of the seeds gave two files.
    """
    onnx.save(pre_norm_model(), tmp_path / "model.onnx")
    written = set()
    for seed in ("1", "2", "3"):
        output = tmp_path / f"{seed}.onnx"
        words = ("-q", "optimize", "model.onnx", "-o", output.name, "--target", target)
        subprocess.run(
            [sys.executable, "-m", "onnxfold", *words, "--no-check"],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONHASHSEED": seed,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
            check=True,
        )
        written.add(output.read_bytes())
    assert len(written) == 1
