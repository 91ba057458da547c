"""Decide which norms defer their scale, and where it is multiplied: a minimum cut for each.

z_v = 1 if v is computed without s, a_v = 1 if v itself is not needed. The cut has these edges (an
edge from a to b of capacity k costs k when a = 1 and b = 0):

    source -> z_w   infinite, for the results w of the first linear layers: what deferral is
    z_w -> z_v      infinite, for every input v that hands s on to w
    z_v -> a_v      what it costs to multiply s there: the elements of v, and one operator
    a_v -> z_w      infinite, for every w that s is handed on to from v
    a_v -> b_t, c_t -> z_w     infinite, in place of that where w is linear in factors t too
    b_t -> c_t      what it costs to multiply s to t, once for all w
    a_v -> sink     infinite, where somebody needs v itself
"""

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnxfold.graph import ModelInfo, node_label, operator
from onnxfold.norms import NormSite
from onnxfold.norms.quotients import cancels, refuse_constant, refuse_form
from onnxfold.norms.site import AffinePart, NormKind
from onnxfold.operators import facets
from onnxfold.operators.families.uniform import uniform
from onnxfold.operators.table import row_of
from onnxfold.passes.base import Settings
from onnxfold.passes.deferral.flow import Flow, Table, flow_of, sites_of
from onnxfold.passes.deferral.plan import DeferralPlan, DeferredNorm, ScaledTable, UnscaledValue
from onnxfold.passes.deferral.readers import centred_readers, halved_readers
from onnxfold.passes.deferral.row_scale import RowScale
from onnxfold.passes.gamma_tables import gamma_tables
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.streams.mincut import INFINITE, minimum_cut
from onnxfold.target import Target
from onnxfold.targets.costs import is_wanted

_ROWS = 128  # of one run: with fewer, products cost little compared with loading the weights
_Factor = tuple[ir.Value | None, ir.Value | None, RowScale]
_DEFERRED = (NormKind.RMS_NORM, NormKind.L2_NORM, NormKind.LAYER_NORM)


def decide(info: ModelInfo, settings: Settings) -> DeferralPlan:
    """Return which norms are deferred; a value is computed without one scale at most."""
    sites = sites_of(info)
    free = {site.input: site for site in sites if cancels(site)}
    norms: list[DeferredNorm] = []
    refusals: list[tuple[str, Refusal]] = []
    taken: set[ir.Value] = set()
    for site in sites:
        if site.output in taken or site.kind not in _DEFERRED:
            continue
        found = _deferred(info, site, settings, free, taken)
        if isinstance(found, Refusal):
            refusals.append((info.ref(site.output), found))
            continue
        norm, touched = found
        norms.append(norm)
        taken |= touched
        free = {value: other for value, other in free.items() if other.output not in taken}
    return DeferralPlan(tuple(norms), tuple(refusals))


def _deferred(
    info: ModelInfo,
    site: NormSite,
    settings: Settings,
    free: dict[ir.Value, NormSite],
    taken: set[ir.Value],
) -> tuple[DeferredNorm, set[ir.Value]] | Refusal:
    """Return the deferral of a norm and the values that it affects, or why it stays."""
    refusal = _refuse_site(info, site, settings)
    if refusal is not None:
        return refusal
    flow = flow_of(info, site, free)
    first = _first_layers(flow, site.output)
    refusal = _refuse_flow(site, flow, first, taken)
    if refusal is not None:
        return refusal
    found = centred_readers(info, site, flow, settings) if site.subtracts_mean else ((), None)
    if isinstance(found, Refusal):
        return found
    centred, bound = found
    half = site.output.dtype is ir.DataType.FLOAT16
    halved = halved_readers(info, site, flow, settings) if half else ()
    if isinstance(halved, Refusal):
        return halved
    held = _cut(site, flow, first, settings.target)
    norm = replace(_norm(info, site, flow, held), centred=centred, halved=halved, bound=bound)
    if not half:  # products of tables and gammas may exceed their separate ranges
        norm = _with_gammas(info, norm, flow, _cancelled(site, flow, held))
    if not is_wanted(settings):
        sentence = f"no gain was measured for the target {settings.target}"
        return Refusal(RefusalCode.NOT_WORTH, sentence, (site.name,))
    gone = {other.output for other in _cancelled(site, flow, held)}
    read = {node.outputs[0] for node in _tables(site, flow, held)}
    return norm, {site.output, *held, *gone, *read}


