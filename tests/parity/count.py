"""Count what folds in the models of this folder, and write counts.csv.

python -m tests.parity.count
"""

from __future__ import annotations

import csv
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import onnxfold

__all__ = ["FOLDER", "Row", "counted", "main", "read"]

FOLDER = Path(__file__).parent
_TABLE = FOLDER / "counts.csv"


@dataclass(frozen=True, slots=True)
class Row:
    """One model: how it was made, and the counts of ``onnxfold inspect``."""

    architecture: str
    export: str
    tool: str
    layer_norms: int
    folds: int
    centrings: int
    gammas: int
    betas: int

    @property
    def stem(self) -> str:
        """The name of the file without its suffix."""
        return "-".join(filter(None, (self.architecture, self.export, self.tool)))


def counted(path: Path) -> Row:
    """Return the row of one file."""
    architecture, export, *tool = path.stem.split("-")
    summary = onnxfold.inspect(str(path))["summary"]
    return Row(
        architecture,
        export,
        "".join(tool),
        summary["layer_norms"],
        summary["foldable"],
        summary["inserted_centerings"],
        summary["gamma_fused"],
        summary["beta_fused"],
    )


def read() -> list[Row]:
    """Return the rows of counts.csv."""
    with _TABLE.open(encoding="utf-8", newline="") as file:
        return [
            Row(
                row["architecture"],
                row["export"],
                row["tool"],
                *(int(row[name]) for name in _NUMBERS),
            )
            for row in csv.DictReader(file)
        ]


_NUMBERS = [field.name for field in fields(Row)][3:]


def main() -> int:
    """Write counts.csv and return the exit code."""
    rows = [counted(path) for path in sorted(FOLDER.glob("*.onnx"))]
    with _TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    sys.stdout.write(f"{len(rows)} rows in {_TABLE.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
