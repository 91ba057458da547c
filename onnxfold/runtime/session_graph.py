"""What ONNX Runtime makes of a model when it opens it: the operators that a session runs."""

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import onnx

from onnxfold.errors import ModelError, one_line
from onnxfold.runtime.library import ONLY_FATAL, demand_name, runtime_errors

_PROVIDERS = ("CPUExecutionProvider",)


def session_operators(path: Path) -> dict[str, int] | None:
    """Count the nodes of a CPU session by operator; None where onnxruntime is not installed.

    The session has all of ONNX Runtime's optimizations and none of onnxfold's kernels, so that a
    function of onnxfold's counts as the operators of its body.

    Raises ModelError where ONNX Runtime refuses the model, or its optimized form cannot be kept.
    """
    try:
        import onnxruntime as ort
    except ImportError:
        return None
    demand_name(path)
    with tempfile.TemporaryDirectory(prefix="onnxfold-") as folder:
        kept = Path(folder, "optimized.onnx")
        options = ort.SessionOptions()
        options.log_severity_level = ONLY_FATAL
        options.optimized_model_filepath = str(kept)
        # Weights beside the graph, so that a large model does not exceed a protobuf.
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", "weights"
        )
        try:
            ort.InferenceSession(str(path), options, providers=list(_PROVIDERS))
        except runtime_errors() as error:
            message = f"ONNX Runtime cannot load it: {one_line(error)}"
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
