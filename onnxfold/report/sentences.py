"""The sentences that the commands print about norms, made from the documents for machines."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

NOTHING = "no norms: nothing to fold"
SPELLED = "the six of an RMSNorm become one in a session"
BECOMES = {
    "rms": "RMSNorm",
    "fused_layer_norm": "fused LayerNorm",
    "layer_norm": "LayerNorm",
    "crms": "CRMSNorm",
    "deferred": "deferred",
    "keep": "as written",
}
_NO_MEAN = frozenset({"already_rms", "not_centred_norm"})
_KINDS_WITHOUT_MEAN = {
    "rms_norm": "RMSNorm",
    "crms": "CRMSNorm",
    "l2_norm": "L2 norm",
    "dyt": "DyT",
}


def totals(summary: Mapping[str, Any]) -> str:
    """Return the one line that sums up what happened to the norms."""
    layer_norms = counted(summary["layer_norms"], "LayerNorm")
    verb = "folds" if summary["layer_norms"] == 1 else "fold"
    left = summary.get("left_foldable", 0)
    others = summary.get("folds_of_others", 0)
    line = f"{summary['folded'] - others} of {layer_norms} {verb} to RMSNorm"
    if not summary["layer_norms"] and not others:
        line = "there is no LayerNorm to fold"
    if others:
        line += f", and {counted(others, 'other norm')}"
    if left:
        more = "more " if summary["folded"] else ""
        stays = "stays as it is" if left == 1 else "stay as they are"
        line += f", {left} {more}could but {stays}"
    if summary.get("restored") is not None:
        rms_norms = counted(summary["rms_norms"], "RMSNorm")
        line = f"{summary['restored']} of {rms_norms} restored to LayerNorm"
    line += _of_channels(summary)
    inserted = summary["inserted_centerings"]
    if inserted:
        line += f", with {inserted} inserted centering{'s' if inserted > 1 else ''}"
    if summary["split_bytes"]:
        line += f", {summary['split_bytes']:,} bytes of weights stored twice"
    gammas, betas = summary.get("gamma_fused", 0), summary.get("beta_fused", 0)
    if gammas or betas:
        line += f"; {counted(gammas, 'gamma')} and {counted(betas, 'beta')} move into the next "
        line += "linear layers"
    scales = summary.get("scales_fused", 0)
    if scales:
        word = "scale or bias moves" if scales == 1 else "scales and biases move"
        line += f"; {scales} {word} into the linear layers before"
    if summary.get("deferred"):
        line += f"; {counted(summary['deferred'], 'norm')} deferred, "
        saved = summary["multiplications_saved"]
        word = "fewer" if saved >= 0 else "more"
        line += f"with {abs(saved):,} {word} multiplications per row"
    if summary.get("deferred_layer_norms"):
        line += f" ({counted(summary['deferred_layer_norms'], 'LayerNorm')} with their mean)"
    if summary.get("reinstated"):
        line += f"; {counted(summary['reinstated'], 'deferred norm')} computed in place again"
    return line


def _of_channels(summary: Mapping[str, Any]) -> str:
    """Count the norms that read or write another number of channels."""
    said = ""
    if summary.get("compressed") is not None:
        said += f", {summary['compressed']} of {counted(summary['norms'], 'norm')} to CRMSNorm"
    if summary.get("without_last") is not None:
        said += f", {summary['without_last']} of them with d - 1 output channels"
    if summary.get("decompressed"):
        said += f", {counted(summary['decompressed'], 'CRMSNorm')} back to all channels"
    return said


def roundings(summary: Mapping[str, Any]) -> str | None:
    """Return the line on norms whose results move towards the exact ones, or None."""
    number = summary.get("moved_by_rounding", 0)
    if not number:
        return None
    return (
        f"{counted(number, 'norm')} computed by E[x^2] - E[x]^2, by x g - mean(x) g or with "
        "roundings in between: results move by rounding, towards the exact ones"
    )


def alignment(norms: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the line on the alignment of rows of d - 1 numbers, or None."""
    sizes = sorted({norm["size"] for norm in norms if norm["action"] == "crms"})
    if not sizes:
        return None
    told = "; ".join(
        f"{d:,} channels stored as {d - 1:,}, multiples of {_alignment_of(d):,} before and of "
        f"{_alignment_of(d - 1):,} now"
        for d in sizes
    )
    return f"{told}: measure what that costs (onnxfold bench), or give --multiple-of"


