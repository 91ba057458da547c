"""All norms of a model, in topological order."""

from weakref import WeakKeyDictionary

from onnxfold.graph import ModelInfo
from onnxfold.norms.decomposed import decomposed_sites
from onnxfold.norms.dyt import dyt_sites
from onnxfold.norms.of_constants import with_equal_constants
from onnxfold.norms.ops import op_site
from onnxfold.norms.site import NormSite
from onnxfold.norms.subtracted_mean import with_subtraction
from onnxfold.norms.twins import apart

_FOUND: WeakKeyDictionary[ModelInfo, tuple[NormSite, ...]] = WeakKeyDictionary()


def find_norms(view: ModelInfo) -> tuple[NormSite, ...]:
    """Return every norm of the main graph and of all bodies, one site each, in topological order.

    They are found once for each version of a model: a view belongs to one version.
    """
    if view not in _FOUND:
        _FOUND[view] = _find(view)
    return _FOUND[view]


def _find(view: ModelInfo) -> tuple[NormSite, ...]:
    spelled = [*decomposed_sites(view), *dyt_sites(view)]
    taken = {node for site in spelled for node in site.nodes}
    whole = [op_site(view, node) for node in view.nodes() if node not in taken]
    sites = [*spelled, *(site for site in whole if site is not None)]
    subtracted = (with_subtraction(view, site) for site in sites)
    found = apart([with_equal_constants(view, site) for site in subtracted])
    return tuple(sorted(found, key=lambda site: view.order[site.nodes[-1]]))
