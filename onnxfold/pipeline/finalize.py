"""The working copy from which the passes start, and the final form of what they made of it."""

import json
from collections import Counter, defaultdict
from collections.abc import Container, Iterable
from dataclasses import replace

import onnx_ir as ir

from onnxfold import __version__
from onnxfold.graph import ModelInfo, constant_tensor, operator
from onnxfold.graph.edit import redirect, set_input
from onnxfold.graph.equality import numbers_key
from onnxfold.graph.inlining import inline
from onnxfold.graph.operands import producer_of
from onnxfold.graph.traversal import all_graphs, all_nodes
from onnxfold.operators.bodies import Setting, function, setting_of, type_of
from onnxfold.operators.functions import (
    DOMAIN,
    RMS_NORMALIZATION_SINCE,
    SIGNATURES,
    VERSION,
    Statistics,
)
from onnxfold.options import METADATA_KEY, WrittenForm
from onnxfold.passes.base import Settings
from onnxfold.passes.deferral.undefer import decide
from onnxfold.passes.lower.opset import raise_opset
from onnxfold.passes.prepare.working_copy import Prepared, prepare
from onnxfold.shapes.inference import strip_types
from onnxfold.target import Target
from onnxfold.targets.costs import is_wanted
from onnxfold.targets.norm_settings import common_settings, setting_of_call, setting_of_each
from onnxfold.targets.spelled import turned_values

_FUNCTIONS_SINCE_IR = 8
_INLINED = "inlined_"  # prefix of overloads of calls that do not stay
_OVERRIDABLE_SINCE_IR = 4


def finished(
    model: ir.Model, original: ir.Model, noted: str, target: Target, form: WrittenForm
) -> ir.Model:
    """Remove helpers of the work, and record the changes in one metadata key.

    Every call of onnxfold's functions has its body; in a file for kernels the calls of one name
    share one.
    """
    view = ModelInfo(model)
    staying = _of_one_setting(view) if target.traits.calls else frozenset()
    _define(view, staying, form)
    strip_types(model, like=original)
    model.metadata_props[METADATA_KEY] = _with_inexact(noted, original)
    return model


def _with_inexact(noted: str, original: ir.Model) -> str:
    """Keep what a model says of means that were dropped from it."""
    try:
        said = json.loads(original.metadata_props[METADATA_KEY])["inexact"]
    except (KeyError, TypeError, ValueError):
        return noted
    return json.dumps({**json.loads(noted), "inexact": said}, sort_keys=True)


def note(target: Target, folded: int = 0, inserted: int = 0) -> str:
    """Return the metadata of a model written by onnxfold."""
    said = {
        "version": __version__,
        "target": target.value,
        "folded": folded,
        "inserted_centerings": inserted,
    }
    return json.dumps(said, sort_keys=True)


def written_for(model: ir.Model) -> Target | None:
    """Return the target for which onnxfold wrote a model, or None if it did not."""
    try:
        return Target(json.loads(model.metadata_props[METADATA_KEY])["target"])
    except (KeyError, TypeError, ValueError):
        return None


def define_functions(view: ModelInfo, target: Target, form: WrittenForm) -> None:
    """Give every call of onnxfold's functions its body, by an overload for each setting.

    A call of the original model with unknown element type keeps its body.
    """
    calls = _calls(view.model) if target.traits.calls else ()
    _define(view, frozenset(filter(_may_stay, calls)), form)


def _may_stay(node: ir.Node) -> bool:
    """Whether a kernel may run a call; there is none for DOUBLE."""
    return type_of(node) not in (None, ir.DataType.DOUBLE)


