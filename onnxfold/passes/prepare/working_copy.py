"""A working copy of a model in which every norm is a separate operator.

Calls of model-local functions are inlined, except our own, and operators that fuse a residual
addition with a norm are split into the addition and the norm, so that the analysis sees the
addition; lowering fuses them again. Elements of an unbound tensor are picked from the tensor,
operands of Identity are read directly, and loop-invariant weights are read from the outer scope.
Parts of weights are stored separately, constant expressions are stored, chained factors merged,
biases added, layers of one input joined whose results are normalized together, and means of a
summand subtracted from it before the addition.
"""

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from functools import partial
from itertools import chain

import onnx
import onnx_ir as ir

from onnxfold.errors import ModelError
from onnxfold.graph import ModelInfo, node_label, operator
from onnxfold.graph.inlining import inline
from onnxfold.graph.traversal import all_graphs, all_nodes
from onnxfold.operators.functions import DOMAIN, LAST_AXIS_ONLY, SIGNATURES
from onnxfold.options import DEFAULT_SPLIT_BYTES
from onnxfold.passes.prepare.direct_reads import (
    pick_from_tensors,
    read_directly,
    read_from_outside,
    reshape_whole,
)
from onnxfold.passes.prepare.joined_layers import join_layers
from onnxfold.passes.prepare.means_of_summands import subtract_from_summands
from onnxfold.passes.prepare.own_functions import is_ours, spell_out
from onnxfold.passes.prepare.stored_constants import (
    add_biases,
    fold_constants,
    merge_constant_factors,
    store_parts,
)
from onnxfold.passes.split_skip_norms import SPLITTERS, Builder
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.shapes import fill_types, infer
from onnxfold.shapes.inference import list_less

# The edits of constants after the parts, in order: later ones see what earlier ones created.
_GIVEN = (
    fold_constants,
    merge_constant_factors,
    add_biases,
)
_WRITTEN = (merge_constant_factors, add_biases)


@dataclass(frozen=True, slots=True)
class Prepared:
    """The working copy, and the changes to it.

    They are the names of inlined functions and of split nodes; ``unsplit`` explains which functions
    could not be inlined and which nodes could not be split. ``plain``: norms of ours that append or
    drop a channel are plain calls.
    """

    info: ModelInfo
    inlined: tuple[str, ...]
    split: tuple[str, ...]
    unsplit: tuple[Refusal, ...] = ()
    plain: bool = True

    @property
    def model(self) -> ir.Model:
        """The working copy itself."""
        return self.info.model


def prepare(
    model: ir.Model,
    *,
    compressed: bool = False,
    deferred: bool = False,
    inferred: bool = False,
    written: bool = False,
    allow_split: int = DEFAULT_SPLIT_BYTES,
    shared: Set[str | None] = frozenset(),
    copy: bool = True,
) -> Prepared:
    """Return a copy without foreign functions and without skip forms; ``model`` is not changed.

    ``compressed``: CRMSNorms of ours are inlined too, so that the passes see what they append;
    ``deferred``: the calls of deferred norms too, so that they can be undone. ``inferred``: the
    model's types and shapes are already inferred, and unchanged parts keep them. ``written``: it is
    the passes' result for a prepared model, with which it is compared constant by constant.
    ``allow_split``: weights that joined layers share with others are stored twice up to this size.
    ``shared``: names of weights of which the parts are stored beside the whole. Without ``copy``
    the model itself becomes the working copy. Tensors are shared with the original. Raises
    ModelError for recursive functions.
    """
    clone = model.clone() if copy else model
    inferred &= not list_less(clone)
    inlined = _inline(clone, compressed, deferred)
    read = read_directly(clone)
    split, left = _split_all(clone)
    picked = pick_from_tensors(clone) + reshape_whole(clone)
    read += read_from_outside(clone)
    same = inferred and not (inlined or split or picked or read)
    info = ModelInfo(clone) if same else infer(clone)
    if subtract_from_summands(info):
        info = infer(clone)
    for change in _WRITTEN if written else (partial(store_parts, shared=shared), *_GIVEN):
        info = ModelInfo(clone) if change(info) else info
    if not written and join_layers(info, allow_split):
        info = ModelInfo(clone)
    unsplit = (*_left_whole(clone), *left)
    return Prepared(info, inlined, split, unsplit, not (compressed or deferred))


def taken_apart(given: ModelInfo) -> ModelInfo | None:
    """Return a copy with norms apart from the lookups before them, or None if all are.

    The rest stays. It is a step between a file and its working copy for a proof: the copy may store
    only some rows of a table, but a node that looks up and normalizes might read any row.
    """
    if not any(map(_looks_up, given.nodes())):
        return None
    clone = given.model.clone()
    _split(clone, _looks_up)
    return infer(clone)


def _looks_up(node: ir.Node) -> bool:
    """Whether a node fuses a norm with something and reads integers, such as rows to look up."""
    if (node.domain, node.op_type) not in SPLITTERS:
        return False
    dtypes = (None if value is None else value.dtype for value in node.inputs)
    return any(dtype is not None and dtype.is_integer() for dtype in dtypes)


