"""Norms in ONNX Runtime on CUDA: one model of many equal nodes, replayed as a CUDA graph."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from benchmarks.gpu_methods import EPSILON, Operation, Tensors, UnavailableError
from onnxfold.operators.functions import DOMAIN, VERSION
from onnxfold.runtime.library import CUDA_PROVIDERS, register

__all__ = ["FORMS", "chain", "seconds"]

MICROSOFT = "com.microsoft"
# For each operation, ONNX Runtime's own operator: name, domain, and where it writes the sum.
FORMS: Mapping[str, tuple[str, str, int]] = MappingProxyType(
    {
        "rms": ("SimplifiedLayerNormalization", "", 0),
        "layer": ("LayerNormalization", "", 0),
        "add_rms": ("SkipSimplifiedLayerNormalization", MICROSOFT, 3),
        "add_layer": ("SkipLayerNormalization", MICROSOFT, 3),
    }
)
TYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
}


def chain(
    operation: Operation, form: tuple[str, str, int], dtype: str, rows: int, size: int, calls: int
) -> onnx.ModelProto:
    """`calls` nodes side by side: x{i} (residual{i}) to y{i} (sum{i}); scale, bias are inputs."""
    op, domain, sum_index = form
    attributes: dict[str, Any] = {"epsilon": EPSILON}
    if not op.startswith("Skip"):
        attributes["axis"] = -1
    if op == "Center":
        del attributes["epsilon"]
    elif op.startswith("CRMS"):
        attributes = {"epsilon": EPSILON}
    weights = [name for name in ("scale", "bias") if getattr(operation, name)]
    nodes, given, made = [], list(weights), []
    for i in range(calls):
        tensors = [f"x{i}", *([f"residual{i}"] if operation.residual else [])]
        outputs = [f"y{i}"]
        if operation.residual:
            outputs += [""] * (sum_index - 1) + [f"sum{i}"]
        nodes.append(
            helper.make_node(op, [*tensors, *weights], outputs, domain=domain, **attributes)
        )
        given += tensors
        made += [name for name in outputs if name]

    def info(name: str) -> onnx.ValueInfoProto:
        shape = [size] if name in weights else [rows, size]
        return helper.make_tensor_value_info(name, TYPES[dtype], shape)

    graph = helper.make_graph(nodes, "chain", [*map(info, given)], [*map(info, made)])
    versions = {"": 17, DOMAIN: VERSION, MICROSOFT: 1}
    imports = [helper.make_opsetid(name, version) for name, version in versions.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def seconds(
    name: str, operation: Operation, tensors: Tensors, *, ours: bool, calls: int, repeats: int
) -> npt.NDArray[np.float64]:
    """Seconds of one node, by the clock around runs that wait for all of them.

    Raises UnavailableError without a CUDA provider, or for an operation without an operator in ONNX
    Runtime.
    """
    if CUDA_PROVIDERS[0] not in ort.get_available_providers():
        raise UnavailableError
    if not ours and name not in FORMS:
        raise UnavailableError
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if ours:
        register(options, "cuda")
    form = (operation.op, DOMAIN, 1) if ours else FORMS[name]
    x = tensors.x[0]
    dtype = str(x.dtype).removeprefix("torch.")
    model = chain(operation, form, dtype, *x.shape, calls).SerializeToString()
    providers = [(CUDA_PROVIDERS[0], {"enable_cuda_graph": "1"})]
    session = ort.InferenceSession(model, options, providers=providers)
    binding = session.io_binding()
    for value in (*session.get_inputs(), *session.get_outputs()):
        key = value.name.rstrip("0123456789")
        held = getattr(tensors, key)
        tensor = held if key in ("scale", "bias") else held[int(value.name[len(key) :]) % len(held)]
        given = value.name in {one.name for one in session.get_inputs()}
        bind = binding.bind_input if given else binding.bind_output
        bind(value.name, "cuda", 0, TYPES[dtype], tuple(tensor.shape), tensor.data_ptr())
    times = np.empty(repeats)
    for repeat in range(-3, repeats):  # the first runs are captured
        start = time.perf_counter()
        session.run_with_iobinding(binding)
        if repeat >= 0:
            times[repeat] = (time.perf_counter() - start) / calls
    return times
