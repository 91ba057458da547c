"""The lines that the commands print about the bases of streams."""

from collections.abc import Iterator, Mapping
from typing import Any

from onnxfold.report.sentences import counted


def scaled(document: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield what became of each stream that was to fit float16."""
    if document is None:
        return
    streams = document["streams"]
    for row in streams:
        what = f"stream before {_norms(row)}"
        change = f"times 2^-{row['exponent']}" if row["exponent"] else "as it is"
        yield f"{what}: {change}{_range(row)}{_inexact(row)}"
    if document["data"] and streams:
        yield f"ranges are those of {document['data']}"
    for refusal in document["refusals"]:
        yield f"stream before '{refusal['norm']}' is not scaled: {refusal['sentence']}"


def split(document: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield how many gammas were split, and what the others stay for."""
    if document is None:
        return
    yield f"{counted(len(document['norms']), 'gamma')} split, by {document['by']}"
    reasons = {refusal["code"]: refusal["sentence"] for refusal in document["refusals"]}
    for code, sentence in reasons.items():
        count = sum(refusal["code"] == code for refusal in document["refusals"])
        stays = "gamma stays" if count == 1 else "gammas stay"
        yield f"{count} {stays} ({code}): {sentence}"


def rotated(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield what became of each stream that was to be rotated, and of heads."""
    for row in report.get("rotated_streams", {}).get("streams", ()):
        weights = counted(len(row["weights"]), "weight")
        norms = counted(len(row["norms"]), "norm")
        why = ", for want of a Hadamard matrix" if row["substituted"] else ""
        yield (
            f"stream before '{row['name']}': rotated by a {row['matrix']} matrix of "
            f"{row['size']}{why}, seed {row['seed']}: {weights}, {norms}"
        )
    for refusal in report.get("rotated_streams", {}).get("refusals", ()):
        yield f"stream before '{refusal['name']}' is not rotated: {refusal['sentence']}"
    heads = report.get("rotated_heads", {}).get("streams", ())
    if heads:
        yield f"heads of {counted(len(heads), 'attention')} rotated between values and output"


def _norms(row: Mapping[str, Any]) -> str:
    others = len(row["norms"]) - 1
    return f"'{row['norm']}'" + (f" and {counted(others, 'other norm')}" if others else "")


def _range(row: Mapping[str, Any]) -> str:
    if not row["values"]:
        return ""
    most = max(row["values"], key=lambda value: value["before"])
    becomes = f" becomes {most['after']:.3g}" if row["exponent"] else ""
    return (
        f", largest {most['before']:.3g} ('{most['value']}'){becomes}, "
        f"{100 * most['share']:.2g} % of float16's range"
    )


def _inexact(row: Mapping[str, Any]) -> str:
    if not row["subnormal"]:
        return ""
    return f"; {counted(row['subnormal'], 'number')} of weights became subnormal"


def measured(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the error of every candidate of a search, the best first, and what is kept."""
    for row in sorted(document["candidates"], key=lambda row: float(row["error"])):
        yield f"{row['name']:10} {document['to']} error {100 * row['error']:.3g} %"
    gain = document["gain"]
    kept = f"{document['best']} is kept, {gain:.2f} times less error"
    if document["best"] == "as it is":
        kept = "no rotation helps: the model stays as it is"
    yield f"{kept}, on {document['data']}"
