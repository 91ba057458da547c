"""Bounds on how far the functions of a model expand: a few nested calls can mean billions of nodes.

Inlining and running a model visit every call, so both are bounded before either begins.
"""

from collections.abc import Iterable, Iterator

import onnx

from onnxfold.errors import ModelError

# Models of a thousand layers have fewer.
_MOST_NODES = 100_000
# Real exports nest modules about ten deep; inlining recurses.
_MOST_DEPTH = 100

_Key = tuple[str, str, str]


def check_calls(proto: onnx.ModelProto) -> None:
    """Refuse functions that are recursive, nest too deep, or expand to too many nodes.

    Raises ModelError, which names the function.
    """
    functions = {(f.domain, f.name, f.overload): f for f in proto.functions}
    called = {key: _called(f.node, functions) for key, f in functions.items()}
    sizes: dict[_Key, tuple[int, int]] = {}
    for start in functions:
        _measure(start, functions, called, sizes)
    for key, (nodes, depth) in sizes.items():
        name = f"function {key[0]}:{key[1]}"
        if depth > _MOST_DEPTH:
            raise ModelError(f"{name} calls functions {depth} deep; at most {_MOST_DEPTH} are read")
        if nodes > _MOST_NODES:
            raise ModelError(
                f"{name} stands for {nodes:.3g} nodes once its calls are expanded; at most "
                f"{_MOST_NODES} are read"
            )


def _measure(
    start: _Key,
    functions: dict[_Key, onnx.FunctionProto],
    called: dict[_Key, list[_Key]],
    sizes: dict[_Key, tuple[int, int]],
) -> None:
    """Return nodes and depth of a function with its calls, without recursion, which may be deep."""
    path: dict[_Key, Iterator[_Key]] = {start: iter(called[start])}
    while path and start not in sizes:
        key = next(reversed(path))
        inner = next((k for k in path[key] if k not in sizes), None)
        if inner is None:
            del path[key]
            nodes = sum(sizes[k][0] for k in called[key]) + len(functions[key].node)
            depth = max((sizes[k][1] for k in called[key]), default=0) + 1
            sizes[key] = nodes, depth
        elif inner in path:
            raise ModelError(f"function {inner[0]}:{inner[1]} calls itself")
        else:
            path[inner] = iter(called[inner])


def _called(
    nodes: Iterable[onnx.NodeProto], functions: dict[_Key, onnx.FunctionProto]
) -> list[_Key]:
    """Return the functions that nodes call, in their bodies too, once for each call."""
    found: list[_Key] = []
    for node in nodes:
        key = (node.domain, node.op_type, node.overload)
        if key in functions:
            found.append(key)
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                found += _called(attribute.g.node, functions)
            for graph in attribute.graphs:
                found += _called(graph.node, functions)
    return found
