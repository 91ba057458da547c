"""Steps of a chain: one tool applied to one file.

A step runs in a separate process (`onnxfold.tuning.child`); the tools' libraries do the work. The
results are checked, so a step need not be correct, only finish.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold import model_io
from onnxfold.errors import UsageError
from onnxfold.graph.constants import Array
from onnxfold.options import Device
from onnxfold.target import Target
from onnxfold.tuning.facts import ModelFacts
from onnxfold.tuning.options import TargetPrecision

# A protobuf of this many bytes cannot be written; weights are then stored in a separate file.
_EMBEDDED_BYTES = (1 << 31) - (1 << 26)


@dataclass(frozen=True, slots=True)
class Context:
    """Information for a step: model facts, the device, nodes to skip, calibration data."""

    facts: ModelFacts
    device: Device = Device.CPU
    exclude: tuple[str, ...] = ()
    feeds: tuple[Mapping[str, Array], ...] = ()


class ToolStep(ABC):
    """One tool.

    name: in chains; needs: modules; precision: the precision to which it reduces the model.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    precision: ClassVar[TargetPrecision] = TargetPrecision.FP32
    takes_exclusions: ClassVar[bool] = False

    @abstractmethod
    def apply(self, source: Path, output: Path, context: Context) -> None:
        """Write the tool's result for a file; raises whatever the tool raises."""

    def missing(self) -> tuple[str, ...]:
        """Return the modules that are not installed."""
        return tuple(name for name in self.needs if find_spec(name) is None)


class Slim(ToolStep):
    """onnxslim: constants folded, equal nodes merged, dead ones removed."""

    name, needs = "slim", ("onnxslim",)

    def apply(self, source: Path, output: Path, context: Context) -> None:
        import onnxslim

        made = onnxslim.slim(onnx.load(source))
        _write_proto(made, output)


class OwnStep(ToolStep):
    """A rewriting of ours for other tools, which must be proved."""

    @abstractmethod
    def made(self, model: ir.Model) -> ir.Model:
        """Return the rewritten model; raises NotRewritten."""

    def apply(self, source: Path, output: Path, context: Context) -> None:
        _write(self.made(model_io.load(source)), output)


class Unflatten(OwnStep):
    """Products of flattened rows as products of unflattened rows, which fusions expect."""

    name = "unflatten"

    def made(self, model: ir.Model) -> ir.Model:
        from onnxfold.tuning.rewritings import rewritten, unflatten

        return rewritten(model, unflatten)


class Untie(OwnStep):
    """Weights that products read transposed, stored transposed, as quantizers expect."""

    name = "untie"

    def made(self, model: ir.Model) -> ir.Model:
        from onnxfold.tuning.rewritings import rewritten, tied_again, untie

        return rewritten(model, untie, tied_again)


class JoinAttention(OwnStep):
    """Attention in pieces as ONNX Runtime's operator, where libraries do not see it."""

    name = "attention"

    def made(self, model: ir.Model) -> ir.Model:
        from onnxfold.tuning.join_attention import with_joined_attention

        return with_joined_attention(model)


class ScriptOptimizer(ToolStep):
    """onnxscript's optimizer: constants folded, its rules applied."""

    name, needs = "script", ("onnxscript",)

    def apply(self, source: Path, output: Path, context: Context) -> None:
        import onnxscript.optimizer

        model = ir.load(source)
        onnxscript.optimizer.optimize(model)
        _write(model, output)


class Fusions(ToolStep):
    """onnxscript's fusions for ONNX Runtime: attention, norms, activations of dynamo's exports."""

    name, needs = "fusions", ("onnxscript",)

    def apply(self, source: Path, output: Path, context: Context) -> None:
        from onnxscript.rewriter.ort_fusions import optimize_for_ort

        made = optimize_for_ort(ir.load(source))
        _write(made[0] if isinstance(made, tuple) else made, output)


class RuntimeOptimizer(ToolStep):
    """ONNX Runtime's transformers optimizer."""

    name, needs = "optimizer", ("onnxruntime",)

    def apply(self, source: Path, output: Path, context: Context) -> None:
        from onnxruntime.transformers import optimizer

        gpu = context.device is Device.CUDA
        # Its own sessions before the fusions would import torch, and use the GPU.
        without_sessions = gpu or find_spec("torch") is None
        facts = context.facts
        made = optimizer.optimize_model(
            str(source), facts.model_type, facts.num_heads, facts.hidden_size,
            opt_level=0 if without_sessions else None, use_gpu=gpu,
        )  # fmt: skip
        large = _bytes_of(made.model.graph) > _EMBEDDED_BYTES
        made.save_model_to_file(str(output), use_external_data_format=large)


@dataclass(frozen=True)
class FoldStep(ToolStep):
    """onnxfold optimize, proved and not run: the end of a chain is checked."""

    name: str  # type: ignore[misc]  # one class, a step for each choice of options
    chosen: Mapping[str, Any]

    def apply(self, source: Path, output: Path, context: Context) -> None:
        from onnxfold.model_io.load import open_source
        from onnxfold.options import Options
        from onnxfold.pipeline import run
        from onnxfold.pipeline.stage_timer import StageTimer

        target = self.chosen.get("target")
        device = context.device if target and target.traits.contrib else Device.CPU
        options = Options(device=device, check=0, force=True, **self.chosen)
        with np.errstate(all="ignore"):
            run(open_source(source), output, options, StageTimer(None))