def _of_one_setting(view: ModelInfo) -> frozenset[ir.Node]:
    """Return the calls that stay: for each name the calls of one setting."""
    calls = list(filter(_may_stay, _calls(view.model)))
    named = [(node.op_type, setting_of_call(node)) for node in calls]
    chosen = setting_of_each(named, common_settings(calls))
    bodies = {
        node: (name, setting_of(node, view.opset, convertible=True))
        for node, (name, setting) in zip(calls, named, strict=True)
        if setting == chosen[name]
    }
    kept: dict[str, Setting] = {}
    for (name, body), _ in Counter(bodies.values()).most_common():  # element types may differ
        kept.setdefault(name, body)
    return frozenset(node for node, (name, body) in bodies.items() if kept[name] == body)


def _define(view: ModelInfo, staying: frozenset[ir.Node], form: WrittenForm) -> None:
    """Define every call; the bodies of those that stay support several element types."""
    model, opset = view.model, view.opset
    calls = _calls(model)
    kept = {node.op_identifier() for node in calls if type_of(node) is None}
    values = turned_values(view) if calls else frozenset()
    turned = {node for node in calls if node.outputs[0] in values}  # not its sum alone
    names = {node.op_type for node in turned & staying}
    turned |= {node for node in staying if node.op_type in names}
    twins = _twins(view, (node for node in calls if node not in staying))
    for identifier in [key for key in model.functions if key[0] == DOMAIN and key not in kept]:
        del model.functions[identifier]
    for node in calls:
        if node.op_identifier() in kept and node.op_identifier() in model.functions:
            continue
        setting = setting_of(
            node,
            opset,
            convertible=node in staying,
            rms_operator=form is WrittenForm.OP,
            turned=node in turned,
            twin=twins.get(node, 0),
        )
        node.overload = setting.label if node in staying else _INLINED + setting.label
        if node.op_identifier() not in model.functions:
            body = function(node.op_type, opset, setting, node.overload)
            model.functions[body.identifier()] = body
    if any(key[0] == DOMAIN for key in model.functions):
        model.graph.opset_imports.setdefault(DOMAIN, VERSION)
    else:
        model.graph.opset_imports.pop(DOMAIN, None)


def _twins(view: ModelInfo, calls: Iterable[ir.Node]) -> dict[ir.Node, int]:
    """Number the RMSNorms of one value, each up to its rank; equal ones share a number."""
    found: defaultdict[ir.Value | None, dict[object, int]] = defaultdict(dict)
    numbers: dict[ir.Node, int] = {}
    for node in calls:
        if SIGNATURES[node.op_type].statistics is Statistics.RMS:
            others = found[node.inputs[0]]
            own = (node.op_type, node.inputs, setting_of_call(node))
            number = others.setdefault(own, len(others))
            numbers[node] = min(number, view.rank(node.inputs[0]) or 0)
    return numbers


def _calls(model: ir.Model) -> list[ir.Node]:
    return [n for n in all_nodes(model) if n.domain == DOMAIN and n.op_type in SIGNATURES]


def list_initializers(model: ir.Model) -> None:
    """List all initializers as inputs if the IR version is 3, which requires it."""
    if model.ir_version >= _OVERRIDABLE_SINCE_IR:
        return
    listed = set(model.graph.inputs)
    for value in model.graph.initializers.values():
        if value not in listed:
            model.graph.inputs.append(value)


def drop_empty_biases(model: ir.Model) -> None:
    """Omit the bias that a LayerNormalization names with "", instead of leaving it out.

    ONNX Runtime (up to 1.32) fuses such a node without a check, and ends the process.
    """
    for node in all_nodes(model):
        if operator(node) == "LayerNormalization" and node.inputs[-1] is None:
            set_input(node, len(node.inputs) - 1, None)


def put_sigmoids_first(model: ir.Model) -> None:
    """Write Sigmoid(v) * u for u * Sigmoid(v) where v is a product.

    ONNX Runtime's transformers optimizer searches for QuickGelu in the latter, and fails if v is
    not a product with a constant, as with the row scales of deferred norms.
    """
    for node in all_nodes(model):
        gate = producer_of(node.inputs[1]) if operator(node) == "Mul" else None
        product = producer_of(gate.inputs[0]) if gate and operator(gate) == "Sigmoid" else None
        if product is None or operator(product) != "Mul":
            continue
        if constant_tensor(product.inputs[1]) is None:
            first, second = node.inputs
            set_input(node, 0, second)
            set_input(node, 1, first)


