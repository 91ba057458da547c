"""Loads and stores of the memory that a chain of kernels moves, as C that is compiled here."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np

__all__ = ["MOVES", "Moves", "compiled"]

MOVES = "loads and stores"
_BLOCK = 64  # bytes of a line of the cache, a block of moves.c
# The functions of moves.c, by operation of benchmarks.kernels.
_FUNCTIONS = {
    "rms": "moves_norm",
    "layer": "moves_norm",
    "center": "moves_norm",
    "bias": "moves_norm",
    "add_rms": "moves_add",
    "add_layer": "moves_add",
    "post_layer": "moves_post",
    "post_rms": "moves_post",
    "bias_layer": "moves_post",
}


def compiled(folder: Path) -> Path:
    """Compile moves.c into a library in the folder.

    Raises RuntimeError without a C compiler.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        raise RuntimeError("the limit of the memory needs a C compiler, 'cc'")
    library, source = folder / "moves.so", Path(__file__).with_name("moves.c")
    options = ["-O3", "-march=native", "-shared", "-fPIC"]
    subprocess.run([compiler, *options, str(source), "-o", str(library)], check=True)
    return library


class Moves:
    """What the links of a chain move: tensors of so many bytes, in place, by one thread."""

    def __init__(self, library: Path, operation: str, size: int, links: int) -> None:
        self._function = ctypes.CDLL(str(library))[_FUNCTIONS[operation]]
        self._function.argtypes = (
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
        )
        # Aligned as ONNX Runtime aligns tensors.
        self._tensors = [np.ones(size + _BLOCK, np.uint8) for _ in range(2)]
        starts = [-(-tensor.ctypes.data // _BLOCK) * _BLOCK for tensor in self._tensors]
        self._arguments = (*starts, size // _BLOCK, links)

    def run(self) -> None:
        """Move all once."""
        self._function(*self._arguments)
