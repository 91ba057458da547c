"""Steps of a chain: what one tool makes of one file.

A step runs in a process of its own (`onnxfold.tuning.child`); the libraries do the work. What they
write is checked, so a step need not be right, only end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import onnx
import onnx_ir as ir

from onnxfold import model_io
from onnxfold.errors import UsageError
from onnxfold.graph.array_types import Array
from onnxfold.options import Device, Target
from onnxfold.tuning.facts import ModelFacts
from onnxfold.tuning.options import TargetPrecision

# A protobuf of this many bytes cannot be written; weights then lie beside it.
_EMBEDDED_BYTES = (1 << 31) - (1 << 26)


@dataclass(frozen=True, slots=True)
class Context:
    """What a step may ask: facts of the model, the device, nodes to leave, data to calibrate on."""

    facts: ModelFacts
    device: Device = Device.CPU
    exclude: tuple[str, ...] = ()
    feeds: tuple[Mapping[str, Array], ...] = ()


class ToolStep(ABC):
    """One tool. name: in chains; needs: modules; precision: what it reduces the model to."""

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    precision: ClassVar[TargetPrecision] = TargetPrecision.FP32
    takes_exclusions: ClassVar[bool] = False

    @abstractmethod
    def apply(self, source: Path, output: Path, context: Context) -> None:
        """Write what the tool makes of a file; raises whatever the tool raises."""

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
    """A rewriting of ours for other tools, which is proved; it fails where it cannot be."""

    @abstractmethod
    def made(self, model: ir.Model) -> ir.Model:
        """Return what becomes of a model; raises NotRewritten."""

    def apply(self, source: Path, output: Path, context: Context) -> None:
        _write(self.made(model_io.load(source)), output)


class Unflatten(OwnStep):
    """Products of flattened rows as products of the rows as they stand: what fusions look for."""

    name = "unflatten"

    def made(self, model: ir.Model) -> ir.Model:
        from onnxfold.tuning.proved_rewriting import rewritten
        from onnxfold.tuning.unflatten import unflatten

        return rewritten(model, unflatten)


class Untie(OwnStep):
    """Weights that products read transposed, stored as they are read: what quantizers look for."""

    name = "untie"

    def made(self, model: ir.Model) -> ir.Model:
        from onnxfold.tuning.proved_rewriting import rewritten
        from onnxfold.tuning.untie import tied_again, untie

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
        # Its own sessions before the fusions import torch, and place a model on the GPU.
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
    """onnxfold optimize, for one target; the check comes with the chain's end."""

    target: Target

    @property
    def name(self) -> str:  # type: ignore[override]  # one class, a step for each target
        return f"fold-{self.target}"

    def apply(self, source: Path, output: Path, context: Context) -> None:
        import numpy as np

        from onnxfold.model_io.sources import open_source
        from onnxfold.options import Options
        from onnxfold.pipeline import run
        from onnxfold.pipeline.stage_timer import StageTimer

        device = context.device if self.target is Target.ORT else Device.CPU
        options = Options(target=self.target, device=device, check=0, force=True)
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


class DynamicInt8(ToolStep):
    """quantize_dynamic: weights to int8, activations when the session runs."""

    name, needs, precision = "int8", ("onnxruntime",), TargetPrecision.INT8
    takes_exclusions = True
    per_channel: ClassVar[bool] = False

    def apply(self, source: Path, output: Path, context: Context) -> None:
        from onnxruntime.quantization import quantize_dynamic

        quantize_dynamic(
            source,
            output,
            per_channel=self.per_channel,
            nodes_to_exclude=list(context.exclude),
            use_external_data_format=_is_large(source),
            # What optimizers write carries no types, which the quantizer asks for.
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )


class ChannelInt8(DynamicInt8):
    """quantize_dynamic with a scale for each channel of a weight."""

    name = "int8-channel"
    per_channel = True


class StaticInt8(ToolStep):
    """quantize_static on data: QuantizeLinear and DequantizeLinear around what runs in int8."""

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
            nodes_to_exclude=list(context.exclude),
            use_external_data_format=_is_large(source),
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )


@dataclass(frozen=True)
class Blocks(ToolStep):
    """MatMulNBits: weights of products in blocks of few bits, activations as they are."""

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

        quantizer = MatMulNBitsQuantizer(
            onnx.load(source),
            bits=self.bits,
            block_size=self.block,
            is_symmetric=True,
            # 4: products in int8, the fastest kernels of a CPU.
            accuracy_level=None if context.device is Device.CUDA else 4,
            nodes_to_exclude=list(context.exclude),
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
        *(FoldStep(target) for target in Target),
        Half(),
        Brain(),
        DynamicInt8(),
        ChannelInt8(),
        StaticInt8(),
        *(Blocks(bits, block) for bits, block in ((4, 32), (4, 128), (8, 32))),
    )
}


def _write(model: ir.Model, output: Path) -> None:
    with model_io.stage(model, output, force=True) as staged:
        staged.commit()


def _write_proto(model: onnx.ModelProto, output: Path) -> None:
    _write(ir.from_proto(model), output)


def _bytes_of(graph: onnx.GraphProto) -> int:
    return sum(tensor.ByteSize() for tensor in graph.initializer)


def _is_large(path: Path) -> bool:
    model = model_io.load(path)
    return sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value) > (
        _EMBEDDED_BYTES
    )
