"""The state saved for --resume: the totals of the finished shards, and their identity."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxfold.errors import DataError, UsageError
from onnxfold.geometry.accumulate import Totals
from onnxfold.geometry.work import BadShard
from onnxfold.model_io.staging import StagingFolder


@dataclass(frozen=True, slots=True)
class Progress:
    """The number of finished shards, their totals, and the bad ones among them."""

    done: int
    totals: Totals
    bad: tuple[str, ...] = ()

    def after(self, result: Totals | BadShard) -> "Progress":
        """Return the progress with one more shard."""
        if isinstance(result, BadShard):
            return Progress(self.done + 1, self.totals, (*self.bad, result.reason))
        return Progress(self.done + 1, self.totals.merged(result), self.bad)


def fingerprint(parts: Sequence[Any], files: Iterable[str | Path]) -> str:
    """Return a digest of everything that determines a result.

    Of files it has their sizes and the times at which they were last written.
    """
    written = []
    for file in sorted(each for named in set(map(Path, files)) for each in _files(named)):
        status = file.stat()
        written.append((str(file), status.st_size, status.st_mtime_ns))
    return hashlib.sha256(json.dumps([parts, written], default=str).encode()).hexdigest()


def _files(named: Path) -> Iterable[Path]:
    """Return the file, the files of a folder, or nothing if the name is neither."""
    if named.is_dir():
        return (file for file in named.rglob("*") if file.is_file())
    return (named,) if named.is_file() else ()


def save(path: Path, mark: str, progress: Progress) -> None:
    """Write the progress atomically; raises DataError if it cannot be written."""
    state = {
        "schema": 1,
        "fingerprint": mark,
        "done": progress.done,
        "bad": progress.bad,
        "totals": progress.totals.to_state(),
    }
    try:
        with closing(StagingFolder(path.absolute().parent)) as folder:
            staged = folder.path / path.name
            staged.write_text(json.dumps(state), encoding="utf-8")
            staged.replace(path)
    except OSError as error:
        raise DataError(f"--resume '{path}' cannot be written: {error.strerror}") from error


def load(path: Path, mark: str) -> Progress | None:
    """Return the content of a state file, or None if there is none yet.

    Raises UsageError if the file belongs to another model, data or options, DataError if it is not
    a state file or cannot be read.
    """
    if not path.exists():
        return None
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        earlier = state["fingerprint"], state["done"], state["totals"], state["bad"]
        if earlier[0] == mark:
            return Progress(earlier[1], Totals.from_state(earlier[2]), tuple(earlier[3]))
    except OSError as error:
        raise DataError(f"--resume '{path}': {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"--resume '{path}': no state of a measurement; name another") from error
    raise UsageError(
        f"--resume '{path}' is of another model, data or options, or a file was written since; "
        "remove it to begin anew"
    )
