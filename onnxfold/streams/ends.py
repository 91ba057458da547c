"""Where the way back from a subtracted mean ends: values that cannot be centered, and why."""

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxfold.graph.model_facts import Fact
from onnxfold.refusal import Refusal

ENDS: Fact[Mapping[ir.Value, Sequence[Refusal]]] = Fact("ends of streams")
"""Of all norms that subtract a mean, and of bare centerings."""
