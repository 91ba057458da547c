"""Inlining of functions under unique names, in bodies too."""

from collections.abc import Callable

import onnx_ir as ir

from onnxfold.graph.edit import sweep
from onnxfold.graph.traversal import all_graphs, all_nodes, graph_values


def inline(model: ir.Model, wanted: Callable[[ir.Function], bool]) -> None:
    """Inline the calls of ``wanted`` functions, without what computes results that nobody reads.

    Raises ir.passes.PreconditionError if functions are recursive.
    """
    from onnx_ir.passes.common import InlinePass  # it imports all passes, and most models need none

    names, before = _NewNames(model), set(all_nodes(model))
    InlinePass(criteria=lambda function: wanted(function) and names.give(function))(model)
    sweep([node for node in all_nodes(model) if node not in before])


class _NewNames:
    """Renames the body of a function before each call of it is inlined.

    InlinePass (onnx-ir 1.1) tries name, name_2, name_3, ... until one is free, which takes
    quadratic time in the number of calls, and ignores bodies after a call.
    """

    def __init__(self, model: ir.Model) -> None:
        self._names: dict[str, str] = {}
        self._taken: dict[str, int] = {}
        values = (value for graph in all_graphs(model) for value in graph_values(graph))
        self._held = {f"value {value.name}" for value in values}

    def give(self, function: ir.Function) -> bool:
        """Rename nodes and values; always return True."""
        for node in function.all_nodes():
            node.name = self._next("node", node.name or "node")
            for output in node.outputs:
                output.name = self._next("value", output.name or "val")
        return True

    def _next(self, kind: str, name: str) -> str:
        base = self._names.get(f"{kind} {name}", name)
        while True:
            self._taken[kind + base] = number = self._taken.get(kind + base, 0) + 1
            following = base if number == 1 else f"{base}_{number}"
            if f"{kind} {following}" not in self._held:
                self._names[f"{kind} {following}"] = base
                return following
