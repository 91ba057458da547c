"""Tables of pipeline.md: what a session runs after chains of tools, by exporter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pages.tables import Row, table

__all__ = ["best", "every"]

_EXPORTERS = {"torchscript": "TorchScript", "dynamo": "dynamo"}
_PRECISIONS = ("float32", "float16", "int8", "int4")
# What an error may be, relative to the largest output, to count as right, by precision.
_RIGHT = {"float32": 1e-5, "float16": 1e-2, "int8": 0.1, "int4": 0.3}
_ATTENTIONS = ("Attention", "MultiHeadAttention")


def best(rows: Sequence[Row]) -> str:
    """For each export and precision, the chain of fewest session nodes: the shortest of equals."""
    lines = []
    for (exporter, subject), found in _by_export(rows).items():
        cells = []
        for precision in _PRECISIONS:
            right = [row for row in found if _precision(row) == precision and _is_right(row)]
            first = min(right, key=lambda row: (int(row["nodes"]), _steps(row)), default=None)
            cells.append("-" if first is None else f"{first['chain']}: {first['nodes']}")
        export = next((row["nodes"] for row in found if row["chain"] == "export"), "-")
        lines.append((_EXPORTERS[exporter], subject, export, *cells))
    return table(("exported by", "model", "export", *_PRECISIONS), lines)


def every(rows: Sequence[Row]) -> str:
    """Return a table for each exporter: chains down, models across."""
    parts = []
    for exporter, name in _EXPORTERS.items():
        exports = {s: found for (e, s), found in _by_export(rows).items() if e == exporter}
        chains = dict.fromkeys(row["chain"] for found in exports.values() for row in found)
        by_chain = {s: {row["chain"]: row for row in found} for s, found in exports.items()}
        lines = [(chain, *(_cell(by_chain[s].get(chain)) for s in exports)) for chain in chains]
        parts.append(f"**{name}**\n\n{table(('chain', *exports), lines)}")
    return "\n".join(parts)


def _by_export(rows: Sequence[Row]) -> Mapping[tuple[str, str], list[Row]]:
    found: dict[tuple[str, str], list[Row]] = {}
    for exporter in _EXPORTERS:
        for row in rows:
            if row["exporter"] == exporter:
                subject = row["model"] + (", sdpa" if row["attention"] == "sdpa" else "")
                found.setdefault((exporter, subject), []).append(row)
    return found


def _precision(row: Row) -> str:
    last = row["chain"].rpartition("→ ")[2].partition(" ")[0]
    return last if last in _PRECISIONS else "float32"


def _is_right(row: Row) -> bool:
    """Whether a file computes the same, within its precision, in fewer bits where asked."""
    precision = _precision(row)
    quantised = int(row["quantised"]) > 0 or not precision.startswith("int")
    return not row["failed"] and float(row["error"]) <= _RIGHT[precision] and quantised


def _steps(row: Row) -> int:
    return row["chain"].count("→") + (row["chain"] != "export")


def _cell(row: Row | None) -> str:
    """Nodes, Attention operators as A, quantized ones as q; or the step that failed."""
    if row is None:
        return ""
    if row["failed"]:
        step = row["failed"].partition(":")[0]
        known = step in row["chain"] and step != "onnxfold"
        return f"{step} fails" if known else "does not load"
    counts = dict(part.split(":") for part in row["operators"].split())
    attentions = sum(int(counts.get(name, 0)) for name in _ATTENTIONS)
    notes = [f"{attentions} A"] if attentions else []
    if _precision(row).startswith("int"):
        notes.append(f"{row['quantised']} q")
    if not _is_right(row):
        notes.append("nothing quantized" if row["quantised"] == "0" and float(row["error"]) < 1e-5
                     else f"error {float(row['error']):.2g}")  # fmt: skip
    return ", ".join([row["nodes"], *notes])
