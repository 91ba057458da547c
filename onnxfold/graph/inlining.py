"""Inlining of functions under names that no value of the model has, in bodies neither."""

from collections.abc import Callable

import onnx_ir as ir

from onnxfold.graph.traversal import all_graphs, graph_values


def inline(model: ir.Model, wanted: Callable[[ir.Function], bool]) -> None:
    """Put the bodies of ``wanted`` functions in the place of their calls.

    Raises ir.passes.PreconditionError where functions call themselves.
    """
    from onnx_ir.passes.common import InlinePass  # imports all passes, and most models need none

    names = _NewNames(model)
    InlinePass(criteria=lambda function: wanted(function) and names.give(function))(model)


class _NewNames:
    """Gives the body of a function new names before each call of it is inlined.

    InlinePass (onnx-ir 1.1) tries name, name_2, name_3, ... until one is free, which takes time in
    the square of the number of calls, and does not look into bodies that stand behind a call.
    """

    def __init__(self, model: ir.Model) -> None:
        self._names: dict[str, str] = {}
        self._taken: dict[str, int] = {}
        values = (value for graph in all_graphs(model) for value in graph_values(graph))
        self._held = {f"value {value.name}" for value in values}

    def give(self, function: ir.Function) -> bool:
        """Rename nodes and values; always True."""
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
