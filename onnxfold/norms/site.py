"""NormSite: the common record of all forms of normalization; later stages do not see the form.

BareCentring is x - mean(x) that no norm contains, as in dueling heads:

    Q(s, a) = V(s) + A(s, a) - mean of A(s, a) over a
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import onnx_ir as ir

from onnxfold.graph import ModelInfo, keeps_dims, operator, whole_axes
from onnxfold.graph.constants import Array
from onnxfold.graph.edit import Editor
from onnxfold.graph.fiber import Fiber
from onnxfold.graph.operands import known_producer, producer_of
from onnxfold.refusal import Refusal

AffinePart = ir.Value | Array | None  # gamma or beta
# The norms that are one operator: standard, ONNX Runtime's, and onnxfold's own.
NORM_OPERATORS = frozenset(
    {
        ("", "GroupNormalization"),
        ("", "InstanceNormalization"),
        ("", "LayerNormalization"),
        ("", "LpNormalization"),
        ("", "MeanVarianceNormalization"),
        ("", "RMSNormalization"),
        ("", "SimplifiedLayerNormalization"),
        ("com.microsoft", "GroupNorm"),
        ("com.microsoft", "LayerNormalization"),
        ("com.microsoft", "SimplifiedLayerNormalization"),
        ("onnxfold", "LayerNorm"),
        ("onnxfold", "LayerNormAffine"),
        ("onnxfold", "LayerNormScale"),
        ("onnxfold", "RMSNorm"),
        ("onnxfold", "RMSNormAffine"),
        ("onnxfold", "RMSNormScale"),
    }
)
# Those that have no operands for gamma and beta.
DEFAULT_EPSILON = 9.999999747378752e-06
"""1e-5 as attributes hold it, which are float32; of the operators outside domain onnxfold."""
WITHOUT_AFFINE = frozenset({"LpNormalization", "MeanVarianceNormalization"})
EMBEDDED = "onnxfold.embedded"  # a mark on the norm of a former EmbedLayerNormalization


class NormKind(StrEnum):
    """The statistic that is computed along the fiber."""

    LAYER_NORM = "layer_norm"
    RMS_NORM = "rms_norm"
    GROUP_NORM = "group_norm"
    INSTANCE_NORM = "instance_norm"
    L2_NORM = "l2_norm"
    DYT = "dyt"


class NormForm(StrEnum):
    """The spelling in the model: one standard operator, several, or a vendor's operator."""

    OP = "op"
    DECOMPOSED = "decomposed"
    CONTRIB = "contrib"


class EpsilonMode(StrEnum):
    """The place of epsilon: sqrt(v + e), sqrt(v) + e, sqrt(max(v, e)), max(sqrt(v), e)."""

    INSIDE = "inside"
    OUTSIDE = "outside"
    MAX_INSIDE = "max_inside"
    MAX_OUTSIDE = "max_outside"


@dataclass(frozen=True, slots=True, eq=False)
class NormSite:
    """One normalization y = (x - mean(x)) / sqrt(factor * mean square + epsilon) * gamma + beta.

    ``input`` is x, ``output`` is y, ``fiber`` (in x's coordinates) the elements over which the
    statistics are computed, ``size`` their number. ``nodes`` are all nodes that compute y from x,
    in topological order; ``escaping`` are the values of these nodes that something other than norms
    of the same x reads. gamma and beta are values of the graph, or arrays where the form folds
    several constants into one; None means absent (or, for an operator, all ones or all zeros). They
    broadcast with x as in numpy, unless ``affine_axis`` is set: then they are vectors over this
    axis of x, with ``affine_repeat`` neighbors per element. ``centred`` are the values x - mean(x)
    of a decomposed form. ``rounds_before_affine``: the quotient is rounded to the type of x before
    gamma. ``moves_by_rounding``: replacing the norm by one operator changes results by more than
    the order of a few operations, as for a variance computed as E[x^2] - E[x]^2. For DyT, y =
    tanh(factor * x) * gamma + beta. A ``size`` of 0 is unknown; then there is a ``refusal``.
    """

    name: str
    kind: NormKind
    form: NormForm
    input: ir.Value
    output: ir.Value
    fiber: Fiber
    size: int
    epsilon: float
    nodes: tuple[ir.Node, ...]
    epsilon_mode: EpsilonMode = EpsilonMode.INSIDE
    factor: float = 1.0
    gamma: AffinePart = None
    beta: AffinePart = None
    affine_axis: int | None = None
    affine_repeat: int = 1
    centred: tuple[ir.Value, ...] = ()
    escaping: tuple[ir.Value, ...] = ()
    compute_dtype: ir.DataType = ir.DataType.FLOAT
    rounds_before_affine: bool = False
    moves_by_rounding: bool = False
    refusal: Refusal | None = field(default=None)

    @property
    def subtracts_mean(self) -> bool:
        """Whether the statistics are taken of x - mean(x), so that they ignore a shift of x."""
        return self.kind in (NormKind.LAYER_NORM, NormKind.GROUP_NORM, NormKind.INSTANCE_NORM)

    @property
    def last(self) -> ir.Node:
        """The node that computes the result."""
        return known_producer(self.output)

    def within(self, edit: Editor) -> "NormSite":
        """Return the same norm in the edited model."""
        value = edit.value

        def part(given: ir.Value | Array | None) -> Any:
            return value(given) if isinstance(given, ir.Value) else given

        return replace(
            self,
            input=value(self.input),
            output=value(self.output),
            nodes=tuple(edit.node(node) for node in self.nodes),
            gamma=part(self.gamma),
            beta=part(self.beta),
            centred=tuple(value(each) for each in self.centred),
            escaping=tuple(value(each) for each in self.escaping),
        )


@dataclass(frozen=True, slots=True, eq=False)
class BareCentring:
    """y = x - mean(x) along a fiber of ``size`` elements; ``nodes`` compute it, the last one y."""

    name: str
    input: ir.Value
    output: ir.Value
    fiber: Fiber
    size: int
    nodes: tuple[ir.Node, ...]

    def within(self, edit: Editor) -> "BareCentring":
        """Return the same centring in the model that is edited."""
        nodes = tuple(edit.node(node) for node in self.nodes)
        values = edit.value(self.input), edit.value(self.output)
        return BareCentring(self.name, *values, self.fiber, self.size, nodes)


def mean_subtracted_by(view: ModelInfo, node: ir.Node) -> tuple[ir.Node, Fiber] | None:
    """Return the ReduceMean whose result a Sub subtracts from its input, and its fiber."""
    if operator(node) != "Sub":
        return None
    x, mean = node.inputs
    reducer = producer_of(mean)
    if x is None or reducer is None or operator(reducer) != "ReduceMean":
        return None
    if reducer.inputs[0] is not x or not keeps_dims(reducer):
        return None
    shape, axes = view.shape(x), view.axes(reducer)
    fiber = whole_axes(shape, [axis % len(shape) for axis in axes]) if shape and axes else None
    return None if fiber is None else (reducer, fiber)


def cast_of_centred(view: ModelInfo, site: NormSite) -> ir.Node | None:
    """Return the Cast that a norm reads if it converts x - mean(x) over the norm's fiber."""
    cast = producer_of(site.input)
    if cast is None or operator(cast) != "Cast":
        return None
    centring = producer_of(cast.inputs[0])
    found = None if centring is None else mean_subtracted_by(view, centring)
    return cast if found is not None and found[1] == site.fiber else None
