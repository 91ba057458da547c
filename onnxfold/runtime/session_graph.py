"""The graph that ONNX Runtime builds from a model: the operators that a session runs."""

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx

from onnxfold.errors import ModelError, one_line
from onnxfold.model_io.messages import show
from onnxfold.runtime.library import ONLY_FATAL, device_of, register, runtime_errors
from onnxfold.runtime.openable import demand_optimizable

_PROVIDERS = ("CPUExecutionProvider",)


def session_operators(
    path: Path, *, kernels: bool = False, providers: Sequence[str] = _PROVIDERS
) -> dict[str, int] | None:
    """Count the nodes of a session by operator; None if onnxruntime is not installed.

    The session has all of ONNX Runtime's optimizations. Without ``kernels`` a function of
    onnxfold's counts as the operators of its body.

    Raises ModelError if ONNX Runtime refuses the model or would end the process, or its optimized
    form cannot be saved.
    """
    try:
        import onnxruntime as ort
    except ImportError:
        return None
    demand_optimizable(path)
    with tempfile.TemporaryDirectory(prefix="onnxfold-") as folder:
        kept = Path(folder, "optimized.onnx")
        options = ort.SessionOptions()
        options.log_severity_level = ONLY_FATAL
        options.optimized_model_filepath = str(kept)
        # Weights are stored outside the graph, so that a large model does not exceed a protobuf.
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", "weights"
        )
        if kernels:
            register(options, device_of(providers))
        try:
            ort.InferenceSession(str(path), options, providers=list(providers))
        except runtime_errors() as error:
            message = f"{show(path.name)}: ONNX Runtime cannot load it: {one_line(error)}"
            raise ModelError(message) from error
        optimized = onnx.load(kept, load_external_data=False)
    counts = Counter(_name(node) for node in _nodes(optimized.graph))
    return dict(sorted(counts.items()))


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _nodes(body)


def _name(node: onnx.NodeProto) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type
