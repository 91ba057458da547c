"""How each runtime loads and runs a file: name -> load(path, inputs) -> (run, facts).

`run(inputs)` returns the outputs in the order of the graph. Inputs of the same shapes are given to
`load` for those that compile for these. One thread and float32 wherever a runtime lets that be
chosen.
"""

from __future__ import annotations

import contextlib
import functools
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Inputs = dict[str, Any]
NORMS = (
    *("LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization"),
    *("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "EmbedLayerNormalization"),
)
Run = Callable[[Inputs], list[Any]]
Loaded = tuple[Run, dict[str, Any]]


def onnxruntime(path: str, inputs: Inputs) -> Loaded:
    with tempfile.TemporaryDirectory() as folder:
        optimized = Path(folder) / "optimized.onnx"
        run = _session(path, ["CPUExecutionProvider"], optimized)
        return run, _executed(optimized)


def ort_format(path: str, inputs: Inputs) -> Loaded:
    """What ONNX Runtime's converter writes for builds without ONNX."""
    from onnxruntime.tools import convert_onnx_models_to_ort as converter

    with tempfile.TemporaryDirectory() as folder:
        style = converter.OptimizationStyle.Fixed
        converter.convert_onnx_models_to_ort(
            Path(path), output_dir=Path(folder), optimization_styles=[style]
        )
        converted = next(Path(folder).glob("*.ort"))
        return _session(str(converted), ["CPUExecutionProvider"], None), {}


def onnxruntime_openvino(path: str, inputs: Inputs) -> Loaded:
    options = {"device_type": "CPU", "num_of_threads": "1"}
    providers = [("OpenVINOExecutionProvider", options), "CPUExecutionProvider"]
    return _session(path, providers, None), {}


def _session(path: str, providers: list[Any], optimized: Path | None) -> Run:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    session = ort.InferenceSession(path, options, providers=providers)
    return lambda given: session.run(None, given)


def _executed(path: Path) -> dict[str, int]:
    """Return how many nodes a session executes, and how many norms of them are one operator."""
    import onnx

    kinds = [node.op_type for node in onnx.load(path, load_external_data=False).graph.node]
    return {"nodes": len(kinds), "norms": sum(kind in NORMS for kind in kinds)}


def onnx_reference(path: str, inputs: Inputs) -> Loaded:
    from onnx.reference import ReferenceEvaluator

    session = ReferenceEvaluator(path)
    return lambda given: session.run(None, given), {}


def openvino(path: str, inputs: Inputs) -> Loaded:
    import openvino as ov

    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = ov.Core().compile_model(path, "CPU", settings)
    request = compiled.create_infer_request()

    def run(given: Inputs) -> list[Any]:
        found = request.infer(given)
        return [found[output] for output in compiled.outputs]

    layers = [node.get_rt_info()["layerType"] for node in compiled.get_runtime_model().get_ops()]
    return run, {"nodes": len(layers)}


def opencv(path: str, inputs: Inputs) -> Loaded:
    import cv2

    cv2.setNumThreads(1)
    net = cv2.dnn.readNetFromONNX(path)

    def run(given: Inputs) -> list[Any]:
        for name, array in given.items():
            net.setInput(array, name)
        return [net.forward()]  # of the one output that each export has

    return run, {}


def iree(path: str, inputs: Inputs) -> Loaded:
    import iree.runtime as rt

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _program("iree-import-onnx", path, "-o", folder / "model.mlir")
        _program(
            "iree-compile",
            folder / "model.mlir",
            "--iree-hal-target-device=local",
            "--iree-hal-local-target-device-backends=llvm-cpu",
            "--iree-llvmcpu-target-cpu=host",
            "-o",
            folder / "model.vmfb",
        )
        module = rt.load_vm_flatbuffer((folder / "model.vmfb").read_bytes(), driver="local-sync")
    # The one function of the module that is not a copy for asynchronous calls.
    (entry,) = (f for f in module.vm_module.function_names if not f.endswith(("$async", "init")))
    function = module[entry]

    def run(given: Inputs) -> list[Any]:
        found = function(*given.values())
        return [np.asarray(each) for each in (found if isinstance(found, tuple) else (found,))]

    return run, {}


def tract(path: str, inputs: Inputs) -> Loaded:
    import tract as package

    model = package.onnx().load(path)
    for index, array in enumerate(inputs.values()):
        shape = ",".join(map(str, array.shape))
        model.set_input_fact(index, f"{shape},{_letter(array)}{8 * array.itemsize}")
    runnable = model.into_model().into_runnable()
    return lambda given: [each.to_numpy() for each in runnable.run(list(given.values()))], {}


def mnn(path: str, inputs: Inputs) -> Loaded:
    import MNN
    from MNN import expr

    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "model.mnn"
        arguments = ("-f", "ONNX", "--modelFile", path, "--MNNModel", file, "--bizCode", "x")
        _program("mnnconvert", *arguments, made=file)
        config = {"backend": 0, "numThread": 1, "precision": "high"}
        manager = MNN.nn.create_runtime_manager((config,))
        module = MNN.nn.load_module_from_file(str(file), list(inputs), [], runtime_manager=manager)
    kinds = {"float32": expr.float, "int32": expr.int}

    def run(given: Inputs) -> list[Any]:
        fed = []
        for array in given.values():
            # MNN takes numbers of 32 bits.
            small = array.astype({"i": np.int32, "f": np.float32}[array.dtype.kind])
            fed.append(expr.const(small, small.shape, expr.NCHW, kinds[str(small.dtype)]))
        return [np.array(each.read()) for each in module.forward(fed)]

    return run, {}


def pnnx(path: str, inputs: Inputs) -> Loaded:
    import importlib.util
    import shutil

    import pnnx as package

    folder = Path(tempfile.mkdtemp())
    shutil.copy(path, folder / "model.onnx")
    shapes = ",".join(
        f"[{','.join(map(str, array.shape))}]{_letter(array)}{8 * array.itemsize}"
        for array in inputs.values()
    )
    # Its script would import torch once more.
    _program(package.EXEC_PATH, "model.onnx", f"inputshape={shapes}", "fp16=0", folder=folder)
    spec = importlib.util.spec_from_file_location("model_pnnx", folder / "model_pnnx.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _inside(folder):
        spec.loader.exec_module(module)
        model = module.Model().eval()
    shutil.rmtree(folder)
    return _torch(model), {}


def onnx2torch(path: str, inputs: Inputs) -> Loaded:
    _declare_torchvision()
    import onnx2torch as package

    return _torch(package.convert(path).eval()), {}


def onnx2pytorch(path: str, inputs: Inputs) -> Loaded:
    import onnx

    _declare_torchvision()
    from onnx2pytorch import ConvertModel

    # Its own word for a batch of more than one.
    model = ConvertModel(onnx.load(path), experimental=True)
    return _torch(model.eval()), {}


def onnx2tf(path: str, inputs: Inputs) -> Loaded:
    import onnx
    import onnx2tf as package
    import tensorflow as tf

    names = [output.name for output in onnx.load(path).graph.output]
    pictures = [name for name, array in inputs.items() if array.ndim > 2]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        # The pictures that it tries image models on, which it would fetch from the network.
        samples = np.random.default_rng(0).random((20, 128, 128, 3), np.float32)
        np.save("calibration_image_sample_data_20x128x128x3_float32.npy", samples)
        package.convert(
            input_onnx_file_path=path,
            output_folder_path=folder,
            copy_onnx_input_output_names_to_tflite=True,
            keep_ncw_or_nchw_or_ncdhw_input_names=pictures,  # otherwise they are transposed
            non_verbose=True,
        )
        file = next(Path(folder).glob("*_float32.tflite")).read_bytes()
    runner = tf.lite.Interpreter(model_content=file, num_threads=1).get_signature_runner()
    taken = {name: told["dtype"] for name, told in runner.get_input_details().items()}

    def run(given: Inputs) -> list[Any]:
        found = runner(**{name: array.astype(taken[name]) for name, array in given.items()})
        return [found[name] for name in names]

    return run, {}


@functools.cache
def _declare_torchvision() -> Any:
    """Declare the operators that torchvision asks for; they are never called.

    Converters import torchvision, whose native library wants the torch it was built with.
    """
    import torch

    declared = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return declared


def _torch(model: Any) -> Run:
    import torch

    torch.set_num_threads(1)

    def run(given: Inputs) -> list[Any]:
        with torch.no_grad():
            found = model(*map(torch.from_numpy, given.values()))
        return [each.numpy() for each in (found if isinstance(found, tuple | list) else (found,))]

    return run


def tvm(path: str, inputs: Inputs) -> Loaded:
    import onnx
    import tvm as package
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    shapes = {name: list(array.shape) for name, array in inputs.items()}
    module = from_onnx(onnx.load(path), shape_dict=shapes, keep_params_in_input=False)
    built = package.compile(module, target=package.target.Target("llvm"))
    machine = relax.VirtualMachine(built, package.cpu())

    def run(given: Inputs) -> list[Any]:
        found = machine["main"](*map(package.runtime.tensor, given.values()))
        return [found.numpy()] if hasattr(found, "numpy") else [each.numpy() for each in found]

    return run, {}


def tinygrad(path: str, inputs: Inputs) -> Loaded:
    from tinygrad import Tensor
    from tinygrad.nn.onnx import OnnxRunner

    runner = OnnxRunner(path)
    return lambda given: [
        each.numpy()
        for each in runner({name: Tensor(array) for name, array in given.items()}).values()
    ], {}


def jaxonnxruntime(path: str, inputs: Inputs) -> Loaded:
    import onnx
    from jaxonnxruntime import config
    from jaxonnxruntime.backend import Backend

    config.update("jaxort_only_allow_initializers_as_static_args", False)
    prepared = Backend.prepare(onnx.load(path))
    return lambda given: [np.asarray(each) for each in prepared.run(given)], {}


def _program(*command: object, folder: Path | None = None, made: Path | None = None) -> None:
    """Run a converter; RuntimeError with its complaint where it fails or `made` is not there."""
    done = subprocess.run(
        list(map(str, command)), cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode or (made is not None and not made.exists()):
        said = (done.stderr + "\n" + done.stdout).strip().splitlines()
        loud = [line for line in said if "rror" in line or "ot Support" in line] or said[-1:]
        raise RuntimeError("; ".join(loud[:2]) or f"{command[0]} exits with {done.returncode}")


def _letter(array: Any) -> str:
    return "f" if array.dtype.kind == "f" else "i"


def _inside(folder: Path) -> Any:
    import contextlib

    return contextlib.chdir(folder)
