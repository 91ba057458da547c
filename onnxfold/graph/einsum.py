"""The labels of the axes that an Einsum multiplies and sums."""

from collections.abc import Sequence

import onnx_ir as ir

_BROADCAST = "0123456789"  # labels of the axes in an ellipsis, from the right


def einsum_labels(node: ir.Node, ranks: Sequence[int | None]) -> tuple[list[str], str] | None:
    """Return the label of every axis of the factors and of the result of an explicit equation.

    ``ranks`` are the ranks of the factors. An ellipsis represents axes that broadcast, aligned from
    the right; they are labeled by digits. Returns None if a rank is unknown, or the result omits
    broadcast axes of the factors.
    """
    equation = (node.attributes.get_string("equation", "") or "").replace(" ", "")
    if "->" not in equation:
        return None
    left, result = equation.split("->")
    terms = left.split(",")
    if len(terms) != len(ranks) or ("..." in left) != ("..." in result):
        return None
    factors: list[str] = []
    most = 0
    for term, rank in zip(terms, ranks, strict=True):
        hidden = 0 if rank is None else rank - len(term.replace("...", ""))
        if "..." in term and (rank is None or not 0 <= hidden <= len(_BROADCAST)):
            return None
        most = max(most, hidden if "..." in term else 0)
        factors.append(_spelled_out(term, hidden))
    spelled = _spelled_out(result, most)
    return (factors, spelled) if len(set(spelled)) == len(spelled) else None


def _spelled_out(term: str, hidden: int) -> str:
    return term.replace("...", _BROADCAST[:hidden][::-1])
