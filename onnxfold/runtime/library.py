"""The kernel library in ONNX Runtime: find it, check its version, register it, test it.

A model made by onnxfold runs without the library, by the bodies of its functions. With the library
registered on the session options, ONNX Runtime runs the kernels in their place.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx_ir as ir

from onnxfold.errors import DependencyError, OnnxfoldError, UsageError
from onnxfold.graph.constants import Array
from onnxfold.native import built
from onnxfold.operators.bodies import function, setting_of
from onnxfold.operators.functions import (
    DOMAIN,
    SIGNATURES,
    VERSION,
    Output,
    Signature,
    Statistics,
    call,
)
from onnxfold.runtime.cuda import compiled_for, driver, obstacle

if TYPE_CHECKING:
    import onnxruntime as ort

LIBRARY_VARIABLE = "ONNXFOLD_LIBRARY"
# ONNX Runtime's own provider for CUDA, and the one that it loads as a plugin.
CUDA_PROVIDERS = ("CUDAExecutionProvider", "CudaPluginExecutionProvider")
ONLY_FATAL = 4  # log level of sessions: other faults raise exceptions

_CPU_PROVIDER = "CPUExecutionProvider"
_FILES = {"cpu": "libonnxfold_ops.so", "cuda": "libonnxfold_ops_cuda.so"}
_REMEDIES = {
    "cpu": "reinstall onnxfold where a C++ compiler is, or build custom_ops with CMake",
    "cuda": "reinstall onnxfold where a CUDA toolkit is, with pip's option "
    "-C cmake.define.ONNXFOLD_CUDA=ON, or build custom_ops with CMake",
}
_MARK = b"onnxfold-ops version "
# ONNX Runtime cannot report whether a domain is registered, but the options can carry a note.
_NOTE = "onnxfold.library"

Provider: TypeAlias = str | tuple[str, dict[str, Any]]  # as ONNX Runtime accepts them


def get_library_path(device: str = "cpu") -> str:
    """Return the path of the kernel library for "cpu", or "cuda", which has both kernels.

    The environment variable ONNXFOLD_LIBRARY overrides it. Raises UsageError for another device or
    a variable that names no file, OnnxfoldError if the library was not built.
    """
    if device not in _FILES:
        raise UsageError(f"no kernel library for device {device!r}; known: {', '.join(_FILES)}")
    asked = os.environ.get(LIBRARY_VARIABLE)
    if asked:
        path = Path(asked).absolute()
        if not path.is_file():
            raise UsageError(f"{LIBRARY_VARIABLE} names {asked}, which is not a file")
        return str(path)
    found = built(_FILES[device])
    if found is None:
        raise OnnxfoldError(
            f"the {device} kernel library is not built: {_REMEDIES[device]} and set "
            f"{LIBRARY_VARIABLE} to the file; models run without it, by the bodies of their "
            f"functions"
        )
    return str(found)


def device_of(providers: Iterable[Provider]) -> str:
    """Return the device whose library a session with these execution providers needs."""
    names = {provider if isinstance(provider, str) else provider[0] for provider in providers}
    return "cuda" if names & set(CUDA_PROVIDERS) else "cpu"


def register(session_options: ort.SessionOptions, device: str | None = None) -> None:
    """Make sessions with these options run onnxfold's kernels; a second call does nothing.

    The library for "cuda" serves sessions on CUDA and on the CPU, the one for "cpu" only the CPU.
    Options do not reveal the providers of their sessions; without `device` it is "cuda" if this
    ONNX Runtime has a provider for CUDA and its library is present and can run on a device with its
    driver. With the provider but no such library it is "cpu", and a RuntimeWarning explains the
    effect on sessions on CUDA.

    Raises OnnxfoldError if the library is missing, belongs to another version of onnxfold, needs a
    newer ONNX Runtime, or for "cuda" another driver or device; UsageError if the options have the
    library of another device.
    """
    registered = _registered(session_options)
    if registered is not None and device is None:
        return
    path = _default_path() if device is None else _path_for(device)
    if registered is not None:
        if registered != path[-512:]:
            raise UsageError(
                f"these session options have {registered} already; {device!r} needs new ones"
            )
        return
    _check_table(path, os.stat(path).st_mtime_ns)
    from onnxruntime.capi.onnxruntime_pybind11_state import Fail

    try:
        session_options.register_custom_ops_library(path)
    except (Fail, RuntimeError) as cause:
        raise OnnxfoldError(f"ONNX Runtime rejects {path}: {cause}") from cause
    session_options.add_session_config_entry(_NOTE, path[-512:])


def session(
    model: str | os.PathLike[str] | bytes,
    session_options: ort.SessionOptions | None = None,
    *,
    providers: Sequence[Provider] | None = None,
) -> ort.InferenceSession:
    """Return an InferenceSession of `model` with onnxfold's kernels for its providers.

    Registers them on `session_options` if given. The default provider is the CPU's. Raises as
    `register` does, and DependencyError without onnxruntime.
    """
    try:
        import onnxruntime as ort
    except ImportError as error:
        raise DependencyError(
            "a session needs ONNX Runtime: pip install 'onnxfold[ort]', or 'onnxfold[gpu]'"
        ) from error
    options = session_options if session_options is not None else ort.SessionOptions()
    chosen = list(providers or [_CPU_PROVIDER])
    if _registered(options) is None or device_of(chosen) == "cuda":
        register(options, device_of(chosen))
    source = model if isinstance(model, bytes) else os.fspath(model)
    return ort.InferenceSession(source, options, providers=chosen)


@dataclass(frozen=True, slots=True)
class SelfTest:
    """Kernels against function bodies: `cases` run, the worst error in units of its bound."""

    passed: bool
    cases: int
    worst: float
    failures: tuple[str, ...]


def self_test(provider: str = _CPU_PROVIDER) -> SelfTest:
    """Run every operator in float32 and float16 by its kernel and by its body, and compare.

    Both run on `provider`. The model for the kernel contains no body, so it loads only if the
    kernel is found. Raises as `register` does.
    """
    failures = []
    worst, cases = 0.0, 0
    for signature in SIGNATURES.values():
        for dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
            ratio = _error_in_bounds(signature, dtype, provider)
            worst, cases = max(worst, ratio), cases + 1
            if not ratio <= 1:
                failures.append(f"{signature.name} {dtype.name}: {ratio:.3g} times its bound")
    return SelfTest(not failures, cases, worst, tuple(failures))


def runtime_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of onnxruntime, which lack a common base class."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    own = (v for v in vars(state).values() if isinstance(v, type) and issubclass(v, Exception))
    return (*own, RuntimeError, ValueError)


def has_cuda() -> bool:
    """Whether ONNX Runtime has its own provider for CUDA, and the driver a device."""
    from onnxruntime import get_available_providers

    return CUDA_PROVIDERS[0] in get_available_providers() and bool(driver().devices)


def find_cuda(providers: Iterable[Provider]) -> None:
    """Load the CUDA libraries installed by pip, if a provider needs them.

    They are in folders that no loader searches; ONNX Runtime knows the places from 1.21 on.
    """
    if device_of(providers) == "cuda":
        import onnxruntime

        if hasattr(onnxruntime, "preload_dlls"):
            onnxruntime.preload_dlls()


def check_providers(providers: Iterable[str]) -> None:
    """Raise UsageError for providers that the installed ONNX Runtime lacks but would accept."""
    try:
        from onnxruntime import get_available_providers
    except ImportError as error:
        raise UsageError("--providers needs onnxruntime, which is not installed") from error
    available = get_available_providers()
    unknown = [name for name in providers if name not in available]
    if unknown:
        raise UsageError(f"onnxruntime has no {unknown[0]!r} here; it has {', '.join(available)}")


def _registered(session_options: ort.SessionOptions) -> str | None:
    try:
        return str(session_options.get_session_config_entry(_NOTE))
    except RuntimeError:
        return None


def _device_of_runtime() -> str:
    import onnxruntime as ort

    names = list(ort.get_available_providers())
    if hasattr(ort, "get_ep_devices"):  # plugins, from ONNX Runtime 1.22 on
        names += [device.ep_name for device in ort.get_ep_devices()]
    return device_of(names)


def _default_path() -> str:
    """Return the library for this ONNX Runtime: the CPU's if the one for CUDA is missing."""
    if _device_of_runtime() == "cpu":
        return _path_for("cpu")
    try:
        return _path_for("cuda")
    except UsageError:
        raise
    except OnnxfoldError as cause:
        path = _path_for("cpu")
        # ONNX Runtime assigns a node to the provider that has a kernel, and copies its tensors
        # there.
        warnings.warn(
            "onnxfold registers its kernels for the CPU alone; this ONNX Runtime has CUDA too, and "
            "a session on CUDA with these options would compute its norms on the CPU: give it "
            f"options of its own without them. Why: {cause}",
            RuntimeWarning,
            stacklevel=3,
        )
        return path


