"""Run models in their own precision, in ONNX Runtime or in the interpreter."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold import model_io
from onnxfold.check.pieces import Pieces
from onnxfold.check.reference import (
    Array,
    Precision,
    is_floating,
    is_stochastic,
    run,
)
from onnxfold.errors import ModelError, one_line
from onnxfold.graph.traversal import all_nodes
from onnxfold.model_io.load import Source
from onnxfold.model_io.staging import StagingFolder
from onnxfold.model_io.wire import EMBEDDED_BYTES
from onnxfold.runtime.library import ONLY_FATAL, check_providers, runtime_errors
from onnxfold.runtime.sessions import fatal_node, session_bytes, stored_bytes, takes_name
from onnxfold.targets.installed import MOST_NODES

Feeds = Mapping[str, Array]
Outputs = dict[str, Array]
_THREADS = 2
# The only type of fewer than 16 bits whose tensors ONNX Runtime returns to Python.
_FLOAT8, _FLOAT8_TENSOR = ir.DataType.FLOAT8E4M3FN.numpy(), "tensor(float8e4m3fn)"
# Nothing bounds the steps of a loop; a model without loops always ends.
_LONGEST_WITH_LOOPS_S = 300.0


class CannotRun(ModelError):  # noqa: N818
    """ONNX Runtime cannot load or run a model, on these inputs if it says which."""

    feeds: Feeds | None = None


class CannotLoad(CannotRun):
    """ONNX Runtime cannot load a model, or returns no tensors, whatever its inputs are."""


def why_not_onnxruntime(model: ir.Model) -> str | None:
    """Return why ONNX Runtime cannot be tried on a model here, or None."""
    try:
        import onnxruntime  # noqa: F401
    except ImportError:
        return "onnxruntime is not installed"
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.dtype is ir.DataType.BFLOAT16:
            return "onnxruntime does not accept bfloat16 from Python"
    if any(map(is_stochastic, all_nodes(model))):
        return "the model draws random numbers"
    return _unknown_in_function(model)


def _unknown_in_function(model: ir.Model) -> str | None:
    """Name an operator that the opset of a function lacks: it would end the process (1.31)."""
    for function in model.functions.values():
        opset = function.opset_imports.get("", 1)
        for node in function.all_nodes():
            if node.domain == "" and not onnx.defs.has(node.op_type, opset):
                return f"function '{function.name}' has a {node.op_type}, which opset {opset} lacks"
    return None


def _is_optimizable(model: ir.Model) -> bool:
    """Return False where optimizations end the process, or would take minutes: a long graph."""
    return sum(1 for _ in all_nodes(model)) <= MOST_NODES and fatal_node(model) is None


@dataclass(frozen=True, slots=True)
class OnnxRuntime:
    """ONNX Runtime with the given execution providers, one model in memory at a time.

    memory_bytes: the most that a run may use; a larger model runs in pieces (`Pieces`).
    """

    providers: tuple[str, ...] = ("CPUExecutionProvider",)
    memory_bytes: int | None = None

    @classmethod
    def of(cls, providers: Sequence[str] | None, memory_bytes: int | None = None) -> OnnxRuntime:
        """Raise UsageError for providers that the installed ONNX Runtime does not have."""
        if not providers:
            return cls(memory_bytes=memory_bytes)
        check_providers(providers)
        return cls(tuple(providers), memory_bytes)

    def fits(self, model: ir.Model) -> bool:
        """Whether a whole model may be in memory."""
        return self.memory_bytes is None or session_bytes(model) <= self.memory_bytes

    def pieces(self, model: ir.Model) -> Pieces:
        """Return a model in pieces that fit in memory, half of it left for what they compute."""
        return Pieces(model, (self.memory_bytes or 0) // 2)

    @property
    def label(self) -> str:
        import onnxruntime

        return f"onnxruntime {onnxruntime.__version__} {', '.join(self.providers)}"

    def run(
        self, source: Source, samples: Sequence[Feeds], *, optimize: bool
    ) -> list[dict[str, Array]]:
        """Return outputs for each sample, with all graph optimizations or none.

        Raises CannotRun.
        """
        optimize = optimize and _is_optimizable(source.model)
        if not self.fits(source.model):
            return self._run_pieces(source, samples, optimize=optimize)
        if source.path is not None and takes_name(source.path):
            return self._run(str(source.path), source, samples, optimize=optimize)
        if stored_bytes(source.model) <= EMBEDDED_BYTES:
            content = model_io.materialise(source.model).SerializeToString()
            return self._run(content, source, samples, optimize=optimize)
        with (
            closing(StagingFolder(Path(tempfile.gettempdir()))) as folder,
            model_io.stage(source.model, folder.path / "model.onnx", external_data=True) as staged,
        ):
            return self._run(str(staged.path), source, samples, optimize=optimize)

    def _run(
        self,
        content: str | bytes,
        source: Source,
        samples: Sequence[Feeds],
        *,
        optimize: bool,
    ) -> list[dict[str, Array]]:
        try:
            session = self._session(content, optimize=optimize, pack=_packs(source.model))
        except runtime_errors() as error:
            reason = one_line(error)
            raise CannotLoad(f"{source.label}: onnxruntime cannot load it: {reason}") from error
        try:
            names = [output.name for output in session.get_outputs()]
            wanted = {i.name for i in session.get_inputs()}
            wanted |= {i.name for i in session.get_overridable_initializers()}
            outputs: list[dict[str, Array]] = []
            feeds: Feeds = {}
            for sample in samples:
                feeds = {name: x for name, x in sample.items() if name in wanted}
                with _bounded(source) as options:
                    results = session.run(None, feeds, options)
                outputs.append(_by_name(source, session, names, results))
            return outputs
        except runtime_errors() as error:
            told = CannotRun(f"{source.label}: onnxruntime cannot run it: {one_line(error)}")
            told.feeds = feeds
            raise told from error

    def _run_pieces(
        self, source: Source, samples: Sequence[Feeds], *, optimize: bool
    ) -> list[dict[str, Array]]:
        pieces = self.pieces(source.model)
        known = [dict(sample) for sample in samples]
        for piece in pieces.pieces:
            weights = pieces.weights(piece)
            wanted = set(piece.reads)
            try:
                content = pieces.content(piece, weights, known[0])
                session = self._session(
                    content, optimize=optimize, pack=_packs(source.model), keep=False
                )
                for values in known:
                    feeds = {name: x for name, x in values.items() if name in wanted}
                    with _bounded(source) as options:
                        results = session.run(list(piece.gives), {**weights, **feeds}, options)
                    values.update(_by_name(source, session, piece.gives, results))
                    for name in piece.last_read:
                        values.pop(name, None)
            except runtime_errors() as error:
                where = f"nodes {piece.start} to {piece.stop}"
                raise CannotRun(
                    f"{source.label}: onnxruntime cannot run {where}: {one_line(error)}"
                ) from error
            del session, weights
        return [{name: values[name] for name in pieces.outputs} for values in known]

    def _session(
        self, content: str | bytes, *, optimize: bool, pack: bool, keep: bool = True
    ) -> Any:
        """Return a session; `pack`: it packs weights; `keep`: it keeps memory for the next run."""
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = ONLY_FATAL
        options.intra_op_num_threads = min(_THREADS, os.cpu_count() or 1)
        options.enable_cpu_mem_arena = options.enable_mem_pattern = keep
        options.add_session_config_entry("session.disable_prepacking", "0" if pack else "1")
        levels = ort.GraphOptimizationLevel
        level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
        options.graph_optimization_level = level
        return ort.InferenceSession(content, options, providers=list(self.providers))


def _packs(model: ir.Model) -> bool:
    """Whether a session should pack weights, which costs more than the few runs of a check save.

    Contrib kernels of quantized weights choose their arithmetic by whether the weights could be
    packed.
    """
    return any(node.domain == "com.microsoft" for node in all_nodes(model))


@contextmanager
def _bounded(source: Source) -> Iterator[Any]:
    """Yield options of a run, ended with CannotRun after some minutes if the model loops.

    Raises CannotRun for one that was.
    """
    import onnxruntime as ort

    options = ort.RunOptions()
    if all(node.op_type != "Loop" for node in all_nodes(source.model)):
        yield options
        return
    timer = threading.Timer(_LONGEST_WITH_LOOPS_S, setattr, (options, "terminate", True))
    timer.daemon = True
    timer.start()
    try:
        yield options
    except runtime_errors() as error:
        if not options.terminate:
            raise
        took = f"its loops run longer than {_LONGEST_WITH_LOOPS_S:g} s"
        raise CannotRun(f"{source.label}: {took} in onnxruntime") from error
    finally:
        timer.cancel()


def _by_name(
    source: Source, session: Any, names: Sequence[str], results: Sequence[Any]
) -> dict[str, Array]:
    types = {output.name: output.type for output in session.get_outputs()}
    outputs = {}
    for name, result in zip(names, results, strict=True):
        if not isinstance(result, np.ndarray):
            raise CannotLoad(
                f"{source.label}: output {name!r} is not a tensor, and only tensors can be compared"
            )
        # NumPy lacks this type, so ONNX Runtime returns the bits.
        outputs[name] = result.view(_FLOAT8) if types[name] == _FLOAT8_TENSOR else result
    return outputs


def suited(feeds: Feeds, model: ir.Model) -> dict[str, Array]:
    """Convert the feeds to the types of a model's inputs, if these are numbers of the same kind.

    A converter may have changed the width of its inputs.
    """
    types = {str(v.name): np.dtype(v.dtype.numpy()) for v in model.graph.inputs if v.dtype}
    suiting = dict(feeds)
    for name, array in feeds.items():
        dtype = types.get(name, array.dtype)
        integers = dtype.kind in "iu" and array.dtype.kind in "iu"
        if dtype != array.dtype and (integers or (is_floating(dtype) and is_floating(array.dtype))):
            suiting[name] = array.astype(dtype)
    return suiting


def native(model: ir.Model, samples: Sequence[Feeds]) -> list[dict[str, Array]]:
    """Return outputs of the interpreter in the model's own types."""
    return [run(model, feeds, precision=Precision.NATIVE) for feeds in samples]
