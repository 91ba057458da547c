"""All norms of a model, in topological order; those of one value may share their statistics.

x - mean(x), as Sub and ReduceMean or a call of ours: read only by a norm, or bare.

A LayerNorm ignores the shift: LN(x - mean(x)) = LN(x), one norm of x.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo, node_label, operator
from onnxfold.graph.constants import HALVES, Array
from onnxfold.graph.operands import is_read_once, only_reader, producer_of
from onnxfold.norms import CENTRINGS, NORMS, BareCentring
from onnxfold.norms.second_moments import MOMENTS, Moments
from onnxfold.norms.site import (
    WITHOUT_AFFINE,
    EpsilonMode,
    NormForm,
    NormKind,
    NormSite,
    mean_subtracted_by,
)
from onnxfold.operators import facets
from onnxfold.operators.families.reduce import Centring
from onnxfold.operators.families.rules import transfer_of
from onnxfold.operators.table import row_of
from onnxfold.recognition.algebra import Canonical, match_graph
from onnxfold.recognition.decomposed import decomposed_sites
from onnxfold.recognition.dyt import dyt_sites
from onnxfold.recognition.norm_operators import op_site
from onnxfold.refusal import Refusal, RefusalCode

_SUMS = frozenset({"Add", "Sum"})


@MOMENTS.found_by
def find_moments(view: ModelInfo) -> Callable[[ir.Graph], Moments]:
    """Return the function that finds the moments of one graph."""
    return lambda graph: match_graph(Canonical(view), graph)[0]


@NORMS.found_by
def find_norms(view: ModelInfo) -> tuple[NormSite, ...]:
    """Return every norm of the main graph and of all bodies, one site each, in node order."""
    spelled = [*decomposed_sites(view), *dyt_sites(view)]
    taken = {node for site in spelled for node in site.nodes}
    whole = [op_site(view, node) for node in view.nodes() if node not in taken]
    sites = [*spelled, *(with_affine(view, site) for site in whole if site is not None)]
    subtracted = (with_subtraction(view, site) for site in sites)
    found = apart([with_equal_constants(view, site) for site in subtracted])
    return tuple(sorted(found, key=lambda site: view.order[site.nodes[-1]]))


def apart(sites: Sequence[NormSite]) -> Iterator[NormSite]:
    """Yield norms from which nothing escapes that only their twins read, but x - mean(x).

    Were one of them an operator, the others would keep the nodes that they share.  Of x - mean(x)
    they may be RMSNorms that are folded already: one centring, inserted for all of them.
    """
    owners: dict[ir.Node, list[NormSite]] = defaultdict(list)
    for site in sites:
        for node in site.nodes:
            owners[node].append(site)
    for site in sites:
        centred = _with_casts(site)
        left = [
            value
            for value in site.escaping
            if value in centred or not _is_read_by_twins(value, site, owners)
        ]
        yield replace(site, escaping=tuple(left))


def _with_casts(site: NormSite) -> set[ir.Value]:
    """Return the values that are x - mean(x), in any type: rounded to half, and widened again."""
    found = set(site.centred)
    for node in site.nodes:  # in topological order
        if operator(node) == "Cast" and node.inputs[0] in found:
            found |= set(node.outputs)
    return found


def _is_read_by_twins(
    value: ir.Value, site: NormSite, owners: Mapping[ir.Node, Sequence[NormSite]]
) -> bool:
    """Whether only norms of the same input and fiber read a value within a norm."""
    readers = [owners.get(use.node, ()) for use in value.uses()]
    return not value.is_graph_output() and all(
        any(owner.input is site.input and owner.fiber == site.fiber for owner in each)
        for each in readers
    )


def with_equal_constants(view: ModelInfo, site: NormSite) -> NormSite:
    """Return the norm, refused if it subtracts the mean of constants that are all equal.

    Then x - mean(x) is 0 up to the roundings of the mean, which 1 / sqrt(epsilon) amplifies: no
    bound on roundings separates them from the result.
    """
    array = view.array(site.input) if site.subtracts_mean and site.refusal is None else None
    if array is None or array.size == 0:
        return site
    if not np.array_equal(array.max(axis=site.fiber.axes), array.min(axis=site.fiber.axes)):
        return site
    sentence = f"norm '{site.name}' reads equal constants: its result is only roundings"
    refusal = Refusal(RefusalCode.NOT_WORTH, sentence, (node_label(site.nodes[-1]),))
    return replace(site, refusal=refusal)


def with_affine(view: ModelInfo, site: NormSite) -> NormSite:
    """Return a norm of one operator that multiplies, and then adds, one number per channel.

    The same site results as of a norm that is spelled out.
    """
    if site.form is not NormForm.OP or site.last.op_type not in WITHOUT_AFFINE:
        return site
    product = _with_constant(view, site, site.output, "Mul")
    if product is None:
        return site
    node, gamma = product
    found = replace(
        site,
        form=NormForm.DECOMPOSED,
        output=node.outputs[0],
        nodes=(*site.nodes, node),
        gamma=gamma,
    )
    total = _with_constant(view, site, found.output, "Add")
    if total is None:
        return found
    node, beta = total
    return replace(found, output=node.outputs[0], nodes=(*found.nodes, node), beta=beta)


def _with_constant(
    view: ModelInfo, site: NormSite, value: ir.Value, op_type: str
) -> tuple[ir.Node, Array] | None:
    """Return the only reader of a value, and the constant along the norm's axes that it applies."""
    node = only_reader(value)
    if node is None or operator(node) != op_type or node.graph is not site.last.graph:
        return None
    array = view.wide_array(node.inputs[1 - list(node.inputs).index(value)])
    shape, rank = view.shape(value), view.rank(node.outputs[0])
    if array is None or shape is None or rank != len(shape) or not np.all(np.isfinite(array)):
        return None
    offset = len(shape) - array.ndim
    along = all(n == 1 or axis + offset in site.fiber.axes for axis, n in enumerate(array.shape))
    return (node, array) if along else None


