"""What ONNX Runtime cannot open although a model is right, found before it tries."""

from itertools import chain
from pathlib import Path

import onnx_ir as ir

from onnxfold import model_io
from onnxfold.errors import ModelError
from onnxfold.graph.model_info import node_label
from onnxfold.graph.traversal import all_nodes
from onnxfold.model_io.messages import show


def takes_name(path: Path) -> bool:
    """Whether ONNX Runtime accepts the name of a file: it requires UTF-8, file systems do not."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def demand_name(path: Path) -> None:
    """Raise ModelError if ONNX Runtime cannot open a file because of its name."""
    if not takes_name(path):
        raise ModelError(f"'{path}': ONNX Runtime cannot open a file of this name; rename it")


def fatal_node(model: ir.Model) -> ir.Node | None:
    """Return a LayerNormalization with an empty bias name, if there is one.

    The graph optimizations of ONNX Runtime end the process on it (1.31, 1.32). Without them it runs
    such a model, as it should.
    """
    functions = (function.all_nodes() for function in model.functions.values())
    for node in chain(all_nodes(model), *functions):
        if (node.domain, node.op_type) == ("", "LayerNormalization") and None in node.inputs[2:]:
            return node
    return None


def demand_optimizable(path: Path) -> None:
    """Raise ModelError if ONNX Runtime cannot open a file, or ends the process when it does."""
    demand_name(path)
    node = fatal_node(model_io.load(path))
    if node is not None:
        raise ModelError(
            f"{show(path.name)}: the empty bias of {node_label(node)} ends the process of ONNX "
            "Runtime; leave this input out"
        )
