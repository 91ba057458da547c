"""What is noted at nodes: each note once, and at new nodes the name of the one they come from."""

from collections.abc import Iterator

import onnx_ir as ir

from onnxfold.graph.traversal import all_graphs, all_nodes

SOURCE_KEY = "onnxfold.source"


def name_sources(model: ir.Model, original: ir.Model) -> None:
    """Name, at nodes that share a note with one of the original, that one instead.

    Exporters note where in a program a node comes from, in kilobytes. The note stays at the node
    that computes what was computed there; the others that a pass made of it have a short one.
    """
    homes: dict[frozenset[tuple[str, str]], dict[str, str]] = {}
    for node in all_nodes(original):
        if node.metadata_props:
            home = homes.setdefault(_note(node), {})
            for output in node.outputs:
                home[output.name or ""] = node.name or output.name or ""
    for node in all_nodes(model):
        home = homes.get(_note(node), {})
        if not home or set(node.metadata_props) == {SOURCE_KEY}:
            continue
        if not any(output.name in home for output in node.outputs):
            node.metadata_props.clear()
            node.metadata_props[SOURCE_KEY] = next(iter(home.values()))


def strip_notes(model: ir.Model) -> ir.Model:
    """Return a model without what is noted below it, the same one where nothing is.

    That are the metadata and doc strings of graphs, functions, nodes and values.  The model's own
    stay, and those of weights.
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
