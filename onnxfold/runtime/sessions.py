"""Sessions of ONNX Runtime: what it cannot open, what it executes, and the memory that it needs."""

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import onnx
import onnx_ir as ir

from onnxfold import model_io
from onnxfold.errors import ModelError, one_line, show
from onnxfold.graph.constants import HALVES
from onnxfold.graph.model_info import node_label
from onnxfold.graph.traversal import all_nodes
from onnxfold.runtime.library import ONLY_FATAL, device_of, register, runtime_errors

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


def takes_name(path: Path) -> bool:
    """Whether ONNX Runtime accepts the name of a file: it requires UTF-8, file systems do not."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def demand_name(path: Path) -> None:
    """Raise ModelError if ONNX Runtime cannot open a file because of its name."""
    if not takes_name(path):
        raise ModelError(f"'{path}': ONNX Runtime cannot open a file of this name; rename it")


def fatal_node(model: ir.Model) -> ir.Node | None:
    """Return a LayerNormalization with an empty bias name, if there is one.

    The graph optimizations of ONNX Runtime end the process on it (1.31, 1.32). Without them it runs
    such a model, as it should.
    """
    functions = (function.all_nodes() for function in model.functions.values())
    for node in chain(all_nodes(model), *functions):
        if (node.domain, node.op_type) == ("", "LayerNormalization") and None in node.inputs[2:]:
            return node
    return None


def demand_optimizable(path: Path) -> None:
    """Raise ModelError if ONNX Runtime cannot open a file, or ends the process when it does."""
    demand_name(path)
    node = fatal_node(model_io.load(path))
    if node is not None:
        raise ModelError(
            f"{show(path.name)}: the empty bias of {node_label(node)} ends the process of ONNX "
            "Runtime; leave this input out"
        )


# ONNX Runtime keeps weights as they are stored and again packed for its kernels, or as float32 if
# they are halves. Resident memory of the model of benchmarks/gptj.py with 1.4e9 parameters was 2.2
# times its weights with optimizations off, 2.1 times with all.
_SESSION_FACTOR = 2.5
# Memory that is left to the rest of the machine.
_SHARE = 0.8
_MEMINFO = Path("/proc/meminfo")
_CGROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)


def session_bytes(model: ir.Model) -> int:
    """Estimate the memory that ONNX Runtime needs for a whole model, without activations."""
    return int(_SESSION_FACTOR * stored_bytes(model))


def stored_bytes(model: ir.Model) -> int:
    """Return the size of the weights of the main graph."""
    tensors = (v.const_value for v in model.graph.initializers.values())
    return sum(t.nbytes for t in tensors if t is not None)


def weight_bytes(tensor: ir.TensorProtocol) -> int:
    """Return the memory of a weight that is not packed: as stored, and halves as float32."""
    halves = tensor.dtype in HALVES
    return tensor.nbytes * 3 if halves else tensor.nbytes


def available_bytes() -> int | None:
    """Return the free memory that a process may use; None if unknown."""
    free = [number for number in (_meminfo(), *(_left(*files) for files in _CGROUPS)) if number]
    return int(_SHARE * min(free)) if free else None


def _meminfo() -> int | None:
    if not _MEMINFO.exists():
        return None
    for line in _MEMINFO.read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _left(limit: Path, used: Path) -> int | None:
    """Return what a control group leaves; None if it sets no limit."""
    if not limit.exists() or not used.exists():
        return None
    text = limit.read_text(encoding="ascii").strip()
    return None if text == "max" else max(1, int(text) - int(used.read_text(encoding="ascii")))
