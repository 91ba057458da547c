"""``python -m onnxfold`` is the command ``onnxfold``."""

from __future__ import annotations

from onnxfold.cli import run

if __name__ == "__main__":
    run()