def _alignment_of(size: int) -> int:
    """Return the largest power of two that divides a size."""
    return size & -size


def claimed(document: Mapping[str, Any]) -> str | None:
    """Return the line on shapes that are only declared by the model, or None."""
    claims = document.get("claimed_shapes")
    if not document["norms"] or not claims or not claims["count"]:
        return None
    worst = claims["worst"]
    inferred = "no shape" if worst["inferred"] is None else _sizes(worst["inferred"])
    return (
        f"{counted(claims['count'], 'shape')} that the model declares cannot be confirmed and "
        f"{'is' if claims['count'] == 1 else 'are'} believed, such as that of '{worst['value']}': "
        f"declared {_sizes(worst['claimed'])}, inferred {inferred}"
    )


def untrue(document: Mapping[str, Any]) -> list[str]:
    """Return a line on each value whose declared shape is left out because it is false."""
    claims = document.get("claimed_shapes", {}).get("untrue", ())
    return [
        f"value '{each['value']}' is declared {_sizes(each['claimed'])}, which is untrue and left "
        f"out: its operators make it {_sizes(each['inferred'])}"
        for each in claims
    ]


def _sizes(shape: Sequence[int | str | None]) -> str:
    shown = ("?" if size is None or "@" in str(size) else str(size) for size in shape)
    return f"[{', '.join(shown)}]"  # a name with @ is of the inference's own making


def counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def blamed(one: Mapping[str, Any]) -> str:
    """Describe a node at fault in one line."""
    alone, result, read = (
        "not finite" if one[key] is None else f"{one[key]:.2g}"
        for key in ("alone", "error_out", "error_in")
    )
    named = f"node '{one['node']}' ({one['operator']})"
    if one["among"] > 1:
        named += f", the last of {one['among']} that the file computes together"
    file = "" if one["changed_node"] == one["node"] else f", in the file '{one['changed_node']}'"
    return (
        f"{named}{file}: its result '{one['value']}' has relative error {result}, its inputs "
        f"{read}; alone it causes {alone} in the outputs"
    )


def folds(row: Mapping[str, Any]) -> bool:
    """Whether a norm becomes RMSNorm, including norms that are then deferred or compressed."""
    return row["foldable"] and row["action"] not in ("keep", "fused_layer_norm")


def work(document: Mapping[str, Any]) -> str | None:
    """Return the line on the work that norms save; None if it is unknown or unchanged."""
    before, after = document["before"], document["after"]
    if before["unknown_norms"] or after["unknown_norms"]:
        return None
    said = [
        f"{1 - after[key] / before[key]:.0%} fewer {what}"
        for key, what in (
            ("norm_multiplications", "multiplications"),
            ("norm_additions", "additions"),
        )
        if before[key] > after[key]
    ]
    return f"the norms do {' and '.join(said)}" if said else None


def sessions(document: Mapping[str, Any]) -> str | None:
    """Return the line on what sessions execute, or None."""
    before, after = (document[side].get("session_operators") for side in ("before", "after"))
    if before is None or after is None:
        return None
    counts = [sum(each.values()) for each in (before, after)]
    before_it = "as before" if counts[0] == counts[1] else f"{counts[0]:,} before"
    return f"a session of ONNX Runtime executes {counts[1]:,} nodes, {before_it}"


