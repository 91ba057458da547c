"""The table: one row per operator of ONNX, and of the domains com.microsoft and onnxfold.

All other questions about operators are derived from these rows (facets.py). An operator without a
row is opaque (its output may have any mean) and shift-sensitive (it needs the original value), and
refusals report the missing row. ``docs/laws.md`` is generated from the table, and every row has a
property test against an independent oracle.
"""

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from onnxfold.operators.contrib import CONTRIB
from onnxfold.operators.functions import DOMAIN, SIGNATURES, Output
from onnxfold.operators.opaque import OPAQUE
from onnxfold.operators.row import Family, Opaque, Operator, Shapes
from onnxfold.operators.standard import STANDARD
from onnxfold.refusal import RefusalCode


def _own() -> Iterator[Operator]:
    """Yield the rows of our own domain, including norms, which recognition handles."""
    for name, signature in SIGNATURES.items():
        if name == "Center":
            law = (
                "mean(x - mean x) = 0; (x + s) - mean(x + s) = x - mean x; P of fewer axes commutes"
            )
            yield Operator(name, DOMAIN, Family.CENTRING, law, shape=Shapes.SAME)
        elif signature.residual and signature.output is Output.NORM:
            yield Operator(name, DOMAIN, shape=Shapes.BROADCAST_TWO)
        else:
            full = name.startswith("CRMSNormFull")  # it adds an element
            same = not full and signature.output is Output.NORM
            own = Shapes.SAME if same else None
            yield Operator(name, DOMAIN, shape=own)


def _by_key(rows: Iterable[Operator]) -> dict[tuple[str, str], Operator]:
    table: dict[tuple[str, str], Operator] = {}
    for row in rows:
        if row.key in table:
            raise ValueError(f"two rows for {row.domain}.{row.op_type}")
        table[row.key] = row
    return table


ROWS = _by_key((*STANDARD, *OPAQUE, *CONTRIB, *_own()))
_NO_ROW = Opaque(RefusalCode.UNKNOWN_OP, "has no row in the table of operators")


def row_of(node: ir.Node) -> Operator:
    """Return the row of a node's operator, or one that claims nothing."""
    return find(node.domain, node.op_type)


def find(domain: str, op_type: str) -> Operator:
    """Return the row of an operator, or one that claims nothing."""
    key = "" if domain == "ai.onnx" else domain, op_type
    row = ROWS.get(key)
    return Operator(op_type, domain, opaque=_NO_ROW, known=False) if row is None else row


def op_types(kernel: str) -> tuple[str, ...]:
    """Return the standard operators whose float64 kernels are in one module."""
    return tuple(row.op_type for row in ROWS.values() if row.kernel == kernel and not row.domain)