def _path_for(device: str) -> str:
    """Return the library that a device needs, checked for its kernels."""
    path = get_library_path(device)
    if device == "cuda":
        _check_cuda(path)
    return path


def _check_cuda(path: str) -> None:
    """Raise OnnxfoldError if CUDA kernels would fail on every available device."""
    build, found = compiled_for(path), driver()
    if build is None:
        raise OnnxfoldError(f"{path} has no kernels for CUDA")
    if found.version is None:
        return
    reasons = [obstacle(build, found.version, device) for device in found.devices]
    told = [reason for reason in reasons if reason is not None]
    if told and len(told) == len(reasons):
        raise OnnxfoldError(f"{path} does not run here: {told[0]}")


def _table() -> bytes:
    rows = (
        f"{s.name} {s.statistics.name} {s.residual:d} {s.linear_bias:d} {s.affine.name} "
        f"{s.with_sum:d} {s.row_scale:d} {s.row_epsilon:d} {s.activation.name} {s.output.name}\n"
        for s in SIGNATURES.values()
    )
    return _MARK + f"{VERSION}\n{''.join(rows)}".encode()


@lru_cache(maxsize=8)
def _check_table(path: str, modified: int) -> None:
    """Compare the operator table in the library with SIGNATURES, once for each file."""
    content = Path(path).read_bytes()
    start = content.find(_MARK)
    if start < 0:
        raise OnnxfoldError(f"{path} is not onnxfold's kernel library")
    found = content[start : content.index(b"\0", start)]
    if found != _table():
        raise OnnxfoldError(f"{path} was built for another version of onnxfold; rebuild it")