def file_nodes(document: Mapping[str, Any]) -> str:
    """Return the line on the nodes of the file, which a session fuses again."""
    before, after = document["before"], document["after"]
    line = f"file: {after['nodes']:,} nodes, {before['nodes']:,} before"
    spelled = after["operators"].get("Pow", 0) > before["operators"].get("Pow", 0)
    session = after.get("session_operators")
    if spelled and (session is None or "SimplifiedLayerNormalization" in " ".join(session)):
        line += f"; {SPELLED}"
    return line


def because(row: Mapping[str, Any]) -> str:
    if row["deferral"]:
        return _scale_went(row["deferral"])
    if row["foldable"] and not row["reason"]:
        writers: Sequence[str] = row["writers"]
        shown = ", ".join(writers[:2])
        return f"{shown} and {len(writers) - 2} more" if len(writers) > 2 else shown
    reason = row["reason"] or row.get("readers_reason")
    return reason["code"] if reason else ""


_PLACES = {
    "applied": "multiplied at",
    "tables": "in the tables of",
    "cancelled": "canceled by",
    "centred": "mean subtracted by",
    "gammas": "tables absorb the gammas of",
}


def _scale_went(deferral: Mapping[str, Any]) -> str:
    """Describe where the scale of a deferred norm went, and the savings."""
    places = [
        f"{said} {', '.join(deferral[key])}" for key, said in _PLACES.items() if deferral[key]
    ]
    saved = deferral["multiplications_saved"]
    word = "fewer" if saved >= 0 else "more"
    costs = [] if deferral["bound"] is None else [deferral["bound"]["sentence"]]
    return "; ".join([*places, f"{abs(saved):,} {word} multiplications per row", *costs])


