"""Targets: which nodes stand for a norm or a centring; returns them, changes nothing.

portable  calls of functions of domain onnxfold with bodies in standard operators: every runtime
          runs the body, ONNX Runtime with the onnxfold library runs the kernel of that name
onnx      standard operators only: the same bodies, inlined
ort       SimplifiedLayerNormalization, the contrib operator of ONNX Runtime
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from onnxfold.errors import InvariantError
from onnxfold.graph import Fiber, ModelInfo, node_label
from onnxfold.graph.constants import weight_value
from onnxfold.norms.site import EpsilonMode, NormForm, NormKind, NormSite
from onnxfold.operators.functions import (
    DOMAIN,
    INLINED,
    MAX_OPSET,
    MIN_OPSET,
    SIGNATURES,
    Affine,
    Statistics,
    call,
    function,
    op_name,
)
from onnxfold.options import Target
from onnxfold.passes.centring.apply import Lowered
from onnxfold.passes.costs import Costs
from onnxfold.passes.lower.parameters import AffinePart, Operands, Parameters
from onnxfold.refusal import Refusal, RefusalCode

__all__ = ["TargetLowering", "costs_of"]

_STATISTICS = {NormKind.LAYER_NORM: Statistics.LAYER, NormKind.RMS_NORM: Statistics.RMS}
_FUNCTION_TYPES = frozenset(
    {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}
)
_CASTLIKE_SINCE = 15


# Of benchmarks/kernels.py, float32, 768 elements per row, rounded; only their ratios count.
# Operations rms and layer, center (the ReduceMean and Sub that it is spelled as) and bias (the Add
# of a vector) of ONNX Runtime.  A portable file runs with the kernels, where the two norms and the
# centring take about the same time, or without them, where a LayerNorm takes nearly twice as long
# as an RMSNorm: its table is that of the operators, in units of the RMSNorm, with the kernel's
# centring.
_COSTS = {
    Target.PORTABLE: Costs(layer_norm=170, rms_norm=100, bias=0, centring=100),
    Target.ONNX: Costs(layer_norm=340, rms_norm=190, bias=100, centring=250),
    Target.ORT: Costs(layer_norm=340, rms_norm=190, bias=100, centring=250),
}


def costs_of(target: Target) -> Costs:
    """Return the cost table that plans for ``target`` use."""
    return _COSTS[target]


class TargetLowering:
    """Lowers the norms of one model for one target."""

    def __init__(self, view: ModelInfo, target: Target, sites: Iterable[NormSite] = ()):
        self._view = view
        self._target = target
        self._parameters = Parameters(view, target)
        self._types = {site.input.dtype for site in sites}
        self._bodies: dict[tuple[str, ir.DataType], ir.Function] = {}

    def refuse_rms(self, site: NormSite) -> Refusal | None:
        """Say why a LayerNorm has no cheaper RMS form on this target, or None."""
        if site.refusal is not None:
            return site.refusal
        if self._can_bypass(site):
            return None
        return self._refuse_call(site)

    def _can_bypass(self, site: NormSite) -> bool:
        """Whether the spelled norm can read x instead of x - mean(x), whatever its spelling."""
        centred = site.centred
        if site.form is not NormForm.DECOMPOSED or centred is None or centred.is_graph_output():
            return False
        if centred.dtype != site.input.dtype:
            return False
        return _mean_has_one_reader(site, centred)

    def _refuse_call(self, site: NormSite) -> Refusal | None:
        label = (node_label(site.nodes[-1]),)
        if site.leaks:
            names = ", ".join(leak.name or "" for leak in site.leaks)
            return Refusal(
                RefusalCode.STATISTICS_READ, f"its statistics ({names}) are read by others", label
            )
        if site.epsilon_mode is not EpsilonMode.INSIDE or site.factor != 1.0:
            return Refusal(
                RefusalCode.NO_CHEAPER_FORM,
                f"no operator has epsilon {site.epsilon_mode.value} with factor {site.factor:g}",
                label,
            )
        if self._trailing_axes(site) is None and self._blocks(site) is None:
            return Refusal(
                RefusalCode.NO_CHEAPER_FORM, "no operator normalises other than last axes", label
            )
        dtype = site.input.dtype
        opset = self._view.opset
        if dtype not in _FUNCTION_TYPES or dtype != site.output.dtype:
            return Refusal(
                RefusalCode.UNSUPPORTED_TYPE,
                f"no operator for {dtype} to {site.output.dtype}",
                label,
            )
        if not all(self._fits(part, dtype) for part in (site.gamma, site.beta)):
            return Refusal(
                RefusalCode.UNSUPPORTED_TYPE, f"its gamma or beta is no number of {dtype}", label
            )
        spelled = site.form is NormForm.DECOMPOSED
        rounded = float(np.float32(site.epsilon))
        if dtype is ir.DataType.DOUBLE and spelled and rounded != site.epsilon:
            sentence = f"epsilon {site.epsilon!r} fits no attribute, which are float32"
            return Refusal(RefusalCode.NO_CHEAPER_FORM, sentence, label)
        least = _least_opset(dtype)
        if not least <= opset <= MAX_OPSET:
            return Refusal(
                RefusalCode.NO_CHEAPER_FORM,
                f"opset {opset} is not among {least} to {MAX_OPSET}",
                label,
            )
        return None

    def _fits(self, part: AffinePart, dtype: ir.DataType | None) -> bool:
        """Whether gamma or beta keeps its numbers in the type of x, in which operators take it."""
        array = self._view.array(part) if isinstance(part, ir.Value) else part
        if isinstance(part, ir.Value) and array is None:
            return part.dtype == dtype
        if array is None or dtype is None or array.dtype == dtype.numpy():
            return True
        with np.errstate(all="ignore"):
            narrow = array.astype(dtype.numpy())
        return bool(np.array_equal(narrow.astype(array.dtype), array, equal_nan=True))

    def _trailing_axes(self, site: NormSite) -> int | None:
        """Return k where the fiber is the last k whole axes, else None."""
        rank = self._view.rank(site.input)
        axes = site.fiber.axes
        if rank is None or not site.fiber.whole or not axes:
            return None
        shape = self._view.shape(site.input) or ()
        # Axes of size 1 take no part in a fiber but may stand between those that do.
        between = [axis for axis in range(axes[0], rank) if axis not in axes]
        return rank - axes[0] if all(shape[axis] == 1 for axis in between) else None

    def _blocks(self, site: NormSite) -> tuple[int, int] | None:
        """Return (blocks, size) where the fiber is blocks of neighbours on the last axis."""
        rank = self._view.rank(site.input)
        if rank is None or len(site.fiber.blocks) != 1:
            return None
        (block,) = site.fiber.blocks
        if block.axis != rank - 1 or block.inner != 1 or block.whole or block.outer is None:
            return None
        return block.outer, block.size

    def rms_norm(self, site: NormSite, x: ir.Value) -> Lowered:
        """Return RMSNorm of ``x`` with the norm's gamma and beta."""
        if self._refuse_call(site) is None:
            blocks = self._blocks(site)
            if blocks is not None:
                return self._blocked_call(site, x, blocks)
            return self._call(site, Statistics.RMS, x)
        if site.centred is None or not self._can_bypass(site):
            raise InvariantError(f"norm '{site.name}' has no RMS form on target {self._target}")
        return Lowered((), ((site.centred, x),))

    def layer_norm(self, site: NormSite) -> Lowered | None:
        """Return one call for a norm that stays, where that is cheaper and exact."""
        statistics = _STATISTICS.get(site.kind)
        if statistics is None or not self.calls_in_place(site):
            return None
        return self._call(site, statistics, site.input)

    def calls_in_place(self, site: NormSite) -> bool:
        """Whether a norm that stays is given to a kernel, or made one operator out of several."""
        if site.kind not in _STATISTICS or site.refusal is not None:
            return False
        if self._refuse_call(site) is not None:
            return False
        if self._trailing_axes(site) is None:
            return False
        if site.form is NormForm.DECOMPOSED:
            if self._overload(site.input.dtype):
                return False  # the call would be spelled out again
            # Below these versions the operators would be spelled out again.
            since = {Statistics.LAYER: 17, Statistics.RMS: 23}[_STATISTICS[site.kind]]
            contrib = self._target is Target.ORT and site.kind is NormKind.RMS_NORM
            portable = self._target is Target.PORTABLE
            return portable or contrib or self._view.opset >= since
        node = site.nodes[-1]
        return self._target is Target.PORTABLE and (node.domain != DOMAIN or _lost_affine(site))

    def keep_affine(self, site: NormSite) -> Refusal | None:
        """Say why a norm keeps its gamma and beta, whoever could take them, or None.

        ONNX Runtime 1.31 makes one operator of a norm that is spelled out only with the Mul by
        gamma, and for LayerNorm the Add of beta, behind it: 0.4 against 0.9 ns per element.
        """
        if site.kind is NormKind.DYT or site.form is not NormForm.DECOMPOSED:
            return None
        if self.calls_in_place(site):
            return None
        sentence = "stays spelled out, and runtimes fuse it only with the product by gamma in it"
        label = (node_label(site.nodes[-1]),)
        return Refusal(RefusalCode.NO_CHEAPER_FORM, f"norm '{site.name}' {sentence}", label)

    def centring(self, value: ir.Value, fiber: Fiber) -> Lowered:
        """Return value - mean(value) as a call, or as two operators for other axes or types."""
        rank = self._view.rank(value) or 0
        trailing = fiber.axes == tuple(range(rank - len(fiber.axes), rank))
        called = value.dtype in _FUNCTION_TYPES
        if trailing and called and _least_opset(value.dtype) <= self._view.opset <= MAX_OPSET:
            name = op_name(statistics=Statistics.CENTER)
            overload = self._overload(value.dtype)
            node = call(name, [value], axes=len(fiber.axes), overload=overload)
            return self._named(value, (node,), node.outputs[0], f"{value.name}.centred", name)
        return self._plain_centring(value, fiber)

    def _plain_centring(self, value: ir.Value, fiber: Fiber) -> Lowered:
        initializers: tuple[ir.Value, ...] = ()
        if self._view.opset >= 18:
            axes = weight_value(f"{value.name}.centred.axes", np.array(fiber.axes, np.int64))
            mean = ir.node("ReduceMean", [value, axes], {"keepdims": 1})
            initializers = (axes,)
        else:
            mean = ir.node("ReduceMean", [value], {"axes": fiber.axes, "keepdims": 1})
        mean.outputs[0].name = f"{value.name}.mean"
        mean.outputs[0].type = value.type
        centred = ir.node("Sub", [value, mean.outputs[0]])
        output = centred.outputs[0]
        output.name, output.shape, output.type = f"{value.name}.centred", value.shape, value.type
        return Lowered((mean, centred), ((value, output),), initializers)

    def _call(self, site: NormSite, statistics: Statistics, x: ir.Value) -> Lowered:
        axes = self._trailing_axes(site) or 1
        affine = self._parameters.operands(site, statistics, axes)
        name = op_name(statistics=statistics, affine=affine.kind)
        first = call(
            name,
            [x, *affine.inputs],
            axes=axes,
            epsilon=site.epsilon,
            overload=self._overload(site.input.dtype),
        )
        if self._target is Target.ORT and statistics is Statistics.RMS:
            return self._contrib(site, x, affine, axes)
        nodes = [first]
        for op_type, operand in affine.after:
            nodes.append(ir.node(op_type, [nodes[-1].outputs[0], operand]))
        return self._finished(site, nodes, affine.initializers, name)

    def _blocked_call(self, site: NormSite, x: ir.Value, blocks: tuple[int, int]) -> Lowered:
        """Return Reshape, RMSNorm over the new last axis, Reshape back, gamma, beta."""
        leading = [0] * ((self._view.rank(site.input) or 1) - 1)  # 0 keeps a dimension
        split = weight_value(f"{x.name}.blocks", np.array([*leading, *blocks], np.int64))
        joined = weight_value(
            f"{x.name}.joined", np.array([*leading, blocks[0] * blocks[1]], np.int64)
        )
        made: list[ir.Value] = []
        apart = ir.node("Reshape", [x, split])
        norm, name = self._plain_rms(site, apart.outputs[0], blocks[1], made)
        nodes = [apart, norm, ir.node("Reshape", [norm.outputs[0], joined])]
        for op_type, part, role in (("Mul", site.gamma, "gamma"), ("Add", site.beta, "beta")):
            if part is not None:
                operand = self._parameters.as_value(site, part, role, made)
                nodes.append(ir.node(op_type, [nodes[-1].outputs[0], operand]))
        return self._finished(site, nodes, (split, joined, *made), name)

    def _plain_rms(
        self, site: NormSite, x: ir.Value, size: int, made: list[ir.Value]
    ) -> tuple[ir.Node, str | None]:
        """Return an RMSNorm of x over its last axis without affine, and its function's name."""
        made += self._parameters.ones(site, Statistics.RMS, (size,))
        if self._target is Target.ORT:
            attributes = {"axis": -1, "epsilon": site.epsilon, "stash_type": 1}
            return ir.node("SimplifiedLayerNormalization", [x, *made], attributes), None
        affine = Affine.SCALE if made else Affine.NONE
        name = op_name(statistics=Statistics.RMS, affine=affine)
        overload = self._overload(site.input.dtype)
        return call(name, [x, *made], epsilon=site.epsilon, overload=overload), name

    def _contrib(self, site: NormSite, x: ir.Value, affine: Operands, axes: int) -> Lowered:
        scale, *bias = affine.inputs
        attributes = {"axis": -axes, "epsilon": site.epsilon, "stash_type": 1}
        nodes = [ir.node("SimplifiedLayerNormalization", [x, scale], attributes)]
        for op_type, operand in [*(("Add", beta) for beta in bias), *affine.after]:
            nodes.append(ir.node(op_type, [nodes[-1].outputs[0], operand]))
        return self._finished(site, nodes, affine.initializers, None)

    def _finished(
        self,
        site: NormSite,
        nodes: list[ir.Node],
        initializers: tuple[ir.Value, ...],
        function_name: str | None,
    ) -> Lowered:
        for number, node in enumerate(nodes[:-1]):
            node.outputs[0].name = f"{site.output.name}.part{number}"
            node.outputs[0].type = site.output.type
        nodes[0].name = site.name
        for number, node in enumerate(nodes[1:], 1):
            node.name = f"{site.name}.affine{number}"
        lowered = Lowered(tuple(nodes), ((site.output, nodes[-1].outputs[0]),), initializers)
        return self._with_function(lowered, function_name, site.input.dtype)

    def _named(
        self, value: ir.Value, nodes: tuple[ir.Node, ...], output: ir.Value, name: str, op: str
    ) -> Lowered:
        output.name, output.shape, output.type = name, value.shape, value.type
        nodes[0].name = name
        return self._with_function(Lowered(nodes, ((value, output),)), op, value.dtype)

    def _overload(self, dtype: ir.DataType | None) -> str:
        """Say which calls must not stay: no kernel has DOUBLE, old bodies have one type each."""
        mixed = self._view.opset < _CASTLIKE_SINCE and len(self._types) > 1
        half = dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE)
        return INLINED if dtype is ir.DataType.DOUBLE or (mixed and half) else ""

    def _with_function(
        self, lowered: Lowered, name: str | None, dtype: ir.DataType | None
    ) -> Lowered:
        if name is None or dtype is None:
            return lowered
        body = self._bodies.get((name, dtype))
        if body is None:
            body = function(name, self._view.opset, dtype, self._overload(dtype))
            self._bodies[name, dtype] = body
        return Lowered(lowered.nodes, lowered.stands_for, lowered.initializers, (body,))


def _least_opset(dtype: ir.DataType | None) -> int:
    return 13 if dtype is ir.DataType.BFLOAT16 else MIN_OPSET


def _lost_affine(site: NormSite) -> bool:
    """Whether a call of ours takes a scale of ones or a bias of zeros."""
    affine = SIGNATURES[site.nodes[-1].op_type].affine
    if affine is Affine.AFFINE:
        return site.beta is None
    return affine is Affine.SCALE and site.gamma is None


def _mean_has_one_reader(site: NormSite, centred: ir.Value) -> bool:
    """Whether the norm looks at x only through ``centred``, so that no mean is left without it.

    A second subtraction, or a variance E[x^2] - E[x]^2, would stay as it is.
    """
    centring = centred.producer()
    mean = None if centring is None else centring.inputs[1]
    own, before, waiting = set(site.nodes), {centring}, [mean]
    values = {site.input}
    while waiting:
        value = waiting.pop()
        node = None if value is None else value.producer()
        if value is not None and node in own and node not in before:
            before.add(node)
            values.add(value)
            waiting += node.inputs
    return all(use.node in before for value in values for use in value.uses() if use.node in own)
