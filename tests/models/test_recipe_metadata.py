"""Stripping what an exporter writes about the machine that it ran on."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from models.metadata import clean

SECRET = "/home/someone/site-packages/secret.py"  # noqa: S105  a file name


def noisy_model() -> ir.Model:
    """A graph with a subgraph and a function, with `SECRET` in every place that takes text."""
    model = ir.from_onnx_text(
        """
        <ir_version: 10, opset_import: ["": 20, "local": 1]>
        main (bool c, float[2] x) => (float[2] y)
        <float[2] w = {1, 2}>
        {
            z = Add (x, w)  t = local.Twice (z)
            y = If (c) <
                then_branch = g1 () => (float[2] a) { a = Neg (t) },
                else_branch = g2 () => (float[2] b) { b = Abs (t) }
            >
        }
        <opset_import: ["": 20], domain: "local">
        Twice (p) => (q) { q = Add (p, p) }
        """
    )
    model.doc_string = SECRET
    model.metadata_props["signature"] = SECRET
    graphs = (model.graph, *model.graph.subgraphs(), *model.functions.values())
    for graph in graphs:
        graph.doc_string = SECRET
        graph.metadata_props["signature"] = SECRET
        for value in graph.inputs:
            value.doc_string = SECRET
            value.metadata_props["pkg.torch.trace"] = SECRET
        for node in graph:
            node.doc_string = SECRET
            node.metadata_props["pkg.torch.onnx.stack_trace"] = SECRET
            node.metadata_props["namespace"] = "model/layer"
            for value in node.outputs:
                value.doc_string = SECRET
                value.metadata_props["pkg.torch.trace"] = SECRET
    for value in model.graph.initializers.values():
        value.doc_string = SECRET
        value.metadata_props["pkg.torch.trace"] = SECRET
    return model


def text_of(model: ir.Model) -> str:
    return str(ir.to_proto(model))


def test_no_text_of_the_exporter_is_left() -> None:
    model = noisy_model()
    assert text_of(model).count(SECRET) > 20
    clean(model)
    assert SECRET not in text_of(model)


def test_the_module_path_of_a_node_stays() -> None:
    model = noisy_model()
    clean(model)
    nodes = [*model.graph.all_nodes(), *model.functions["local", "Twice", ""]]
    assert len(nodes) == 6
    assert all(node.metadata_props == {"namespace": "model/layer"} for node in nodes)


def test_the_graph_itself_is_untouched() -> None:
    model = noisy_model()
    clean(model)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert [node.op_type for node in model.graph] == ["Add", "Twice", "If"]
