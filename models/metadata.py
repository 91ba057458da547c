"""Strip what an exporter writes about the machine it ran on.

torch records a stack trace with absolute file names, the traced program and its signature on
every node. The module path of a node (``namespace``) holds no file name and helps a reader of
the graph, so it stays.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

__all__ = ["SAFE_NODE_KEYS", "clean"]

SAFE_NODE_KEYS = frozenset({"namespace"})


def clean(model: ir.Model) -> None:
    """Remove doc strings and all metadata but `SAFE_NODE_KEYS` from `model`, in place."""
    model.metadata_props.clear()
    model.doc_string = None
    graphs: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for graph in graphs:
        graph.metadata_props.clear()
        graph.doc_string = None
        for node in graph.all_nodes():
            _clean_node(node)
        _clean_values(graph.inputs)
    for subgraph in model.graph.subgraphs():
        subgraph.metadata_props.clear()
        subgraph.doc_string = None
        _clean_values(subgraph.inputs)
        _clean_values(subgraph.initializers.values())
    _clean_values(model.graph.initializers.values())


def _clean_node(node: ir.Node) -> None:
    node.doc_string = None
    kept = {key: value for key, value in node.metadata_props.items() if key in SAFE_NODE_KEYS}
    node.metadata_props.clear()
    node.metadata_props.update(kept)
    _clean_values(node.outputs)


def _clean_values(values: Iterable[ir.Value]) -> None:
    for value in values:
        value.metadata_props.clear()
        value.doc_string = None
