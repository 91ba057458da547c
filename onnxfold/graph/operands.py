"""What stands before and behind a value or a node, where that may be nothing."""

import onnx_ir as ir


def operand(node: ir.Node, index: int) -> ir.Value | None:
    """Return an input of a node, None where it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def producer_of(value: ir.Value | None) -> ir.Node | None:
    """Return the node that computes a value, None where none does."""
    return None if value is None else value.producer()


def only_reader(value: ir.Value | None) -> ir.Node | None:
    """Return the one node that needs a value, None where others, a caller or nobody does."""
    if value is None or value.is_graph_output():
        return None
    readers = {use.node for use in value.uses()}
    return readers.pop() if len(readers) == 1 else None


def is_read_once(value: ir.Value) -> bool:
    """Whether one input of one node is all that needs a value."""
    return len(value.uses()) == 1 and not value.is_graph_output()
