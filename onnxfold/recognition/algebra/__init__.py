"""Decomposed norms by algebra: each value in terms of one tensor and its moments.

This package neither changes the graph nor matches templates. ``canonical`` skips operators without
effect; ``forms`` are the expressions; ``moments``, ``products`` and ``reshaped_forms`` define the
effect of an operator on them; ``matcher`` applies them to every node once.
"""

from onnxfold.recognition.algebra.canonical import Canonical
from onnxfold.recognition.algebra.forms import AffineForm, Coefficient, Denominator
from onnxfold.recognition.algebra.graph_state import Algebra
from onnxfold.recognition.algebra.matcher import Match, match_graph

__all__ = [
    "AffineForm",
    "Algebra",
    "Canonical",
    "Coefficient",
    "Denominator",
    "Match",
    "match_graph",
]
