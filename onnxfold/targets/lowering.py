"""Targets: the nodes that represent a norm or a centering; returned, nothing is changed.

onnx     standard operators only: calls of onnxfold's functions, whose bodies are inlined in the end
kernels  the calls, for which ONNX Runtime with the onnxfold library takes the kernel of that name
ort      SimplifiedLayerNormalization, the contrib operator of ONNX Runtime
"""

from collections.abc import Callable
from functools import cached_property, partial

import numpy as np
import onnx_ir as ir

from onnxfold.errors import InvariantError
from onnxfold.graph import FLOATS, Fiber, ModelInfo, node_label
from onnxfold.graph.constants import is_narrowing
from onnxfold.norms.quotients import refuse_constant
from onnxfold.norms.site import (
    EpsilonMode,
    NormForm,
    NormKind,
    NormSite,
    cast_of_centred,
)
from onnxfold.operators.functions import (
    DOMAIN,
    LAYER_NORMALIZATION_SINCE,
    MAX_OPSET,
    MIN_OPSET,
    RMS_NORMALIZATION_SINCE,
    Affine,
    Statistics,
    call,
    op_name,
)
from onnxfold.operators.new_nodes import Lowered, NewNodes
from onnxfold.options import WrittenForm
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.target import Target
from onnxfold.targets.norm_settings import NORM_FORMS, NormSetting
from onnxfold.targets.parameters import Parameters
from onnxfold.targets.spelled import (
    adjacent_blocks,
    from_the_end,
    is_fused_spelling,
    reads_only_centred,
    spelled_rms,
    spells_axes,
    trailing_axes,
    turned_values,
    wide_epsilon,
)

_STATISTICS = {NormKind.LAYER_NORM: Statistics.LAYER, NormKind.RMS_NORM: Statistics.RMS}
_LAST_AXES = "the target has no operator that normalizes other than trailing axes"
_SLICE_SINCE = 10  # with constants as inputs