def _refuse_site(info: ModelInfo, site: NormSite, settings: Settings) -> Refusal | None:
    if settings.excludes(site.name):
        return Refusal(RefusalCode.EXCLUDED, "excluded by --exclude", (site.name,))
    refusal = settings.refuse_unproved(info.ref(site.output)) or refuse_form(site)
    refusal = refusal or refuse_constant(info, site)
    if refusal is not None:
        return refusal
    if site.beta is not None or not _is_one(info, site.gamma):
        sentence = "its gamma or beta stays, so that it is more than one number per row"
        return Refusal(RefusalCode.VARIES_ALONG_FIBER, sentence, (site.name,))
    shape = info.shape(site.output)
    if site.factor <= 0 or shape is None or shape != info.shape(site.input):
        return Refusal(RefusalCode.UNKNOWN_SHAPE, "its shape is not known", (site.name,))
    return None


def _is_one(info: ModelInfo, gamma: AffinePart) -> bool:
    if gamma is None or isinstance(gamma, ir.Value):
        return gamma is None or uniform(info, gamma) == 1.0
    return bool(np.all(gamma == 1))


def _first_layers(flow: Flow, start: ir.Value) -> set[ir.Value]:
    """Return the results of the linear layers that read y, through other carriers of s."""
    before, found = {start}, set[ir.Value]()
    for node, outputs in flow.handed.items():
        if before.isdisjoint(node.inputs):
            continue
        (found if row_of(node).layer is not None else before).update(outputs)
    return found


def _refuse_flow(
    site: NormSite, flow: Flow, first: set[ir.Value], taken: set[ir.Value]
) -> Refusal | None:
    if site.output in flow.ended:
        ends = (node for node in site.output.consumers() if node not in flow.handed)
        blamed = [_says(node) for node in ends if facets.reads_elements(row_of(node))]
        sentence = f"it must be computed for {', '.join(blamed) or 'an output of the graph'}"
        return Refusal(RefusalCode.EXACT_READER, sentence, (site.name,))
    if not first:
        sentence = "no downstream linear layer can omit its scale"
        return Refusal(RefusalCode.NOT_WORTH, sentence, (site.name,))
    if not taken.isdisjoint(flow.scales):
        sentence = "its scale would combine with another deferred scale"
        return Refusal(RefusalCode.NOT_WORTH, sentence, (site.name,))
    return None


def _says(node: ir.Node) -> str:
    return f"'{node_label(node)}' ({operator(node)})"


def _price(width: int, target: Target) -> int:
    """Return the cost of a product of this many elements per row, in elements of ``_ROWS``."""
    return _ROWS * width + target.traits.product_elements


def _cut(site: NormSite, flow: Flow, first: set[ir.Value], target: Target) -> dict[ir.Value, bool]:
    """Return the values that are computed without s, and whether s is multiplied there."""
    numbers = {value: 2 + 2 * number for number, value in enumerate(flow.scales)}
    edges = [(0, numbers[value], INFINITE) for value in first]
    edges.append((0, numbers[site.output] + 1, INFINITE))  # the norm itself is not computed
    for value, z in numbers.items():
        edges.append((z, z + 1, _price(flow.widths[value], target)))
        if value in flow.ended:
            edges.append((z + 1, 1, INFINITE))
    before = _table_edges(flow, numbers, edges, target)
    for node, outputs in flow.handed.items():
        inputs = [v for v in node.inputs if v is not None and flow.hands_on(v)]
        for z in (numbers[output] for output in outputs):
            edges += ((z, numbers[value], INFINITE) for value in inputs)
            behind = before.get(node, [z])
            edges += ((numbers[value] + 1, b, INFINITE) for value in inputs for b in behind)
            edges += ((z, numbers[other], INFINITE) for other in outputs)
    _, ones = minimum_cut(edges, 0, 1)
    chosen = [value for value, z in numbers.items() if z in ones and value is not site.output]
    return {value: numbers[value] + 1 not in ones for value in chosen}


