"""Memory that a run of a model needs, and the memory available."""

from pathlib import Path

import onnx_ir as ir

from onnxfold.graph.constants import HALVES

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
