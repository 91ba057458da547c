"""Which functions of domain onnxfold are ours: those with the bodies that onnxfold writes.

A model may have its own function with such a name; it is then a function like any other.
"""

from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from itertools import product

import numpy as np
import onnx_ir as ir

from onnxfold.errors import InvariantError
from onnxfold.graph.equality import numbers_key
from onnxfold.operators.bodies import LARGEST_EXPONENT_RANK, Setting, function, setting_of, type_of
from onnxfold.operators.functions import DOMAIN, SIGNATURES
from onnxfold.shapes import fill_types

_TYPES = (
    ir.DataType.FLOAT,
    ir.DataType.FLOAT16,
    ir.DataType.BFLOAT16,
    ir.DataType.DOUBLE,
)
_Key = tuple[object, ...]


def is_ours(body: ir.Function, calls: Iterable[ir.Node]) -> bool:
    """Whether a function of the model computes what our operator of its name does, in all calls."""
    if body.domain != DOMAIN or body.name not in SIGNATURES:
        return False
    key, opset = _key(body), body.opset_imports.get("", 0)
    settings = {
        (
            -node.attributes.get_int("axis", -1),
            node.attributes.get_float("epsilon", 0.0),
            node.attributes.get_float("levels", 127.0),
            node.attributes.get_float("least", 0.0),
        )
        for node in calls
    }
    return all(
        any(_key_of(body.name, opset, each) == key for each in _settings(*setting))
        for setting in settings
    )


def spell_out(
    model: ir.Model, keys: Collection[ir.OperatorIdentifier]
) -> set[ir.OperatorIdentifier]:
    """Replace bodies of our functions by the one for the type of their calls, without Casts.

    Returns those for which that is possible: all calls have one known type.
    """
    calls = {key: list[ir.Node]() for key in keys}
    if calls:
        fill_types(model)
    for node in model.graph.all_nodes():
        if node.op_identifier() in calls:
            calls[node.op_identifier()].append(node)
    done = set[ir.OperatorIdentifier]()
    for (domain, name, overload), nodes in calls.items():
        opset = model.functions[domain, name, overload].opset_imports.get("", 0)
        if not nodes or None in map(type_of, nodes):
            continue
        settings = {setting_of(node, opset, convertible=False) for node in nodes}
        if len(settings) == 1:
            body = function(name, opset, settings.pop(), overload)
            model.functions[domain, name, overload] = body
            done.add((domain, name, overload))
    return done


def _settings(axes: int, epsilon: float, levels: float, least: float) -> Iterator[Setting]:
    """Yield those of the bodies that onnxfold writes for such a call, by type and spelling."""
    ranks = range(LARGEST_EXPONENT_RANK + 1)
    for spelling in product((False, True), _TYPES, (True, False), (False, True), ranks):
        turned, dtype, convertible, rms_operator, rank = spelling
        yield Setting(dtype, axes, epsilon, convertible, rms_operator, turned, rank, levels, least)


@lru_cache(maxsize=4096)
def _key_of(name: str, opset: int, setting: Setting) -> _Key | None:
    """Return the key of our body; None if there is none for this opset and type."""
    try:
        return _key(function(name, opset, setting))
    except InvariantError:
        return None


def _key(body: ir.Function) -> _Key:
    """Return a key of a function's computation: its nodes with values numbered, not named."""
    numbers: dict[ir.Value | None, int] = {None: -1}

    def number(value: ir.Value | None) -> int:
        return numbers.setdefault(value, len(numbers))

    inputs = [number(value) for value in body.inputs]
    nodes = [
        (
            *node.op_identifier(),
            tuple(number(value) for value in node.inputs),
            tuple(number(value) for value in node.outputs),
            tuple(sorted(_attribute(attribute) for attribute in node.attributes.values())),
        )
        for node in body
    ]
    names = sorted(attribute.name for attribute in body.attributes.values())
    return (*inputs, *nodes, *(number(value) for value in body.outputs), *names)


def _attribute(attribute: ir.Attr) -> tuple[str, str]:
    if attribute.is_ref():
        return attribute.name, f"reference to {attribute.ref_attr_name}"
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        array = tensor.numpy()
        return attribute.name, f"{tensor.dtype} {array.shape} {numbers_key(array)!r}"
    value = attribute.value
    if attribute.type == ir.AttributeType.FLOAT:
        value = float(np.float32(attribute.as_float()))
    return attribute.name, repr(tuple(value) if isinstance(value, (list, tuple)) else value)
