"""All norms of a model, in topological order."""

from __future__ import annotations

from onnxfold.graph import GraphView
from onnxfold.norms.ops import op_site
from onnxfold.norms.site import NormSite

__all__ = ["find_norms"]


def find_norms(view: GraphView) -> tuple[NormSite, ...]:
    """Return every norm of the main graph and of all bodies, one site each, inputs first."""
    sites = (op_site(view, node) for node in view.nodes())
    return tuple(site for site in sites if site is not None)
