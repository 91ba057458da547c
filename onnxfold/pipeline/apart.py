"""`onnxfold optimize` as a separate command, so that a crash of native code ends only it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onnxfold.errors import (
    CommandInterruptedError,
    ModelError,
    OnnxfoldError,
    UsageError,
    VerificationError,
)

_BY_EXIT_CODE = {error.exit_code: error for error in (VerificationError, UsageError, ModelError)}
_PREFIX = "onnxfold: "


def optimized_apart(
    model: Path, output: Path | None, words: Sequence[str] = ()
) -> tuple[dict[str, Any], list[str]]:
    """Optimize a file with these options of the command line; return its report and its warnings.

    A project file is not read. Raises as :func:`onnxfold.optimize` does, and OnnxfoldError if the
    process dies.
    """
    where = () if output is None else ("-o", str(output))
    with tempfile.TemporaryDirectory(prefix="onnxfold-") as folder:
        report = Path(folder, "report.json")
        told = ("--report", str(report), *where, *words, "--", str(model))
        done = subprocess.run(  # noqa: S603  # our own command
            [sys.executable, "-m", "onnxfold", "--no-config", "-q", "optimize", *told],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        said = [line.removeprefix(_PREFIX) for line in done.stderr.strip().splitlines()]
        if done.returncode == CommandInterruptedError.exit_code:
            raise CommandInterruptedError
        if done.returncode:
            raise _BY_EXIT_CODE.get(done.returncode, OnnxfoldError)(
                said[-1] if said else f"it ended with exit code {done.returncode} and no word"
            )
        return json.loads(report.read_text(encoding="utf-8")), said