@CENTRINGS.found_by
def find_centrings(info: ModelInfo) -> tuple[BareCentring, ...]:
    """Return every subtraction of a mean from an activation that no norm contains, in order."""
    taken = {node for site in NORMS.of(info) for node in site.nodes}
    found = []
    for node in info.nodes():
        if node in taken or not node.outputs or info.is_dead(node):
            continue
        nodes, fiber = subtraction(info, node) or ((), None)
        x = node.inputs[0] if nodes else None
        if x is None or fiber is None or info.tensor(x) is not None:
            continue
        nodes = _with_widening(nodes, x)
        x, y = nodes[0].inputs[0] or x, nodes[-1].outputs[0]
        found.append(BareCentring(node_label(nodes[-1]), x, y, fiber, fiber.size, nodes))
    return tuple(found)


def _with_widening(nodes: tuple[ir.Node, ...], x: ir.Value) -> tuple[ir.Node, ...]:
    """Return the nodes of x - mean(x) with the Casts around them, from half and back.

    So a call of ours is spelled out in half types.
    """
    wide, back = producer_of(x), only_reader(nodes[-1].outputs[0])
    if wide is None or back is None or not operator(wide) == operator(back) == "Cast":
        return nodes
    within = all(use.node in nodes for use in x.uses()) and not x.is_graph_output()
    half = wide.inputs[0]
    if half is None or half.dtype not in HALVES or half.dtype is not back.outputs[0].dtype:
        return nodes
    return (wide, *nodes, back) if within and wide.graph is back.graph else nodes


def with_subtraction(view: ModelInfo, site: NormSite) -> NormSite:
    """Return a LayerNorm extended by the upstream subtraction of its mean, unless shared.

    One whose epsilon is outside of the root has no form without its mean, and is left as it is.
    """
    node = producer_of(site.input)
    plain = site.kind is NormKind.LAYER_NORM and not site.escaping and site.refusal is None
    plain = plain and (site.form is NormForm.DECOMPOSED or site.epsilon_mode is EpsilonMode.INSIDE)
    if node is None or not plain or not _is_read_within(site):
        return site
    found = subtraction(view, node)
    alone = found is not None and all(is_read_once(each.outputs[0]) for each in found[0][:-1])
    x = None if not alone or found is None else node.inputs[0]
    if x is None or found is None or found[1] != site.fiber:
        return site
    # An operator has no value x - mean(x) inside that its own root could read instead.
    nodes = (*found[0], *site.nodes)
    return replace(site, input=x, nodes=nodes, form=NormForm.DECOMPOSED)


def subtraction(view: ModelInfo, node: ir.Node) -> tuple[tuple[ir.Node, ...], Fiber] | None:
    """Return the nodes of x - mean(x), with the result last, and the fiber of the mean."""
    transfer = transfer_of(node)
    if isinstance(transfer, Centring):
        fiber = transfer.fiber(view, node)
        return None if fiber is None else ((node,), fiber)
    found = mean_subtracted_by(view, node)
    return None if found is None else ((found[0], node), found[1])


def _is_read_within(site: NormSite) -> bool:
    """Whether the norm is the only reader of its input."""
    inside = all(use.node in site.nodes for use in site.input.uses())
    return inside and not site.input.is_graph_output()


def streams(info: ModelInfo, sites: Iterable[NormSite]) -> list[int]:
    """Number the stream that each norm reads, from 0 in the order of their first norms.

    A sum continues the streams of its operands of the same shape; so does an operator that keeps
    all elements. A norm, a linear layer and every other operator start a new one. The numbers are
    only for display: no decision depends on them.
    """
    parents: dict[ir.Value, ir.Value] = {}

    def find(value: ir.Value) -> ir.Value:
        passed = []
        while (parent := parents.get(value)) is not None:
            passed.append(value)
            value = parent
        parents.update(dict.fromkeys(passed, value))  # a stream may be as long as the model
        return value

    for node in info.nodes():
        for operand in _continued(info, node):
            old, new = find(operand), find(node.outputs[0])
            if old is not new:
                parents[old] = new
    numbers: dict[ir.Value, int] = {}
    return [numbers.setdefault(find(site.input), len(numbers)) for site in sites]


def _continued(info: ModelInfo, node: ir.Node) -> list[ir.Value]:
    """Return the operands whose stream continues in the first output."""
    if node.domain:
        return []
    operands = [value for value in node.inputs if value is not None]
    if facets.stands_before_a_weight(row_of(node)):
        return operands[:1]
    if node.op_type not in _SUMS:
        return []
    shape = info.shape(node.outputs[0])
    return [
        value
        for value in operands
        if info.tensor(value) is None and shape is not None and info.shape(value) == shape
    ]
