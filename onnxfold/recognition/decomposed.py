"""Sites of norms that are spelled as several operators, and of DyT."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnxfold.errors import InvariantError
from onnxfold.graph import Fiber, ModelInfo, node_label
from onnxfold.graph.constants import Float64, default_tensor
from onnxfold.norms.second_moments import MomentAxes, Statistic
from onnxfold.norms.site import NormForm, NormKind, NormSite
from onnxfold.operators import facets
from onnxfold.operators.table import row_of
from onnxfold.recognition.algebra import (
    AffineForm,
    Algebra,
    Canonical,
    Coefficient,
    Match,
    match_graph,
)
from onnxfold.recognition.algebra.forms import Square
from onnxfold.recognition.algebra.graph_state import channel_axis
from onnxfold.recognition.norm_operators import size_refusal, spatial_refusal
from onnxfold.refusal import Refusal, refuse_overridable

_STEPS = frozenset(("Abs", "Mul", "Neg"))  # allowed on x before a square or a root
_ASSUMED_RANK = 4  # for unknown ranks; norms are of rank 4 or less
_PLUMBING_LIMIT = 200
_DEAD_LIMIT = 8


def decomposed_sites(view: ModelInfo) -> Iterator[NormSite]:
    """Yield the norms of every graph that consist of several operators.

    A norm of a value of unknown rank is refused, with the node that hides it; so is a norm whose
    constants callers may replace.
    """
    known = Canonical(view)
    found = list(_sites(known))
    if any(known.dims(value) is None for value in _reduced(view)):
        hidden = _sites(Canonical(view, _ASSUMED_RANK))
        found += [site for site in hidden if known.dims(site.input) is None]
    yield from found
    if any(value.is_initializer() for value in view.model.graph.inputs):
        yield from _of_defaults(view, {node for site in found for node in site.nodes})


def _of_defaults(view: ModelInfo, taken: Collection[ir.Node]) -> Iterator[NormSite]:
    """Yield norms that depend on callers not overriding an exponent, axes or an epsilon.

    Nothing is claimed about elements or affine part, which may then differ.
    """
    for site in _sites(Canonical(ModelInfo(view.model, default_tensor))):
        read = {value for node in site.nodes for value in node.inputs if value is not None}
        names = sorted(v.name or "" for v in read if v.is_initializer() and v.is_graph_input())
        if names and not any(node in taken for node in site.nodes):
            nothing = replace(site, fiber=Fiber(()), size=0, gamma=None, beta=None, centred=())
            yield replace(nothing, refusal=refuse_overridable(names))


def _reduced(view: ModelInfo) -> Iterator[ir.Value | None]:
    """Yield the operands of which a norm may take a mean."""
    for node in view.nodes():
        if facets.reduces(row_of(node)):
            yield node.inputs[0]


def _sites(canonical: Canonical) -> Iterator[NormSite]:
    view = canonical.view
    for graph in view.graphs:
        order = {node: index for index, node in enumerate(graph)}
        algebra, matches = match_graph(canonical, graph)
        spans = [_longest(_spans(algebra, match, order)) for match in matches]
        read = {span.x for span in spans if span is not None}
        ended: set[ir.Value] = set()  # of merged norms, excluding what distinguishes them
        for match, longest in zip(matches, spans, strict=True):
            apart = longest
            if longest is not None and longest.holds(read):
                # The next norm starts here: at the rounding of this one, which it widens again.
                others = _spans(algebra, match, order)
                apart = _longest(span for span in others if not span.holds(read))
            site = None if apart is None else _site(algebra, apart, order)
            if site is not None and site.output not in ended:
                ended.add(site.output)
                yield site


@dataclass(frozen=True, slots=True)
class _Span:
    """One way to cut a norm out of its graph: from x to the output, with the nodes between."""

    output: ir.Value
    form: AffineForm
    x: ir.Value
    owned: set[ir.Node]
    same_type: bool

    def holds(self, values: Collection[ir.Value]) -> bool:
        """Whether one of the values would be lost if the norm were one operator."""
        inner = (value for node in self.owned for value in node.outputs)
        return any(value in values and value is not self.output for value in inner)


def _site(algebra: Algebra, span: _Span, order: dict[ir.Node, int]) -> NormSite | None:
    output, form, x, owned = span.output, span.form, span.x, span.owned
    nodes = tuple(sorted(owned, key=order.__getitem__))
    denominator, over = form.denominator, form.over
    if denominator is None or over is None or len(nodes) < 2:
        return None
    label = node_label(nodes[-1])
    kind = _kind(algebra, form)
    fiber, size = (over.fiber, over.size) if over.fiber is not None else (Fiber(()), 0)
    return NormSite(
        name=label,
        kind=kind,
        form=NormForm.DECOMPOSED,
        input=x,
        output=output,
        fiber=fiber,
        size=size,
        epsilon=denominator.epsilon,
        epsilon_mode=denominator.mode,
        factor=denominator.factor,
        nodes=nodes,
        gamma=_expressed(form.a, 1.0),
        beta=_expressed(form.c, 0.0),
        centred=_centred(algebra, form, nodes),
        escaping=_escaping(owned, nodes, output),
        compute_dtype=denominator.dtype,
        rounds_before_affine=form.rounds_before_affine,
        moves_by_rounding=denominator.one_pass or form.cancels,
        refusal=_refusal(algebra.view, x, kind, over, label),
    )


def _longest(spans: Iterable[_Span]) -> _Span | None:
    """Return the longest norm whose result has the type of its input, otherwise the longest."""
    longest: _Span | None = None
    for span in spans:
        if span.same_type:
            return span
        longest = longest or span
    return longest


def _spans(algebra: Algebra, match: Match, order: dict[ir.Node, int]) -> Iterator[_Span]:
    """Yield the norm with everything that extends it, then ever shorter ones."""
    chain = ((match.output, match.form), *match.shorter)
    tensors = {form.t for _, form in chain}
    tensors |= {algebra.reshaped[value] for value, _ in chain if value in algebra.reshaped}
    for output, form in chain:
        owned, stops = _owned(algebra, output, form.t, tensors, order)
        if not stops:
            continue  # constant: nothing upstream is its input
        x = stops[0] if len(stops) == 1 or form.t not in stops else form.t
        same_type = algebra.canonical.dtype(x) == algebra.canonical.dtype(output)
        yield _Span(output, form, x, owned, same_type)


def _owned(
    algebra: Algebra,
    output: ir.Value,
    t: ir.Value,
    tensors: set[ir.Value],
    order: dict[ir.Node, int],
) -> tuple[set[ir.Node], list[ir.Value]]:
    """Walk from a norm back to its input; return the nodes on the way and the inputs reached.

    The input is t or a copy of it; if the result has a wider type, the widened t. The walk stays in
    the graph whose nodes are in ``order``.
    """
    canonical = algebra.canonical
    wide = canonical.dtype(output)
    widened = wide is not None and wide != canonical.dtype(t)
    owned: set[ir.Node] = set()
    stops: dict[ir.Value, None] = {}
    waiting = [output]
    while waiting:
        node = waiting.pop().producer()
        if node is None or node in owned:
            continue
        owned |= {node, *algebra.conditions.get(node, ())}
        for operand in node.inputs:
            if operand is None:
                continue
            outside = operand.producer() not in order
            if canonical.root(operand) is t or (
                algebra.atom(operand) is t
                and (outside or (widened and canonical.dtype(operand) == wide))
            ):
                stops[operand] = None
            elif outside:
                continue
            elif algebra.atom(operand) in tensors or _belongs(algebra, operand, tensors):
                waiting.append(operand)
    return owned, list(stops)


def _belongs(algebra: Algebra, value: ir.Value, tensors: set[ir.Value]) -> bool:
    """Whether a value is computed from x on the way to the norm, not a coefficient or a shape."""
    if _is_step(algebra, value, tensors):
        return True
    node = value.producer()
    if node is None or node.domain != "":
        return False
    first = node.inputs[0] if node.inputs else None
    if first is not None and facets.reshapes(row_of(node)):  # within a chain that ends as it began
        return _belongs(algebra, first, tensors)
    return node.op_type in _STEPS and any(
        operand is not None
        and (algebra.atom(operand) in tensors or _is_step(algebra, operand, tensors))
        for operand in node.inputs
    )


def _is_step(algebra: Algebra, value: ir.Value, tensors: set[ir.Value]) -> bool:
    form = algebra.form(value)
    return form is not None and (isinstance(form, Square) or form.t in tensors)


def _expressed(coefficient: Coefficient, neutral: float) -> ir.Value | Float64 | None:
    """Return the form of the coefficient in a site: absent, a value of the graph, or an array."""
    if coefficient.runtime:
        return coefficient.runtime[0]
    if bool((coefficient.array == neutral).all()):
        return None
    return np.asarray(coefficient.array) if coefficient.source is None else coefficient.source


def _centred(
    algebra: Algebra, form: AffineForm, nodes: tuple[ir.Node, ...]
) -> tuple[ir.Value, ...]:
    """Return the values that are exactly x - mean(x), two if torch.std computes its own."""
    found: dict[ir.Value, None] = {}
    for node in nodes:
        copies = any(operand in found for operand in node.inputs)
        if not copies and _is_centred(algebra, form, node.outputs[0]):
            found[node.outputs[0]] = None
    return tuple(found)


def _is_centred(algebra: Algebra, form: AffineForm, value: ir.Value) -> bool:
    found = algebra.forms.get(value)
    if not isinstance(found, AffineForm) or found.t is not form.t or found.over != form.over:
        return False
    return found.centred == 1.0 and algebra.dims(value) == algebra.dims(form.t)


def _escaping(
    owned: set[ir.Node], nodes: tuple[ir.Node, ...], output: ir.Value
) -> tuple[ir.Value, ...]:
    """Return the inner values that are still needed if the norm is one operator."""
    inner = [value for node in nodes for value in node.outputs if value is not output]
    return tuple(
        value
        for value in inner
        if value.is_graph_output()
        or any(use.node not in owned and not _dies(use.node, owned) for use in value.uses())
    )


def _dies(node: ir.Node, owned: set[ir.Node]) -> bool:
    """Whether a node is dead, or only computes shapes for the norm's own nodes."""
    shape = not facets.reads_elements(row_of(node))
    seen: set[ir.Node] = set()
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if current in seen or (shape and current in owned):
            continue
        seen.add(current)
        if len(seen) > (_PLUMBING_LIMIT if shape else _DEAD_LIMIT) or current in owned:
            return False
        if shape and not row_of(current).foldable:
            return False
        for value in current.outputs:
            if value.is_graph_output():
                return False
            waiting += [use.node for use in value.uses()]
    return True


