"""Files of candidates under the user's names."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onnxfold import model_io
from onnxfold.errors import ModelError
from onnxfold.tuning.candidate import Candidate
from onnxfold.tuning.options import TuneOptions

METADATA_KEY = "onnxfold.tune"
_UNFIT = re.compile(r"[^A-Za-z0-9]+")
# The part of the report that a file keeps.
_NOTED = ("onnxfold", "onnxruntime", "device", "threads", "winner", "commands")


def publish(
    winner: Candidate, source: Path, output: Path, options: TuneOptions, report: Mapping[str, Any]
) -> Path:
    """Write the winner with a note of the commands that produce it, or the input byte for byte.

    Raises ModelError if it cannot be written, and if the input was changed
    meanwhile.
    """
    if winner.path is None:
        raise ModelError(f"{winner.name}: its file is gone")
    model = model_io.load(winner.path)
    if winner.path == source and model.meta.get(model_io.HAS_EXTERNAL_DATA) is False:
        with model_io.stage_copy(source, output, force=options.force) as staged:
            return staged.commit().model
    if winner.chain:
        note = {name: report[name] for name in _NOTED}
        model.metadata_props[METADATA_KEY] = json.dumps(note)
    with model_io.stage(model, output, source=source, force=options.force) as staged:
        model_io.check_unchanged(model)
        written = staged.commit().model
    model_io.mark_copy(written)  # the model as it is has no note of ours
    return written


def keep(candidates: Sequence[Candidate], folder: Path) -> None:
    """Write the file of every candidate into a folder, numbered as in the table."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(f"{folder}: {error.strerror}; name another --keep-candidates") from error
    for number, candidate in enumerate(candidates):
        if candidate.chain and candidate.path is not None:
            name = _UNFIT.sub("-", candidate.name).strip("-")
            model = model_io.load(candidate.path)
            with model_io.stage(model, folder / f"{number:02}-{name}.onnx") as staged:
                staged.commit()


def model_bytes(path: Path) -> int:
    """Return the bytes of a model's files."""
    files = (path, *model_io.data_files(path).values())
    return sum(file.stat().st_size for file in files)
