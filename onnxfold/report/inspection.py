"""Results of ``inspect`` and ``diff``: documents that print as tables, node by node on request."""

import io
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from html import escape
from typing import Any, TypeVar

import onnx_ir as ir

from onnxfold.errors import printable
from onnxfold.graph import operator
from onnxfold.graph.equality import pairs, same_attributes, same_tensor
from onnxfold.graph.traversal import all_graphs, all_nodes, declared_shape
from onnxfold.report import sentences
from onnxfold.wording import worded

_Document = TypeVar("_Document")


def plain(document: _Document) -> _Document:
    """Return a document without invisible characters: names in a model are arbitrary."""
    return _plain(document)  # type: ignore[return-value]  # every part keeps its type


def _plain(part: object) -> object:
    if isinstance(part, str):
        return printable(part)
    if isinstance(part, Mapping):
        return {_plain(key): _plain(each) for key, each in part.items()}
    if isinstance(part, list | tuple):
        return [_plain(each) for each in part]
    return part


class Inspection(dict[str, Any]):
    """Every norm of a model, and whether it folds; printed, it is a table.

    The fields are the same as in ``onnxfold inspect --json``; ``to_dict()`` returns a plain
    dictionary.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return the document, which is serializable as JSON."""
        return dict(self)

    def __repr__(self) -> str:
        """Return the table of norms, as wide as the terminal, and the totals."""
        from rich.console import Console

        from onnxfold.report.printed import print_norms

        text = io.StringIO()
        width = shutil.get_terminal_size().columns
        print_norms(Console(file=text, width=width, markup=False, emoji=False), plain(self))
        return worded(text.getvalue().rstrip())

    def _repr_html_(self) -> str:
        """Return the same for a notebook."""
        from onnxfold.report.printed import NORM_HEADINGS, norm_lines, norm_rows

        document = plain(self)
        heads = "".join(f"<th>{escape(heading)}</th>" for heading in NORM_HEADINGS)
        rows = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
            for *cells, _ in norm_rows(document, full=False)
        )
        told = norm_lines(document) if document["norms"] else [sentences.NOTHING]
        lines = "".join(f"<p>{escape(worded(line))}</p>" for line in told)
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>{lines}"


_Part = TypeVar("_Part", ir.Node, ir.Value)
_Key = tuple[str, int]


def node_rows(model: ir.Model) -> list[dict[str, Any]]:
    """Return every node, in bodies too: its operator, name, inputs and outputs."""
    rows = [_described(node) for node in all_nodes(model)]
    return [{"operator": kind, "name": name, "what": what} for kind, name, what in rows]


def node_changes(before: ir.Model, after: ir.Model) -> list[dict[str, Any]]:
    """Return the nodes and weights that differ, removed ones first, in the order of the models.

    Nodes are matched by the name of their first output, weights by their name, in bodies too.
    """
    changes = [
        *_compared(_nodes(before), _nodes(after), _described, _node_difference),
        *_compared(_weights(before), _weights(after), _named_weight, _weight_difference),
    ]
    order = ("removed", "added", "changed")
    rows = sorted(changes, key=lambda change: order.index(change[0]))
    return [dict(zip(("change", "kind", "name", "what"), row, strict=True)) for row in rows]


def type_and_shape(value: ir.Value) -> str:
    """Return a type with shape such as ``float [batch, 3]``; a question mark is an unknown size."""
    dtype = "?" if value.dtype is None else value.dtype.name.lower()
    shape = declared_shape(value)
    sizes = "?" if shape is None else ", ".join("?" if d is None else str(d) for d in shape)
    return f"{dtype} [{sizes}]"


def _compared(
    before: Mapping[_Key, _Part],
    after: Mapping[_Key, _Part],
    described: Callable[[_Part], tuple[str, str, str]],
    difference: Callable[[_Part, _Part], Iterable[str]],
) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """Yield whether each is removed, added or changed, its kind and name, and the difference."""
    for change, here, there in (("removed", before, after), ("added", after, before)):
        for key in (key for key in here if key not in there):
            kind, name, what = described(here[key])
            yield change, kind, name, (what,)
    for key in before:
        differs = tuple(difference(before[key], after[key])) if key in after else ()
        if differs:
            kind, name, _ = described(after[key])
            yield "changed", kind, name, differs


def _nodes(model: ir.Model) -> dict[_Key, ir.Node]:
    nodes = list(all_nodes(model))
    names = (next((o.name for o in node.outputs if o.name), node.name) for node in nodes)
    return dict(zip(_counted(names), nodes, strict=True))


def _weights(model: ir.Model) -> dict[_Key, ir.Value]:
    values = [value for graph in all_graphs(model) for value in graph.initializers.values()]
    return dict(zip(_counted(value.name for value in values), values, strict=True))


def _counted(names: Iterable[str | None]) -> Iterator[_Key]:
    """Number names that occur in several bodies."""
    seen: Counter[str] = Counter()
    for name in names:
        yield name or "", seen[name or ""]
        seen[name or ""] += 1


def _described(node: ir.Node) -> tuple[str, str, str]:
    outputs = ", ".join(f"{value.name} {type_and_shape(value)}" for value in node.outputs)
    return operator(node), node.name or "", f"{_inputs(node)} -> {outputs}"


def _inputs(node: ir.Node) -> str:
    return ", ".join("-" if value is None else value.name or "" for value in node.inputs)


def _named_weight(value: ir.Value) -> tuple[str, str, str]:
    return "weight", value.name or "", type_and_shape(value)


def _node_difference(node: ir.Node, twin: ir.Node) -> Iterator[str]:
    if operator(node) != operator(twin):
        yield f"{operator(node)} -> {operator(twin)}"
    elif not same_attributes(node, twin):
        yield "other attributes"
    for first, second in pairs(node, twin):
        names = ["-" if value is None else value.name for value in (first, second)]
        if names[0] != names[1]:
            yield f"input {names[0]} -> {names[1]}"


def _weight_difference(value: ir.Value, twin: ir.Value) -> Iterator[str]:
    first, second = value.const_value, twin.const_value
    if first is None or second is None or same_tensor(first, second):
        return
    types = [type_and_shape(one) for one in (value, twin)]
    yield "other numbers" if types[0] == types[1] else f"{types[0]} -> {types[1]}"
