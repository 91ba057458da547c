"""Norms of one value over the same elements, which may share their statistics."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from onnxfold.graph import operator
from onnxfold.norms.site import NormSite


def apart(sites: Sequence[NormSite]) -> Iterator[NormSite]:
    """Yield norms without the escaping values that only their twins read, except x - mean(x).

    If one of them became an operator, the others would keep the shared nodes. Readers of x -
    mean(x) may be RMSNorms that are already folded: one centering, inserted for all of them.
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
    """Return the values that are x - mean(x) in any type: rounded to half, and widened again."""
    found = set(site.centred)
    for node in site.nodes:  # in topological order
        if operator(node) == "Cast" and node.inputs[0] in found:
            found |= set(node.outputs)
    return found


def _is_read_by_twins(
    value: ir.Value, site: NormSite, owners: Mapping[ir.Node, Sequence[NormSite]]
) -> bool:
    """Whether only norms of the same input and fiber read a value inside a norm."""
    readers = [owners.get(use.node, ()) for use in value.uses()]
    return not value.is_graph_output() and all(
        any(owner.input is site.input and owner.fiber == site.fiber for owner in each)
        for each in readers
    )