class Half(ToolStep):
    """ONNX Runtime's float16 converter; inputs and outputs keep their types."""

    name, needs, precision = "fp16", ("onnxruntime",), TargetPrecision.FP16
    takes_exclusions = True

    def apply(self, source: Path, output: Path, context: Context) -> None:
        _write(self._converted(source, context), output)

    def _converted(self, source: Path, context: Context) -> ir.Model:
        """Return the model in float16, its nodes in order, which they need not be."""
        from onnxruntime.transformers.float16 import convert_float_to_float16

        model = onnx.load(source)
        made = convert_float_to_float16(
            model,
            keep_io_types=True,
            disable_shape_infer=_bytes_of(model.graph) > _EMBEDDED_BYTES,
            node_block_list=list(context.exclude) or None,
        )
        converted: ir.Model = ir.from_proto(made)
        converted.graph.sort()
        return converted


class Brain(Half):
    """Bfloat16 where the float16 converter writes float16; inputs and outputs keep their types."""

    name, precision = "bf16", TargetPrecision.BF16

    def apply(self, source: Path, output: Path, context: Context) -> None:
        from onnxfold.tuning.bfloat16 import as_bfloat16, check_float32

        model = model_io.load(source)
        check_float32(model)
        made = self._converted(source, context)
        as_bfloat16(made, model)
        _write(made, output)


@dataclass(frozen=True)
class DynamicInt8(ToolStep):
    """quantize_dynamic: weights to int8, activations at run time."""

    name: str  # type: ignore[misc]
    per_channel: bool
    needs, precision = ("onnxruntime",), TargetPrecision.INT8
    takes_exclusions = True

    def apply(self, source: Path, output: Path, context: Context) -> None:
        from onnxruntime.quantization import quantize_dynamic

        quantize_dynamic(
            source,
            output,
            per_channel=self.per_channel,
            nodes_to_exclude=_left_alone(context),
            use_external_data_format=_is_large(source),
            # Optimizers write no types, which the quantizer needs.
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )


class StaticInt8(ToolStep):
    """quantize_static on data: QuantizeLinear and DequantizeLinear around int8 operators."""

    name, needs, precision = "int8-static", ("onnxruntime",), TargetPrecision.INT8
    takes_exclusions = True

    def apply(self, source: Path, output: Path, context: Context) -> None:
        from onnxruntime.quantization import CalibrationDataReader, quantize_static

        class Reader(CalibrationDataReader):  # type: ignore[misc]  # untyped
            def __init__(self, feeds: Iterable[Mapping[str, Array]]) -> None:
                self.feeds = iter(feeds)

            def get_next(self) -> dict[str, Array] | None:
                feed = next(self.feeds, None)
                return None if feed is None else dict(feed)

        if not context.feeds:
            raise UsageError("int8-static calibrates on data: name it with --data")
        quantize_static(
            source,
            output,
            Reader(context.feeds),
            per_channel=True,
            nodes_to_exclude=_left_alone(context),
            use_external_data_format=_is_large(source),
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )


@dataclass(frozen=True)
class Blocks(ToolStep):
    """MatMulNBits: weights of products in blocks of few bits, activations unchanged."""

    bits: int
    block: int
    needs = ("onnxruntime",)
    takes_exclusions = True

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"int{self.bits}-blocks{self.block}"

    @property
    def precision(self) -> TargetPrecision:  # type: ignore[override]
        return TargetPrecision.INT4 if self.bits == 4 else TargetPrecision.INT8

    def apply(self, source: Path, output: Path, context: Context) -> None:
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
        from onnxruntime.quantization.onnx_model import ONNXModel

        products = ONNXModel(onnx.load(source))
        products.replace_gemm_with_matmul()  # as the other quantizers do by themselves
        quantizer = MatMulNBitsQuantizer(
            products.model,
            bits=self.bits,
            block_size=self.block,
            is_symmetric=True,
            # 4: products in int8, the fastest kernels of a CPU.
            accuracy_level=None if context.device is Device.CUDA else 4,
            nodes_to_exclude=_left_alone(context),
        )
        quantizer.process()
        _write_proto(quantizer.model.model, output)


STEPS: Mapping[str, ToolStep] = {
    step.name: step
    for step in (
        Slim(),
        Unflatten(),
        Untie(),
        JoinAttention(),
        ScriptOptimizer(),
        Fusions(),
        RuntimeOptimizer(),
        *(FoldStep(f"fold-{target}", {"target": target}) for target in Target),
        # Before float16, where a stream overflows it; before int8 and int4, where channels have
        # outliers; before int8, where a few gammas are large.
        FoldStep("scale-streams", {"scale_streams": "auto"}),
        FoldStep("rotate", {"rotate": "hadamard", "allow_split": _EMBEDDED_BYTES}),
        FoldStep("split-gammas", {"split_gamma": "auto", "norm_form": "layer"}),
        Half(),
        Brain(),
        DynamicInt8("int8", per_channel=False),
        DynamicInt8("int8-channel", per_channel=True),
        StaticInt8(),
        *(Blocks(bits, block) for bits, block in ((4, 32), (4, 128), (8, 32))),
    )
}


def _write(model: ir.Model, output: Path) -> None:
    with model_io.stage(model, output, force=True) as staged:
        staged.commit()


def _write_proto(model: onnx.ModelProto, output: Path) -> None:
    _write(ir.from_proto(model), output)


def _left_alone(context: Context) -> list[str]:
    """Return names of nodes that no quantizer takes; the product of a Gemm gets another name."""
    return [*context.exclude, *(f"{name}_MatMul" for name in context.exclude)]


def _bytes_of(graph: onnx.GraphProto) -> int:
    return sum(tensor.ByteSize() for tensor in graph.initializer)


def _is_large(path: Path) -> bool:
    model = model_io.load(path)
    return sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value) > (
        _EMBEDDED_BYTES
    )