def tallied(norms: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each refusal code: the number of norms, and the sentence of the first."""
    reasons = ((row["reason"] or row.get("readers_reason"), row) for row in norms)
    return _by_code(
        "norm",
        [
            (why["code"], _of_norm(why, row))
            for why, row in reasons
            if why and not without_mean(row)
        ],
    )


def _by_code(thing: str, stay: Sequence[tuple[str, str]]) -> list[str]:
    """Return a line for each code of things that stay: their number, and the first sentence."""
    counts, first = Counter(code for code, _ in stay), dict(reversed(stay))
    return [_of_code(_stay(n, thing), code, first[code]) for code, n in counts.most_common()]


def _of_code(head: str, code: str, sentence: str) -> str:
    """Return a line on what stays; the code is the key of `onnxfold explain`."""
    return f"{head} ({code}): {sentence}"


def _stay(number: int, thing: str) -> str:
    return f"{counted(number, thing)} stay{'s' if number == 1 else ''}"


def reasons(document: Mapping[str, Any]) -> list[str]:
    """Return the lines on what stays and why: norms, gammas, betas and scales in turns."""
    norms = document["norms"]
    kinds = (tallied(norms), staying(norms), scales_staying(document.get("scales_kept", ())))
    ranked = zip_longest(*kinds)
    first = meanless(norms)
    lines = [line for rank in ranked for line in rank if line is not None]
    return lines if first is None else [first, *lines]


def without_sentence(line: str) -> str:
    """Return the start of a line on what stays: the count, and the code of the reason."""
    return line.partition(": ")[0]


def remarks(document: Mapping[str, Any]) -> list[str]:
    """Return further remarks on the norms and on the model."""
    said = (
        *centrings(document.get("centrings", ())),
        by_paper(document["summary"]),
        roundings(document["summary"]),
        alignment(document["norms"]),
        claimed(document),
        *untrue(document),
        twice(document.get("stored_twice", ())),
    )
    return [line for line in said if line is not None]


def centrings(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines on means that are subtracted by themselves: how many go, and why not all."""
    if not rows:
        return []
    gone = sum(row["folded"] for row in rows)
    verb = "moves" if len(rows) == 1 else "move"
    of = counted(len(rows), "mean")
    total = f"{gone} of {of} subtracted outside of norms {verb} into the weights"
    left = [row["reason"] for row in rows if row["reason"]]
    return [total, *_by_code("mean", [(why["code"], why["sentence"]) for why in left])]


def by_paper(summary: Mapping[str, Any]) -> str | None:
    """Return the line on the counts by a paper's rules, or None if not requested."""
    total = summary["layer_norms"]
    if summary.get("algorithm1") is None or not total:
        return None
    counts = [
        (summary["algorithm1"], "Algorithm 1"),
        (summary["algorithm1_embed_centred"], "with centered embeddings"),
        (summary["d2"], "with readers asked (D.2)"),
        (summary["foldable"], "exactly"),
    ]
    said = ", ".join(f"{count} ({count / total:.2%}) {how}" for count, how in counts)
    return f"of {counted(total, 'LayerNorm')}: {said}"


def _of_norm(reason: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """Return a reason, with the name of the norm unless it contains it."""
    sentence, name = reason["sentence"], f"'{row['name']}'"
    return str(sentence) if name in sentence else f"{sentence} (norm {name})"


def without_mean(row: Mapping[str, Any]) -> bool:
    """Whether a norm is of a kind without mean subtraction, which never folds."""
    kept = row["reason"] is not None and row["reason"]["code"] in _NO_MEAN
    return kept and row["kind"] in _KINDS_WITHOUT_MEAN and row["deferral"] is None


def meanless(norms: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the one line on norms that never fold, or None."""
    kinds = Counter(_KINDS_WITHOUT_MEAN[row["kind"]] for row in norms if without_mean(row))
    if not kinds:
        return None
    said = " and ".join(counted(number, kind) for kind, number in kinds.most_common())
    return f"{said} {'has' if kinds.total() == 1 else 'have'} no mean to subtract"


def staying(norms: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each reason why gammas and betas stay: the count, and a sentence."""
    counts: dict[str, Counter[str]] = {}
    first: dict[str, str] = {}
    for row in norms:
        stay = [part for part in row["affine"] if not row[f"{part}_fused"]]
        reason = row["affine_reason"]
        if reason and stay:
            counts.setdefault(reason["code"], Counter()).update(stay)
            first.setdefault(reason["code"], _of_norm(reason, row))
    return [
        _of_code(_parts(found), code, first[code])
        for code, found in sorted(counts.items(), key=lambda item: -item[1].total())
    ]


def scales_staying(kept: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each reason why scales stay that a linear layer could absorb."""
    reasons = (row["reason"] for row in kept)
    return _by_code("scale", [(why["code"], why["sentence"]) for why in reasons])


def twice(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the line on weights that are stored several times, and the remedy, or None."""
    if not rows:
        return None
    first, second = rows[0]["weights"][:2]
    others = sum(len(row["weights"]) for row in rows) - 2
    share = sum(row["share"] for row in rows)
    named = f"'{first}', '{second}'" if others else f"'{first}' and '{second}'"
    return (
        f"{named}{f' and {others} more' if others else ''} are equal and stored twice, {share:.0%} "
        "of all weights: DeduplicateHashedInitializersPass of onnx_ir stores them once"
    )


def _parts(found: Mapping[str, int]) -> str:
    parts = [(part, found[part]) for part in ("gamma", "beta") if part in found]
    said = " and ".join(counted(number, part) for part, number in parts)
    return f"{said} stay{'s' if sum(found.values()) == 1 else ''}"


def proved(proof: Mapping[str, Any]) -> str:
    """Return the line on what was proved from the weights."""
    norms, weights = proof["folded_norms"], changed_weights(proof)
    if not norms and weights.startswith("0 "):
        return "proved from the weights: the same function"
    return (
        f"proved: {counted(norms, 'norm')} on zero-mean inputs, {weights} seen by no other reader"
    )


def changed_weights(proof: Mapping[str, Any]) -> str:
    shifted = proof.get("shifted_weights", 0)
    if shifted:
        return counted(shifted, "shifted weight")
    return counted(proof["centred_weights"], "centered weight")