def _split_all(model: ir.Model) -> tuple[tuple[str, ...], tuple[Refusal, ...]]:
    """Split skip forms until none is left; types are inferred only if one needs them."""
    done, left = _split(model)
    while left:
        fill_types(model)
        split, left = _split(model)
        done += split
        if not split:
            break
    return done, left


def _inline(model: ir.Model, compressed: bool, deferred: bool) -> tuple[str, ...]:
    ours = _own_functions(model)
    if compressed:
        ours -= {key for key in ours if SIGNATURES[key[1]].statistics in LAST_AXIS_ONLY}
    if deferred:
        ours -= spell_out(model, {key for key in ours if SIGNATURES[key[1]].of_rows})
    foreign = model.functions.keys() - ours
    if not foreign:
        return ()
    for function in model.functions.values():
        used = {node.domain for node in function.all_nodes()}
        for domain in function.opset_imports.keys() - used:
            del function.opset_imports[domain]  # the pass would compare them
        _take_version_of(model, function)
    try:
        inline(
            model, lambda each: each.identifier() not in ours and _why_whole(model, each) is None
        )
    except ir.passes.PreconditionError as error:
        raise ModelError("model-local functions of the model call themselves") from error
    _drop_unused(model)
    for domain, name, _ in foreign & model.functions.keys():
        if domain == DOMAIN:
            raise ModelError(
                f"the model has a function '{domain}.{name}' of its own, which cannot be inlined: "
                "rename its domain"
            )
    gone = sorted(key for key in foreign if key not in model.functions)
    return tuple(f"{domain}.{name}" if domain else name for domain, name, _ in gone)


def _own_functions(model: ir.Model) -> set[ir.OperatorIdentifier]:
    calls: dict[ir.OperatorIdentifier, list[ir.Node]] = {key: [] for key in model.functions}
    bodies = (body.all_nodes() for body in model.functions.values())
    for node in chain(all_nodes(model), *bodies):
        if node.op_identifier() in calls:
            calls[node.op_identifier()].append(node)
    return {key for key, body in model.functions.items() if is_ours(body, calls[key])}


def _take_version_of(model: ir.Model, function: ir.Function) -> None:
    """Give a function the model's operator sets if its operators are the same in both.

    Functions are the same in every version of the model, because they are found by name.
    """
    others = [node for node in function.all_nodes() if node.op_identifier() not in model.functions]
    for domain, version in _imports(function):
        other = model.graph.opset_imports.get(domain, version)
        names = {node.op_type for node in others if node.domain == domain}
        if all(_same_operator(name, domain, version, other) for name in names):
            function.opset_imports[domain] = other


def _same_operator(name: str, domain: str, version: int, other: int) -> bool:
    if version == other:
        return True
    try:
        schemas = [onnx.defs.get_schema(name, number, domain) for number in (version, other)]
    except onnx.defs.SchemaError:
        return False
    return schemas[0].since_version == schemas[1].since_version


def _left_whole(model: ir.Model) -> Iterator[Refusal]:
    """Explain why functions other than ours were not inlined."""
    for (domain, name, _), function in model.functions.items():
        why = None if domain == DOMAIN else _why_whole(model, function)
        if why is not None:
            sentence = f"function '{domain}.{name}' stays whole, with the norms in it: {why}"
            yield Refusal(RefusalCode.UNKNOWN_OP, sentence, (name,))


def _why_whole(model: ir.Model, function: ir.Function) -> str | None:
    """Return why the body would have another meaning in the main graph, or None."""
    for domain, version in _imports(function):
        others = model.graph.opset_imports.get(domain, version)
        if others != version:
            opset = f"version {version} of domain '{domain}'" if domain else f"opset {version}"
            return f"it is of {opset}, and the model of {others}"
    graphs = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    takes_graph = any(attribute.type in graphs for attribute in function.attributes.values())
    return "it takes a graph as an attribute" if takes_graph else None


def _imports(function: ir.Function) -> Iterator[tuple[str, int]]:
    """Yield the operator sets that the nodes of a function actually use."""
    used = {node.domain for node in function.all_nodes()}
    for domain, version in list(function.opset_imports.items()):
        if domain in used:
            yield domain, version


def _split(
    model: ir.Model, wanted: Callable[[ir.Node], bool] = lambda _: True
) -> tuple[tuple[str, ...], tuple[Refusal, ...]]:
    names: list[str] = []
    left: list[Refusal] = []
    builder: Builder | None = None
    for graph in list(all_graphs(model)):
        for node in list(graph):
            splitter = SPLITTERS.get((node.domain, node.op_type))
            if splitter is None or not wanted(node):
                continue
            builder = builder or Builder(model)
            label = node_label(node)
            why_not = splitter(builder.at(node))
            if why_not is None:
                names.append(label)
                continue
            sentence = (
                f"node '{label}' ({operator(node)}) stays whole, with the norm in it: {why_not}"
            )
            left.append(Refusal(RefusalCode.UNKNOWN_OP, sentence, (label,)))
    if names:
        _drop_unused(model)
    return tuple(names), tuple(left)


def _drop_unused(model: ir.Model) -> None:
    """Remove the functions that no node calls, directly or through another function."""
    if model.functions:
        from onnx_ir.passes.common import RemoveUnusedFunctionsPass  # as in graph/inlining.py

        RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]  # it has no types
