"""Decomposed norms by algebra: what each value is in terms of one tensor and its moments.

Nothing here changes the graph or matches a template.  ``canonical`` sees through what has no
effect; ``forms`` are the expressions; ``moments`` and ``operators`` (rules A and B), ``products``,
``sums`` and ``layout`` (rule C) say what an operator does to them; ``matcher`` applies them to
every node once.
"""

from onnxfold.norms.algebra.canonical import Canonical
from onnxfold.norms.algebra.coefficient import Coefficient
from onnxfold.norms.algebra.forms import AffineForm, Denominator, Moment, MomentAxes
from onnxfold.norms.algebra.graph_state import Algebra
from onnxfold.norms.algebra.matcher import Match, match_graph

__all__ = [
    "AffineForm",
    "Algebra",
    "Canonical",
    "Coefficient",
    "Denominator",
    "Match",
    "Moment",
    "MomentAxes",
    "match_graph",
]
