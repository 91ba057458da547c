"""The table of what is tried: runtimes, which run a file, and tools, which rewrite one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.compatibility.exports import ARCHITECTURES, EVERY_OTHER, OPSETS

__all__ = ["RUNTIMES", "SUBJECTS", "TOOLS", "UNTRIED", "Subject"]

# Unit roundoffs of what a subject computes in.
_FLOAT32, _FLOAT16, _INT8, _INT4 = 2.0**-24, 2.0**-11, 2.0**-8, 2.0**-4


@dataclass(frozen=True, slots=True)
class Subject:
    """A runtime or a tool.

    function: its name in workers/runtimes.py, tools.py or worker.js. package: whose version the
    page names. fixed: it is given exports with fixed shapes. roundoff: of its type.
    opsets: fewer than all where one file takes it many seconds. fast: a part of `.ci/run`.
    """

    name: str
    environment: str
    package: str
    function: str
    tool: bool = False
    fixed: bool = False
    fast: bool = False
    roundoff: float = _FLOAT32
    opsets: tuple[int, ...] = OPSETS
    options: Mapping[str, Any] = field(default_factory=dict)
    typed: bool = False  # only architectures that have a model_type

    def takes(self, architecture: str, opset: int) -> bool:
        """Say whether the matrix has a cell for this export."""
        about = ARCHITECTURES[architecture]
        known = not self.typed or about.model_type is not None
        return known and opset in self.opsets and opset in about.opsets

    def settings(self, architecture: str) -> dict[str, Any]:
        """Return the options of a tool for one architecture."""
        if not self.typed:
            return dict(self.options)
        about = ARCHITECTURES[architecture]
        named = {"model_type": about.model_type, "heads": about.heads, "width": about.width}
        return {**self.options, **named}


RUNTIMES: Final = (
    Subject("ONNX Runtime, CPU", "onnx", "onnxruntime", "onnxruntime", fast=True),
    Subject(
        "ONNX Runtime, OpenVINO",
        "openvino-provider",
        "onnxruntime-openvino",
        "onnxruntime_openvino",
    ),
    Subject("ONNX Runtime, ORT format", "onnx", "onnxruntime", "ort_format", fast=True),
    Subject("onnxruntime-node", "node", "onnxruntime-node", "onnxruntime_node"),
    Subject("onnxruntime-web", "node", "onnxruntime-web", "onnxruntime_web"),
    Subject("OpenVINO", "openvino", "openvino", "openvino", fast=True),
    Subject("OpenCV 5", "opencv-5", "opencv-python-headless", "opencv"),
    Subject("OpenCV 4", "opencv-4", "opencv-python-headless", "opencv", fixed=True),
    Subject("IREE", "iree", "iree-base-compiler", "iree", fixed=True, opsets=EVERY_OTHER),
    Subject("tract", "tract", "tract", "tract", fixed=True),
    # Where dynamo has named a size inside of the graph, tract unifies it with no number.
    Subject("tract, sizes given at load", "tract", "tract", "tract", opsets=(17,)),
    Subject("MNN", "mnn", "MNN", "mnn", fixed=True),
    Subject("pnnx", "ncnn", "pnnx", "pnnx", fixed=True),
    Subject("onnx2torch", "onnx2torch", "onnx2torch", "onnx2torch", fixed=True, fast=True),
    Subject("onnx2pytorch", "onnx2pytorch", "onnx2pytorch", "onnx2pytorch", fixed=True),
    Subject("onnx2tf", "onnx2tf", "onnx2tf", "onnx2tf", fixed=True, opsets=EVERY_OTHER),
    Subject("TVM", "tvm", "apache-tvm", "tvm", fixed=True, opsets=EVERY_OTHER),
    Subject("tinygrad", "tinygrad", "tinygrad", "tinygrad", fixed=True),
    Subject("jaxonnxruntime", "jax", "jaxonnxruntime", "jaxonnxruntime", fixed=True),
    Subject("onnx.reference", "onnx", "onnx", "onnx_reference", fast=True),
)


def _onnx(name: str, package: str, function: str, **more: Any) -> Subject:
    return Subject(name, "onnx", package, function, tool=True, **more)


def _rewriter(name: str, package: str, function: str) -> Subject:
    return Subject(name, "rewriters", package, function, tool=True)


def _optimizer(level: int | None) -> Subject:
    named = "" if level is None else f", opt_level {level}"
    return _onnx(
        f"transformers optimizer{named}",
        "onnxruntime",
        "transformers_optimizer",
        options={"level": level},
        typed=True,
        fast=level in (None, 0),
    )


def _quantizer(name: str, environment: str, package: str, function: str) -> Subject:
    return Subject(name, environment, package, function, True, roundoff=_INT8, opsets=EVERY_OTHER)


def _olive(name: str, **more: Any) -> Subject:
    options = {"passes": {"only": {"type": name}}}
    return Subject(
        f"Olive {name}", "olive", "olive-ai", "olive", True, opsets=(18,), options=options, **more
    )


TOOLS: Final = (
    _onnx("onnx.checker", "onnx", "checker", fast=True),
    _onnx("onnx.shape_inference", "onnx", "shape_inference", fast=True),
    _onnx("onnx.inliner", "onnx", "inliner", fast=True),
    _onnx("onnx.utils.extract_model", "onnx", "extract_model", fast=True),
    _onnx("onnx.compose", "onnx", "compose", fast=True),
    _onnx("version_converter up", "onnx", "version_converter", options={"by": 1}, fast=True),
    _onnx("version_converter down", "onnx", "version_converter", options={"by": -1}, fast=True),
    _onnx("symbolic_shape_infer", "onnxruntime", "symbolic_shape_infer", fast=True),
    _onnx("quant_pre_process", "onnxruntime", "quant_pre_process"),
    _onnx("quantize_dynamic", "onnxruntime", "quantize_dynamic", roundoff=_INT8),
    _onnx("quantize_static", "onnxruntime", "quantize_static", roundoff=_INT8),
    _onnx(
        "float16, onnxconverter-common",
        "onnxconverter-common",
        "float16_common",
        roundoff=_FLOAT16,
        fast=True,
    ),
    _onnx(
        "float16, ONNX Runtime",
        "onnxruntime",
        "float16_onnxruntime",
        roundoff=_FLOAT16,
        fast=True,
    ),
    _onnx(
        "mixed precision, onnxconverter-common",
        "onnxconverter-common",
        "mixed_precision",
        roundoff=_FLOAT16,
        opsets=(18,),
    ),
    _onnx("MatMulNBits", "onnxruntime", "matmul_nbits", roundoff=_INT4),
    *(_optimizer(level) for level in (None, 0, 1, 2)),
    _onnx("onnxslim", "onnxslim", "onnxslim", fast=True),
    _onnx("onnxsim", "onnxsim", "onnxsim", fast=True),
    _rewriter("onnxoptimizer", "onnxoptimizer", "onnxoptimizer"),
    _rewriter("onnx-graphsurgeon", "onnx_graphsurgeon", "graphsurgeon"),
    _rewriter("Polygraphy surgeon", "polygraphy", "polygraphy"),
    _onnx("onnxscript optimizer", "onnxscript", "onnxscript"),
    _quantizer("NNCF", "nncf", "nncf", "nncf"),
    _quantizer("AMD Quark", "quark", "amd-quark", "quark"),
    _quantizer(
        "ONNX Neural Compressor",
        "neural-compressor",
        "onnx-neural-compressor",
        "neural_compressor",
    ),
    _quantizer("AIMET", "aimet", "aimet-onnx", "aimet"),
    _olive("OrtTransformersOptimization"),
    _olive("OnnxFloatToFloat16", roundoff=_FLOAT16),
    _olive("OnnxDynamicQuantization", roundoff=_INT8),
    _olive("OnnxPeepholeOptimizer"),
    Subject("Netron", "netron", "netron", "netron", True, opsets=(18,)),
)
SUBJECTS: Final = {subject.name: subject for subject in (*RUNTIMES, *TOOLS)}

# Candidates that are not part of the matrix, with the reason.
UNTRIED: Final = {
    "tract, `--target ort --device cuda`": "version 0.23.9 leaves out the bias of "
    "SkipSimplifiedLayerNormalization, its fourth operand: outputs of four of five small exports "
    "are wrong by 0.3 to 2.4 of the largest; such a file is for ONNX Runtime on CUDA alone",
    "TensorRT": "its libraries are in no package of PyPI",
    "MNN, the same file again": "version 3.6.1 makes of BERT and GPT-2 by TorchScript, opset 17, a "
    "right model or one that is off by 0.00011 and 0.039, by turns: in 12 processes each, 12 and "
    "10 times the latter of the exports themselves, 12 and 11 times of what is made of them",
    "RKNN-Toolkit2": "version 2.5.0 asks for torch 2.4 at most, and refuses opsets above 19",
    "RTen, burn, candle": "they are Rust crates; environments are of Python's and npm's packages",
    "ncnn": "its networks have no batch axis; what pnnx writes for torch is run instead",
}
