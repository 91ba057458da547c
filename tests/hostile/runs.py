"""The command in another process, on so many threads and with such a seed of hashes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["ROOT", "written"]

ROOT = Path(__file__).parents[2]


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