def settle_functions(model: ir.Model, ir_version: int) -> None:
    """Leave one function per name in a file for kernels, and none in others.

    The calls of other settings, which ONNX Runtime 1.17 to 1.24 would run with the wrong body,
    become operators. A model without functions gets its ``ir_version`` back.
    """
    kept = _most_called(model)
    called = {function.identifier() for function in model.functions.values()}
    if any(key[0] == DOMAIN and key not in kept for key in called):
        before = set(all_nodes(model))
        inline(model, lambda each: each.domain == DOMAIN and each.identifier() not in kept)
        share_constants(model, before)
    for node in _calls(model):
        node.overload = ""
    for domain, name, overload in kept:
        body = model.functions.pop((domain, name, overload))
        body.overload = ""
        model.functions[body.identifier()] = body
    if not kept:
        model.graph.opset_imports.pop(DOMAIN, None)
    if not model.functions:
        model.ir_version = ir_version
    elif model.ir_version < _FUNCTIONS_SINCE_IR:
        model.ir_version = _FUNCTIONS_SINCE_IR


def share_constants(model: ir.Model, before: Container[ir.Node]) -> None:
    """Merge equal Constant nodes of one graph, except those that were there ``before``."""
    for graph in all_graphs(model):
        known: dict[object, ir.Value] = {}
        unread: list[ir.Node] = []
        for node in graph:
            tensor = None if operator(node) != "Constant" else constant_tensor(node.outputs[0])
            if tensor is None or node in before:
                continue
            key = (tensor.dtype, tuple(tensor.shape.numpy()), numbers_key(tensor.numpy()))
            shared = known.setdefault(key, node.outputs[0])
            if shared is not node.outputs[0]:
                redirect(node.outputs[0], shared)
                unread.append(node)
        gone = (node for node in unread if not node.outputs[0].is_graph_output())
        graph.remove(gone, safe=True)  # at once, which is faster


def _most_called(model: ir.Model) -> tuple[ir.OperatorIdentifier, ...]:
    calls = Counter(
        node.op_identifier() for node in _calls(model) if not node.overload.startswith(_INLINED)
    )
    kept: dict[str, ir.OperatorIdentifier] = {}
    for identifier, _ in calls.most_common():
        kept.setdefault(identifier[1], identifier)
    return tuple(kept.values())


def prepared_for(model: ir.Model, settings: Settings, *, copy: bool = True) -> Prepared:
    """Return a working copy of a model whose types and shapes are inferred, or the model as one.

    Its opset is raised if the form of norms needs it.
    """
    prepared = _to_reinstate(model, settings)
    prepared = prepared or prepare(
        model,
        compressed=settings.convert_to is not None,
        inferred=True,
        allow_split=settings.allow_split,
        shared=settings.shared,
        copy=copy,
    )
    if settings.norm_form is WrittenForm.OP and not settings.target.traits.contrib:
        raise_opset(prepared.model, RMS_NORMALIZATION_SINCE)
        return replace(prepared, info=ModelInfo(prepared.model))
    return prepared


def _to_reinstate(model: ir.Model, settings: Settings) -> Prepared | None:
    """Return a copy without the calls that deferral left if a norm can be reinstated."""
    if settings.convert_to is not None or is_wanted(settings) or not _has_calls_of_rows(model):
        return None
    prepared = prepare(
        model,
        deferred=True,
        inferred=True,
        allow_split=settings.allow_split,
        shared=settings.shared,
    )
    return None if decide(prepared.info, settings).empty else prepared


def _has_calls_of_rows(model: ir.Model) -> bool:
    names = (name for domain, name, _ in model.functions if domain == DOMAIN)
    return any(name in SIGNATURES and SIGNATURES[name].of_rows for name in names)
