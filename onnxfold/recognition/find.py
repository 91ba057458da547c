"""All norms of a model, in topological order; those of one value may share their statistics."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from onnxfold.graph import ModelInfo, operator
from onnxfold.norms import NORMS, NormSite
from onnxfold.norms.second_moments import MOMENTS, Moments
from onnxfold.recognition.algebra import Canonical, match_graph
from onnxfold.recognition.decomposed import decomposed_sites
from onnxfold.recognition.dyt import dyt_sites
from onnxfold.recognition.equal_constants import with_equal_constants
from onnxfold.recognition.norm_operators import op_site
from onnxfold.recognition.scaled_operators import with_affine
from onnxfold.recognition.subtractions import with_subtraction


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