def _table_edges(
    flow: Flow, numbers: dict[ir.Value, int], edges: list[tuple[int, int, int]], target: Target
) -> dict[ir.Node, list[int]]:
    """Add b_t -> c_t and c_t -> z_w.

    Return b_t for each node of w, which replaces z_w after a_v. return b_t for each node of w,
    which replaces z_w after a_v.
    """
    first = 2 + 2 * len(numbers)
    known: dict[_Factor, int] = {}
    before: dict[ir.Node, list[int]] = {}
    for node, table in flow.tables.items():
        for factor in _factors(node, table):
            if factor not in known:
                known[factor] = first + 2 * len(known)
                edges.append((known[factor], known[factor] + 1, _price(table.width, target)))
            edges.append((known[factor] + 1, numbers[node.outputs[0]], INFINITE))
            before.setdefault(node, []).append(known[factor])
    return before


def _norm(info: ModelInfo, site: NormSite, flow: Flow, held: dict[ir.Value, bool]) -> DeferredNorm:
    kept = tuple(
        UnscaledValue(info.ref(value), flow.scales[value], at, value in flow.biased)
        for value, at in held.items()
    )
    cancelled = tuple(
        (info.ref(other.output), scale) for other, scale in _cancelled(site, flow, held).items()
    )
    tables = _tables(site, flow, held)
    scaled = tuple(
        ScaledTable(info.ref(node.outputs[0]), table.indices, table.scale)
        for node, table in tables.items()
    )
    spent = sum(flow.widths[value] for value, at in held.items() if at)
    each = ((f, table.width) for node, table in tables.items() for f in _factors(node, table))
    spent += sum(dict(each).values())
    saved = flow.widths[site.output] - spent
    ref = info.ref(site.output)
    return DeferredNorm(site.name, ref, kept, cancelled, saved, tables=scaled)


def _cancelled(site: NormSite, flow: Flow, held: dict[ir.Value, bool]) -> dict[NormSite, RowScale]:
    """Return the norms that read the norm's result, or a value computed without s."""
    without = {site.output, *held}
    return {other: scale for other, scale in flow.cancelled.items() if other.input in without}


def _with_gammas(
    info: ModelInfo,
    norm: DeferredNorm,
    flow: Flow,
    cancelled: dict[NormSite, RowScale],
) -> DeferredNorm:
    """Move gammas of norms that cancel the scale into tables if that saves multiplications."""
    gammas, saved = [], norm.multiplications_saved
    for other, scale in cancelled.items():
        found = gamma_tables(info, other, scale.rows)
        if found is not None:
            gammas.append(info.ref(other.output))
            saved += flow.widths[other.input] - found.width
    return replace(norm, gammas=tuple(gammas), multiplications_saved=saved)


def _tables(site: NormSite, flow: Flow, held: dict[ir.Value, bool]) -> dict[ir.Node, Table]:
    """Return the products that receive s from their other factor."""
    without = {site.output, *(value for value, multiplied in held.items() if not multiplied)}
    return {
        node: table
        for node, table in flow.tables.items()
        if node.outputs[0] not in held and not without.isdisjoint(node.inputs)
    }


def _factors(node: ir.Node, table: Table) -> list[_Factor]:
    """Return the factors, which several nodes may read: at which positions, and the factor."""
    rotary = row_of(node).rotates
    positions = None if rotary is None else [*node.inputs, None][rotary[2]]
    return [(node.inputs[index], positions, table.scale) for index in table.indices]