def _error_in_bounds(signature: Signature, dtype: ir.DataType, provider: str) -> float:
    """Return the largest difference of kernel and body, in units of what rounding explains."""
    import onnxruntime as ort

    inputs = _test_inputs(signature, dtype)
    outputs = []
    for with_kernel in (True, False):
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        if with_kernel:
            register(options, device_of([provider]))
        model = _test_model(signature, dtype, inputs, with_body=not with_kernel)
        outputs.append(ort.InferenceSession(model, options, providers=[provider]).run(None, inputs))
    # Rows of 40 standard normals: 16 roundings of float32 statistics, 4 of the tensor type in the
    # body (terms, division, scale, bias), each of a value of at most 8.
    unit = 2.0**-24 if dtype is ir.DataType.FLOAT else 2.0**-11
    bound = 8 * (16 * 2.0**-24 + 4 * unit)
    # Codes may be rounded to either side; a scale of rows is 1/127 of a value.
    allowed = {"Y": 1.0 if signature.quantized else bound, "Y_scale": bound / 127, "Sum": bound}
    return max(
        float(np.max(np.abs(a.astype(np.float64) - b.astype(np.float64)))) / allowed[key]
        for key, a, b in zip(signature.outputs, *outputs, strict=True)
    )


def _test_inputs(signature: Signature, dtype: ir.DataType) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    rows, size = 3, 40
    full = signature.statistics is Statistics.CRMS_FULL
    shapes: dict[str, tuple[int, ...]] = {
        "X": (rows, size),
        "residual": (rows, size),
        "linear_bias": (size,),
        "scale": (size + full,),
        "bias": (size + full,),
        "row_scale": (rows, 1),
        "row_epsilon": (rows, 1),
        "y_scale": (),
        "y_zero_point": (),
    }
    inputs: dict[str, Array] = {
        key: np.asarray(rng.standard_normal(shapes[key]), _type_of_input(key, dtype).numpy())
        for key in signature.inputs
    }
    fixed = {"row_scale": 0.5, "row_epsilon": 0.5, "y_scale": 0.0625, "y_zero_point": 0}
    for key in fixed.keys() & inputs.keys():
        inputs[key] = np.full_like(inputs[key], fixed[key])
    return inputs


def _type_of_input(key: str, dtype: ir.DataType) -> ir.DataType:
    if key == "y_zero_point":
        return ir.DataType.INT8
    return ir.DataType.FLOAT if key in ("row_scale", "row_epsilon") else dtype


def _test_model(
    signature: Signature, dtype: ir.DataType, inputs: dict[str, Array], *, with_body: bool
) -> bytes:
    opset = 18
    values = [
        ir.Value(
            name=key,
            shape=ir.Shape(array.shape),
            type=ir.TensorType(_type_of_input(key, dtype)),
        )
        for key, array in inputs.items()
    ]
    node = call(signature.name, values, epsilon=1e-5)
    for output, key in zip(node.outputs, signature.outputs, strict=True):
        scales = signature.output is Output.SCALE
        own = ir.DataType.FLOAT if scales else ir.DataType.INT8 if signature.quantized else dtype
        output.name, output.type = key, ir.TensorType(own if key == "Y" else dtype)
        output.shape = ir.Shape([None, None])
    graph = ir.Graph(
        values,
        node.outputs,
        nodes=[node],
        opset_imports={"": opset, DOMAIN: VERSION},
        name="self_test",
    )
    functions = (
        [function(signature.name, opset, setting_of(node, opset, convertible=True))]
        if with_body
        else []
    )
    proto = ir.to_proto(ir.Model(graph, ir_version=8, functions=functions))
    return bytes(proto.SerializeToString())
