"""Metadata of nodes: each note once; new nodes have the name of the original node."""

from collections.abc import Iterator

import onnx_ir as ir

from onnxfold.graph.traversal import all_graphs, all_nodes

SOURCE_KEY = "onnxfold.source"


def name_sources(model: ir.Model, original: ir.Model) -> None:
    """Replace a note at new nodes that share it with an original node by that node's name.

    Exporters record the source location of a node, in kilobytes. The note stays at the node that
    computes the original result; the others that a pass created from it get a short one.
    """
    homes: dict[frozenset[tuple[str, str]], dict[str, str]] = {}
    for node in all_nodes(original):
        if node.metadata_props:
            home = homes.setdefault(_note(node), {})
            for output in node.outputs:
                home[output.name or ""] = node.name or output.name or ""
    for node in all_nodes(model):
        home = homes.get(_note(node), {}) if node.metadata_props else {}
        if not home or set(node.metadata_props) == {SOURCE_KEY}:
            continue
        if not any(output.name in home for output in node.outputs):
            node.metadata_props.clear()
            node.metadata_props[SOURCE_KEY] = next(iter(home.values()))


def strip_notes(model: ir.Model) -> ir.Model:
    """Return a model without notes on its parts, the same object if there are none.

    These are the metadata and doc strings of graphs, functions, nodes and values. Notes on the
    model itself and on weights stay.
    """
    if not any(part.metadata_props or part.doc_string for part in _noted(model)):
        return model
    stripped = model.clone()
    stripped.meta.update(model.meta)
    for part in _noted(stripped):
        part.metadata_props.clear()
        part.doc_string = None
    return stripped


def _note(node: ir.Node) -> frozenset[tuple[str, str]]:
    return frozenset(node.metadata_props.items())


def _noted(model: ir.Model) -> Iterator[ir.Graph | ir.Function | ir.Node | ir.Value]:
    tops: tuple[ir.Graph | ir.Function, ...] = (model.graph, *model.functions.values())
    for top in tops:
        for graph in (top, *top.subgraphs()):
            yield graph
            yield from graph.inputs
            for node in graph:
                yield node
                yield from node.outputs
    yield from (value for graph in all_graphs(model) for value in graph.initializers.values())