class TargetLowering:
    """The `NormForms` of one model for one target, and what stays in place."""

    def __init__(self, view: ModelInfo, target: Target, form: WrittenForm = WrittenForm.AUTO):
        self._view = view
        self._target = target
        self._form = form
        self._parameters = Parameters(view)
        self._bypassed: set[ir.Value] = set()

    def refuse_rms(self, site: NormSite) -> Refusal | None:
        refusal = site.refusal or self._refuse_kernel(site)
        if refusal is not None:
            return refusal
        if self._form is WrittenForm.LAYER:
            return _no_form(site, "every LayerNorm stays one with --norm-form layer")
        cast = cast_of_centred(self._view, site)
        if cast is not None:
            sentence = "ONNX Runtime fuses x - mean(x) into a LayerNormalization of two types"
            return _no_form(site, f"behind {node_label(cast)} {sentence}")
        if self._can_bypass(site):
            return None
        return self._refuse_spelled(site)

    def spells_rms(self, site: NormSite) -> bool:
        return site.form is not NormForm.DECOMPOSED and not self._has_operator(Statistics.RMS)

    def is_bare(self, site: NormSite) -> bool:
        return site.input.dtype is ir.DataType.DOUBLE and not self._has_operator(Statistics.RMS)

    def _can_bypass(self, site: NormSite) -> bool:
        """Whether the spelled norm can read x instead of x - mean(x), in any spelling."""
        if site.form is not NormForm.DECOMPOSED or not site.centred:
            return False
        if any(each.is_graph_output() or _rounds(site.input, each) for each in site.centred):
            return False
        return reads_only_centred(site)

    def _refuse_call(self, site: NormSite) -> Refusal | None:
        """Return why no operator computes the norm without its mean, or None."""
        refusal = self._refuse_kernel(site) or self._refuse_spelled(site)
        if refusal is None and wide_epsilon(site):
            sentence = f"epsilon {site.epsilon!r} is not representable as a float32 attribute"
            return _no_form(site, sentence)
        if (
            refusal is None
            and trailing_axes(self._view, site) is None
            and adjacent_blocks(self._view, site) is None
        ):
            return _no_form(site, _LAST_AXES)
        return refusal

    def _refuse_kernel(self, site: NormSite) -> Refusal | None:
        """Refuse a norm of constants that our kernel would compute in each run, or return None."""
        return refuse_constant(self._view, site) if self._target.traits.calls else None

    def _refuse_spelled(self, site: NormSite) -> Refusal | None:
        """Return the same if epsilon may be a constant before a root."""
        label = (node_label(site.nodes[-1]),)
        if site.escaping:
            names = ", ".join(value.name or "" for value in site.escaping)
            sentence = f"its statistics ({names}) are read by others"
            return Refusal(RefusalCode.STATISTICS_READ, sentence, label)
        if site.epsilon_mode is not EpsilonMode.INSIDE or site.factor != 1.0:
            mode = site.epsilon_mode.value
            return _no_form(site, f"no operator has epsilon {mode} with factor {site.factor:g}")
        blocks = None if wide_epsilon(site) else adjacent_blocks(self._view, site)
        in_operators = blocks is not None or spells_axes(site)
        if trailing_axes(self._view, site) is None and not in_operators:
            return _no_form(site, _LAST_AXES)
        dtype = site.input.dtype
        if dtype not in FLOATS or dtype != site.output.dtype:
            sentence = f"no operator for {dtype} to {site.output.dtype}"
            return Refusal(RefusalCode.UNSUPPORTED_TYPE, sentence, label)
        if wide_epsilon(site) and ir.DataType.DOUBLE not in (dtype, site.compute_dtype):
            return _no_form(site, f"epsilon {site.epsilon!r} is not representable in {dtype}")
        if site.affine_repeat > 1 and not all(
            map(self._parameters.is_known, (site.gamma, site.beta))
        ):
            sentence = "its gamma or beta is not a constant, and an element covers several channels"
            return Refusal(RefusalCode.DYNAMIC_WEIGHT, sentence, label)
        if not all(self._parameters.fits(part, dtype) for part in (site.gamma, site.beta)):
            sentence = f"its gamma or beta is not representable in {dtype}"
            return Refusal(RefusalCode.UNSUPPORTED_TYPE, sentence, label)
        least, opset = _least_opset(dtype), self._view.opset
        if not least <= opset <= MAX_OPSET:
            return _no_form(site, f"opset {opset} is not among {least} to {MAX_OPSET}")
        return None

    def rms_norm(self, site: NormSite, x: ir.Value) -> Lowered:
        if self._refuse_call(site) is None:
            blocks = adjacent_blocks(self._view, site)
            if blocks is not None:
                return self._blocked_call(site, x, blocks)
            return self._call(site, Statistics.RMS, x)
        # Another norm may share x - mean(x), which is already x.
        shares = not self._bypassed.isdisjoint(site.centred)
        if not shares and not self._can_bypass(site):
            if self._refuse_spelled(site) is not None:
                raise InvariantError(f"norm '{site.name}' has no RMS form on target {self._target}")
            return self._spelled(site, x)
        centred = [value for value in site.centred if value not in self._bypassed]
        self._bypassed.update(centred)
        new = NewNodes(self._view.opset)
        copies = {dtype: new.cast(x, dtype) for dtype in {value.dtype for value in centred}}
        return Lowered.of(new, *((value, copies[value.dtype]) for value in centred))

    def layer_norm(self, site: NormSite) -> Lowered | None:
        """Return one call for a norm that stays, if that is cheaper and exact."""
        statistics = _STATISTICS.get(site.kind)
        if statistics is None or not self.calls_in_place(site):
            return None
        return self._call(site, statistics, site.input)

    def refuse_layer(self, site: NormSite) -> Refusal | None:
        refusal = self._refuse_call(site)
        if refusal is None and trailing_axes(self._view, site) is None:
            return _no_form(site, "LayerNormalization supports only trailing axes")
        return refusal

    def restored(self, site: NormSite) -> Lowered:
        return self._call(site, Statistics.LAYER, site.input)

    def refuse_compressed(self, site: NormSite) -> Refusal | None:
        refusal = self.refuse_layer(site)
        if refusal is None and (
            trailing_axes(self._view, site) != 1 or self._view.opset < _SLICE_SINCE
        ):
            sentence = f"CRMSNorm supports the last axis, from opset {_SLICE_SINCE} on"
            return _no_form(site, sentence)
        return refusal

    def compressed(self, site: NormSite, x: ir.Value) -> Lowered:
        return self._call(site, Statistics.CRMS_FULL, x)

    def calls_in_place(self, site: NormSite) -> bool:
        if site.kind not in _STATISTICS or site.refusal is not None or _narrows(site):
            return False
        if self._refuse_call(site) is not None:
            return False
        if trailing_axes(self._view, site) is None:
            return False
        kernels = self._target.traits.calls and site.input.dtype is not ir.DataType.DOUBLE
        if site.form is not NormForm.DECOMPOSED:
            return kernels and site.nodes[-1].domain != DOMAIN
        return kernels or self.becomes_one(site) or self._respells(site)

    def becomes_one(self, site: NormSite) -> bool:
        """Whether a norm in several operators has one operator on the target, without a kernel."""
        several = site.form is NormForm.DECOMPOSED
        return several and self._has_operator(_STATISTICS[site.kind])

    def setting(self, site: NormSite) -> NormSetting:
        """Return the setting of the call that replaces a norm in place."""
        axes, epsilon = trailing_axes(self._view, site) or 1, float(np.float32(site.epsilon))
        return _STATISTICS[site.kind], axes, epsilon

    def _respells(self, site: NormSite) -> bool:
        """Whether ONNX Runtime makes one operator of a norm only once it is a quotient."""
        return (
            self._target.traits.standard
            and site.kind is NormKind.RMS_NORM
            and site.input.dtype is ir.DataType.FLOAT
            and trailing_axes(self._view, site) == 1
            and not is_fused_spelling(site)
            and site.output not in self._turned
            and not self._has_operator(Statistics.RMS)
        )

    @cached_property
    def _turned(self) -> frozenset[ir.Value]:
        """The values through which ONNX Runtime moves Transposes."""
        return turned_values(self._view)

    def _has_operator(self, statistics: Statistics) -> bool:
        """Whether the file has one operator for a norm, which otherwise is spelled out."""
        if statistics is Statistics.LAYER:
            return self._view.opset >= LAYER_NORMALIZATION_SINCE
        if self._target.traits.contrib:
            return True
        return self._form is WrittenForm.OP and self._view.opset >= RMS_NORMALIZATION_SINCE

    def calls_rms(self, site: NormSite) -> bool:
        return self._refuse_call(site) is None

    def keep_affine(self, site: NormSite) -> Refusal | None:
        """Return why a norm keeps its gamma and beta, even if layers could absorb them, or None.

        ONNX Runtime 1.31 fuses a spelled-out norm only with the Mul by gamma, and for LayerNorm the
        Add of beta, after it: 0.4 against 0.9 ns per element.
        """
        if site.kind is NormKind.DYT or site.form is not NormForm.DECOMPOSED:
            return None
        if not self._runtimes_fuse(site) or (
            self.calls_in_place(site) and not self._respells(site)
        ):
            return None
        sentence = "stays spelled out, and runtimes fuse it only with the product by gamma in it"
        return _no_form(site, f"norm '{site.name}' {sentence}")

    def multiplies(self, site: NormSite) -> bool:
        fused = site.form is not NormForm.DECOMPOSED or self._runtimes_fuse(site)
        return fused and site.kind in _STATISTICS

    def stays_in_operators(self, site: NormSite) -> bool:
        if site.form is not NormForm.DECOMPOSED or self.calls_in_place(site):
            return False
        return not (is_fused_spelling(site) and self._runtimes_fuse(site))

    def _runtimes_fuse(self, site: NormSite) -> bool:
        """Whether runtimes have an operator for the norm, in any spelling."""
        plain = site.epsilon_mode is EpsilonMode.INSIDE and site.factor == 1.0
        return plain and not _narrows(site) and trailing_axes(self._view, site) is not None

    def centring(self, value: ir.Value, fiber: Fiber) -> Lowered:
        rank = self._view.rank(value) or 0
        trailing = fiber.axes == tuple(range(rank - len(fiber.axes), rank))
        called = value.dtype in FLOATS
        if trailing and called and _least_opset(value.dtype) <= self._view.opset <= MAX_OPSET:
            node = call(op_name(statistics=Statistics.CENTER), [value], axes=len(fiber.axes))
            output, node.name = node.outputs[0], f"{value.name}.centred"
            output.name, output.shape, output.type = node.name, value.shape, value.type
            return Lowered((node,), ((value, output),))
        return self._plain_centring(value, fiber)

    def _plain_centring(self, value: ir.Value, fiber: Fiber) -> Lowered:
        name = f"{value.name}.centred"
        new = NewNodes(self._view.opset)
        axes = from_the_end(new, fiber.axes, self._view.rank(value) or 0)
        mean = new.along("ReduceMean", value, axes, f"{name}.axes", keepdims=1)
        mean.name, mean.type = f"{value.name}.mean", value.type
        dims = tuple(value.shape or ())
        mean.shape = ir.Shape(1 if axis in fiber.axes else dim for axis, dim in enumerate(dims))
        output = new.op("Sub", value, mean)
        output.name, output.shape, output.type = name, value.shape, value.type
        return Lowered.of(new, (value, output))

    def _call(self, site: NormSite, statistics: Statistics, x: ir.Value) -> Lowered:
        axes = trailing_axes(self._view, site) or 1
        bare = statistics is Statistics.RMS and self.is_bare(site)
        affine = self._parameters.operands(site, statistics, axes, bare=bare)
        after, new = affine.after, NewNodes(self._view.opset)
        if self._target.traits.contrib and statistics is Statistics.RMS:
            scale, *bias = affine.inputs
            y = self._contrib(new, site, x, scale, axes)
            after = (*(("Add", beta) for beta in bias), *after)
        else:
            name = op_name(statistics=statistics, affine=affine.kind)
            y = new.add(call(name, [x, *affine.inputs], axes=axes, epsilon=site.epsilon))
        for op_type, operand in after:
            y = new.op(op_type, y, operand)
        new.weights += affine.initializers
        return self._finished(site, new)

    def _spelled(self, site: NormSite, x: ir.Value) -> Lowered:
        new = NewNodes(self._view.opset)
        wide = new.cast(x, ir.DataType.DOUBLE) if _narrows(site) else x
        y = new.cast(spelled_rms(new, site, wide), x.dtype)
        for op_type, part, role in (("Mul", site.gamma, "gamma"), ("Add", site.beta, "beta")):
            if part is not None:
                y = new.op(op_type, y, self._parameters.as_value(site, part, role, new.weights))
        return self._finished(site, new)

    def _blocked_call(self, site: NormSite, x: ir.Value, blocks: tuple[int, int]) -> Lowered:
        """Return Reshape, RMSNorm over the new last axis, Reshape back, gamma, beta."""
        new = NewNodes(self._view.opset)
        leading = [0] * ((self._view.rank(site.input) or 1) - 1)  # 0 keeps a dimension
        split = new.integers(f"{x.name}.blocks", [*leading, *blocks])
        joined = new.integers(f"{x.name}.joined", [*leading, blocks[0] * blocks[1]])
        whole = self._parameters.filled(site, (blocks[1],))  # a gamma that is one number
        scale = self._parameters.ones(site, (blocks[1],)) if whole is None else whole
        new.weights.append(scale)
        apart = new.op("Reshape", x, split)
        if self._target.traits.contrib:
            norm = self._contrib(new, site, apart, scale, 1)
        else:
            name = op_name(statistics=Statistics.RMS, affine=Affine.SCALE)
            norm = new.add(call(name, [apart, scale], epsilon=site.epsilon))
        dims = tuple(site.input.shape or ())[:-1]
        apart.shape = norm.shape = ir.Shape((*dims, *blocks))
        y = new.op("Reshape", norm, joined)
        gamma = site.gamma if whole is None else None
        for op_type, part, role in (("Mul", gamma, "gamma"), ("Add", site.beta, "beta")):
            if part is not None:
                y = new.op(op_type, y, self._parameters.per_channel(site, part, role, new.weights))
        return self._finished(site, new)

    def _contrib(
        self, new: NewNodes, site: NormSite, x: ir.Value, scale: ir.Value, axes: int
    ) -> ir.Value:
        attributes = {"axis": -axes, "epsilon": site.epsilon, "stash_type": 1}
        return new.op("SimplifiedLayerNormalization", x, scale, **attributes)

    def _finished(self, site: NormSite, new: NewNodes) -> Lowered:
        for number, node in enumerate(new.nodes[:-1]):
            node.outputs[0].name = f"{site.output.name}.part{number}"
            node.outputs[0].type = node.outputs[0].type or site.input.type
            if node.outputs[0].shape is None and site.input.shape is not None:
                node.outputs[0].shape = site.input.shape.copy()
        new.nodes[0].name = site.name
        for number, node in enumerate(new.nodes[1:], 1):
            node.name = f"{site.name}.affine{number}"
        return Lowered.of(new, (site.output, new.nodes[-1].outputs[0]))


def _no_form(site: NormSite, sentence: str) -> Refusal:
    return Refusal(RefusalCode.NO_CHEAPER_FORM, sentence, (node_label(site.nodes[-1]),))


def _rounds(x: ir.Value, centred: ir.Value) -> bool:
    """Whether x may lose digits in the type of x - mean(x), which may be wider."""
    return x.dtype != centred.dtype and is_narrowing(x.dtype, centred.dtype) is not False


def _narrows(site: NormSite) -> bool:
    """Whether an operator would compute the statistics in fewer digits: none computes in DOUBLE."""
    double = ir.DataType.DOUBLE
    return site.compute_dtype is double and site.input.dtype is not double


def _least_opset(dtype: ir.DataType | None) -> int:
    return 13 if dtype is ir.DataType.BFLOAT16 else MIN_OPSET


@NORM_FORMS.found_by
def forms_of(info: ModelInfo) -> Callable[[Target, WrittenForm], TargetLowering]:
    """Return the function that creates a target's lowering of the norms of a version."""
    return partial(TargetLowering, info)
