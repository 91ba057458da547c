"""The table: one row per operator of ONNX, and of the domains com.microsoft and onnxfold.

The package fills it with the rows of its modules, which nothing else reads. All other questions
about operators are derived from these rows (facets.py). An operator without a
row is opaque (its output may have any mean) and shift-sensitive (it needs the original value), and
refusals report the missing row. ``docs/laws.md`` is generated from the table, and every row has a
property test against an independent oracle.
"""

from collections.abc import Iterable

import onnx_ir as ir

from onnxfold.operators.row import Opaque, Operator
from onnxfold.refusal import RefusalCode

ROWS: dict[tuple[str, str], Operator] = {}
_NO_ROW = Opaque(RefusalCode.UNKNOWN_OP, "has no row in the table of operators")


def add(rows: Iterable[Operator]) -> None:
    """Add rows; raises ValueError for an operator that has one."""
    for row in rows:
        if ROWS.setdefault(row.key, row) is not row:
            raise ValueError(f"two rows for {row.domain}.{row.op_type}")


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