def _kind(algebra: Algebra, form: AffineForm) -> NormKind:
    denominator, over = form.denominator, form.over
    if denominator is None or over is None:
        raise InvariantError("a norm without a denominator")
    if denominator.statistic is Statistic.MEAN_SQUARE:
        summed = over.size > 1 and denominator.factor == over.size
        return NormKind.L2_NORM if summed else NormKind.RMS_NORM
    if over.groups or over.channel in over.axes or (over.fiber and not over.fiber.whole):
        return NormKind.GROUP_NORM
    axes: set[int] = set()
    for factor in (form.a, form.c):
        axes |= algebra.varying(factor, form.t) or set()
    channel = channel_axis(algebra, form.t, over)
    if channel in axes or (over.channel is not None and not axes):
        return NormKind.INSTANCE_NORM
    return NormKind.LAYER_NORM


def _refusal(
    view: ModelInfo, x: ir.Value, kind: NormKind, over: MomentAxes, label: str
) -> Refusal | None:
    if kind in (NormKind.GROUP_NORM, NormKind.INSTANCE_NORM):
        partial = (
            {block.axis for block in over.fiber.blocks if not block.whole} if over.fiber else ()
        )
        if any(axis != over.channel and axis not in partial for axis in over.axes):
            return spatial_refusal(label)
    return None if over.size else size_refusal(view, x, label)
