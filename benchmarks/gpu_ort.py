"""Norms in ONNX Runtime on CUDA: one model of many equal nodes, replayed as a CUDA graph."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import helper

from benchmarks.gpu_methods import EPSILON, Operation, Tensors, UnavailableError
from benchmarks.graphs import MICROSOFT, Shape, model, node
from onnxfold.operators.functions import DOMAIN
from onnxfold.runtime.library import CUDA_PROVIDERS, register

__all__ = ["FORMS", "chain", "seconds"]

# For each operation, ONNX Runtime's own operator: name, domain, and where it writes the sum.
FORMS: Mapping[str, tuple[str, str, int]] = {
    "rms": ("SimplifiedLayerNormalization", "", 0),
    "layer": ("LayerNormalization", "", 0),
    "add_rms": ("SkipSimplifiedLayerNormalization", MICROSOFT, 3),
    "add_layer": ("SkipLayerNormalization", MICROSOFT, 3),
}
TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def chain(
    operation: Operation, form: tuple[str, str, int], dtype: str, rows: int, size: int, calls: int
) -> onnx.ModelProto:
    """`calls` nodes side by side: x{i} (residual{i}) to y{i} (sum{i}); scale, bias are inputs."""
    op, domain, sum_index = form
    attributes: dict[str, Any] = {"epsilon": EPSILON, "axis": -1}
    if op == "Center":
        del attributes["epsilon"]
    elif op.startswith(("CRMS", "Skip")):
        del attributes["axis"]
    weights = [name for name in ("scale", "bias") if getattr(operation, name)]
    inputs: dict[str, Shape] = {name: [size] for name in weights}
    nodes, outputs = [], dict[str, Shape]()
    for i in range(calls):
        tensors, made = [f"x{i}"], [f"y{i}"]
        if operation.residual:
            tensors.append(f"residual{i}")
            made += ["-"] * (sum_index - 1) + [f"sum{i}"]
        line = f"{op} {' '.join([*tensors, *weights])} -> {' '.join(made)}"
        nodes.append(node(line, domain, **attributes))
        inputs |= dict.fromkeys(tensors, (rows, size))
        outputs |= {name: (rows, size) for name in made if name != "-"}
    return model(nodes, inputs, outputs, {}, opset=17, dtype=TYPES[dtype])


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
    made = chain(operation, form, dtype, *x.shape, calls).SerializeToString()
    providers = [(CUDA_PROVIDERS[0], {"enable_cuda_graph": "1"})]
    session = ort.InferenceSession(made, options, providers=providers)
    binding = session.io_binding()
    for value in (*session.get_inputs(), *session.get_outputs()):
        key = value.name.rstrip("0123456789")
        held = getattr(tensors, key)
        tensor = held if key in ("scale", "bias") else held[int(value.name[len(key) :]) % len(held)]
        given = value.name in {one.name for one in session.get_inputs()}
        bind = binding.bind_input if given else binding.bind_output
        bind(
            value.name,
            "cuda",
            0,
            helper.np_dtype_to_tensor_dtype(np.dtype(TYPES[dtype])),
            tuple(tensor.shape),
            tensor.data_ptr(),
        )
    times = np.empty(repeats)
    for repeat in range(-3, repeats):  # the first runs are captured
        start = time.perf_counter()
        session.run_with_iobinding(binding)
        if repeat >= 0:
            times[repeat] = (time.perf_counter() - start) / calls
    return times
