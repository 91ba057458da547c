"""The same input gives the same bytes: in other processes, with other threads and other hashes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODELS = ("models/digits_vit/digits_vit.onnx", "tests/recipes/swin-t.onnx")


def written(model: Path, folder: Path, threads: int, seed: str, *options: str) -> dict[str, bytes]:
    folder.mkdir()
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    environment = {**os.environ, **dict.fromkeys(names, str(threads)), "PYTHONHASHSEED": seed}
    command = [sys.executable, "-m", "onnxfold", "optimize", str(model), "-o", "out.onnx", *options]
    if hasattr(os, "sched_setaffinity"):
        cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads]))
        pin = (
            f"import os,sys; os.sched_setaffinity(0, [{cpus}]); os.execv(sys.argv[1], sys.argv[1:])"
        )
        command = [sys.executable, "-c", pin, *command]
    subprocess.run(
        command,
        cwd=folder,
        env=environment | {"PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
    )
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("options", [(), ("--save-as-external-data",)], ids=["one", "two files"])
def test_the_same_bytes_come_out_whatever_the_threads_and_hashes(
    tmp_path: Path, model: str, options: tuple[str, ...]
) -> None:
    runs = [
        written(
            ROOT / model, tmp_path / f"{threads}-{seed}", threads, seed, *options, "--check", "1"
        )
        for threads, seed in ((1, "0"), (2, "1"), (2, "12345"))
    ]
    assert runs[0] == runs[1] == runs[2]
    assert len(runs[0]) == 1 + len(options)
