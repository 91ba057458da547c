"""Reports of measurements as files: written, and read again."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from onnxfold import model_io
from onnxfold.errors import DataError, UsageError

Report = dict[str, Any]


def as_document(reports: Sequence[Report]) -> Report:
    """Return one report unchanged, several as ``{"schema": 1, "models": [...]}``."""
    return reports[0] if len(reports) == 1 else {"schema": 1, "models": list(reports)}


def write_measurements(
    reports: Sequence[Report], paths: Iterable[Path], folder: Path | None
) -> None:
    """Write reports as .json or .html, and their figures into a folder.

    Raises UsageError if matplotlib is required but not installed, ModelError if a file cannot be
    written.
    """
    for path in paths:
        if path.suffix == ".html":
            from onnxfold.geometry.page import page

            model_io.write_text(path, page(reports))
        else:
            model_io.write_json(path, as_document(reports))
    if folder is not None:
        from onnxfold.geometry.plots import write_figures

        write_figures(reports, folder)


def read_measurements(paths: Iterable[Path]) -> list[Report]:
    """Return the reports in JSON files, including the files in folders.

    Raises DataError for a file that is not a measurement.
    """
    return [report for path in paths for report in _read(path)]


def measurement_of(path: Path, sha256: str) -> Report:
    """Return the measurement for a report on optimizing a model: a few means by norm.

    Raises DataError for a file that is not a measurement, UsageError for one of another model (by
    its hash).
    """
    for report in read_measurements([path]):
        if report.get("sha256") == sha256:
            kept = {key: report[key] for key in ("rows", "complete")}
            norms = {norm["name"]: _means(norm) for norm in report["norms"]}
            return {"path": str(path), "data": report["data"]["kind"], **kept, "norms": norms}
    raise UsageError(f"--measured '{path}': a measurement of another model, by its sha256")


def _means(norm: Mapping[str, Any]) -> Report:
    error = norm["error_without_mean"]
    return {
        "angle_uniform": norm["before"]["angle_uniform"]["mean"],
        "uniform_share": norm["before"]["uniform_share"]["mean"],
        "error_without_mean": None if error is None else error["mean"],
    }


def _read(path: Path) -> Iterator[Report]:
    if path.is_dir():
        found = sorted(path.glob("*.json"))
        if not found:
            raise DataError(f"{path}: a folder without measurements (*.json)")
        for file in found:
            yield from _read(file)
        return
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"{path}: no JSON: {error}") from error
    for report in document.get("models", [document]) if isinstance(document, dict) else [None]:
        if not (isinstance(report, dict) and report.get("schema") == 1 and _is_whole(report)):
            raise DataError(f"{path}: no measurement; give what onnxfold measure --report wrote")
        yield report


def _is_whole(report: Report) -> bool:
    norms = report.get("norms")
    return isinstance(norms, list) and all({"before", "after"} <= set(norm) for norm in norms)
