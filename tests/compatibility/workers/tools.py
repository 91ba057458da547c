"""How each tool rewrites a file: name -> apply(source, target, inputs, **options) -> facts or None.

Every tool is called as its documentation says, with its defaults; what it writes is run afterwards
in ONNX Runtime.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import shutil
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx

Inputs = dict[str, Any]
# Fused operators of ONNX Runtime's transformers optimizer, under one name for the LayerNorm and the
# RMSNorm form.
FUSED = {
    "Attention": "Attention",
    "MultiHeadAttention": "Attention",
    "EmbedLayerNormalization": "EmbedLayerNormalization",
    "SkipLayerNormalization": "SkipNorm",
    "SkipSimplifiedLayerNormalization": "SkipNorm",
    "BiasGelu": "Gelu",
    "FastGelu": "Gelu",
    "Gelu": "Gelu",
    "QuickGelu": "Gelu",
    "RotaryEmbedding": "RotaryEmbedding",
}


def checker(source: Path, target: Path, inputs: Inputs) -> None:
    onnx.checker.check_model(str(source), full_check=True)
    shutil.copy(source, target)


def shape_inference(source: Path, target: Path, inputs: Inputs) -> None:
    model = onnx.load(source)
    onnx.save(onnx.shape_inference.infer_shapes(model, True, True, True), target)


def inliner(source: Path, target: Path, inputs: Inputs) -> None:
    import onnx.inliner

    onnx.save(onnx.inliner.inline_local_functions(onnx.load(source)), target)


def extract_model(source: Path, target: Path, inputs: Inputs) -> None:
    graph = onnx.load(source).graph
    names = [[value.name for value in values] for values in (graph.input, graph.output)]
    onnx.utils.extract_model(str(source), str(target), *names)


def compose(source: Path, target: Path, inputs: Inputs) -> None:
    """Append a model that passes its input on to the first output."""
    model = onnx.load(source)
    (kind,) = (output.type for output in model.graph.output)
    ends = [onnx.ValueInfoProto(name=name, type=kind) for name in ("given", "passed")]
    node = onnx.helper.make_node("Identity", ["given"], ["passed"])
    graph = onnx.helper.make_graph([node], "behind", ends[:1], ends[1:])
    standard = [each for each in model.opset_import if not each.domain]
    behind = onnx.helper.make_model(graph, opset_imports=standard, ir_version=model.ir_version)
    joined = [(model.graph.output[0].name, "given")]
    onnx.save(onnx.compose.merge_models(model, behind, io_map=joined), target)


def version_converter(source: Path, target: Path, inputs: Inputs, *, by: int) -> None:
    model = onnx.load(source)
    (version,) = (each.version for each in model.opset_import if not each.domain)
    onnx.save(onnx.version_converter.convert_version(model, version + by), target)


def symbolic_shape_infer(source: Path, target: Path, inputs: Inputs) -> None:
    from onnxruntime.tools.symbolic_shape_infer import SymbolicShapeInference

    onnx.save(SymbolicShapeInference.infer_shapes(onnx.load(source)), target)


def quant_pre_process(source: Path, target: Path, inputs: Inputs) -> None:
    from onnxruntime.quantization.shape_inference import quant_pre_process as process

    process(str(source), str(target))


def quantize_dynamic(source: Path, target: Path, inputs: Inputs) -> None:
    from onnxruntime.quantization import quantize_dynamic as quantize

    quantize(str(source), str(target))


def quantize_static(source: Path, target: Path, inputs: Inputs) -> None:
    from onnxruntime.quantization import CalibrationDataReader
    from onnxruntime.quantization import quantize_static as quantize

    quantize(str(source), str(target), _reader(CalibrationDataReader, inputs))


def _reader(base: type[Any], inputs: Inputs) -> Any:
    """Return a reader of calibration data, of a package's class, that reads one sample."""

    class Once(base):  # type: ignore[misc] # a class that is known at run time
        def __init__(self) -> None:
            self.rewind()

        def rewind(self) -> None:
            self.left = [inputs]

        def get_next(self) -> Inputs | None:
            return self.left.pop() if self.left else None

    return Once()


def float16_common(source: Path, target: Path, inputs: Inputs) -> None:
    from onnxconverter_common import float16

    onnx.save(float16.convert_float_to_float16(onnx.load(source), keep_io_types=True), target)


def float16_onnxruntime(source: Path, target: Path, inputs: Inputs) -> None:
    from onnxruntime.transformers import float16

    onnx.save(float16.convert_float_to_float16(onnx.load(source), keep_io_types=True), target)


def mixed_precision(source: Path, target: Path, inputs: Inputs) -> None:
    from onnxconverter_common import auto_mixed_precision

    # The tolerances of its documentation; it lacks defaults.
    made = auto_mixed_precision.auto_convert_mixed_precision(
        onnx.load(source), inputs, rtol=0.01, atol=0.001, keep_io_types=True
    )
    onnx.save(made, target)


def matmul_nbits(source: Path, target: Path, inputs: Inputs) -> None:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    # The least block there is; the default is wider than the weights.
    quantizer = MatMulNBitsQuantizer(onnx.load(source), block_size=16)
    quantizer.process()
    quantizer.model.save_model_to_file(str(target))


def transformers_optimizer(
    source: Path,
    target: Path,
    inputs: Inputs,
    *,
    model_type: str,
    heads: int,
    width: int,
    level: int | None,
) -> dict[str, Any]:
    from onnxruntime.transformers import optimizer

    made = optimizer.optimize_model(
        str(source), model_type=model_type, num_heads=heads, hidden_size=width, opt_level=level
    )
    made.save_model_to_file(str(target))
    kinds = Counter(FUSED[node.op_type] for node in made.nodes() if node.op_type in FUSED)
    return {"fusions": dict(sorted(kinds.items()))}


def onnxslim(source: Path, target: Path, inputs: Inputs) -> None:
    import onnxslim as package

    onnx.save(package.slim(onnx.load(source)), target)


def onnxoptimizer(source: Path, target: Path, inputs: Inputs) -> None:
    import onnxoptimizer as package

    onnx.save(package.optimize(onnx.load(source)), target)


def graphsurgeon(source: Path, target: Path, inputs: Inputs) -> None:
    import onnx_graphsurgeon as package

    graph = package.import_onnx(onnx.load(source))
    graph.fold_constants(error_ok=False).cleanup().toposort()
    onnx.save(package.export_onnx(graph), target)


def polygraphy(source: Path, target: Path, inputs: Inputs) -> None:
    command = ["polygraphy", "surgeon", "sanitize", source, "-o", target, "--fold-constants"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stdout + done.stderr).strip())


def onnxsim(source: Path, target: Path, inputs: Inputs) -> None:
    import onnxsim as package

    model, checked = package.simplify(onnx.load(source))
    if not checked:
        raise RuntimeError("onnxsim: its own check of the result fails")
    onnx.save(model, target)


def onnxscript(source: Path, target: Path, inputs: Inputs) -> None:
    import onnxscript.optimizer

    onnx.save(onnxscript.optimizer.optimize(onnx.load(source)), target)


def nncf(source: Path, target: Path, inputs: Inputs) -> None:
    import nncf as package

    data = package.Dataset([inputs])
    onnx.save(package.quantize(onnx.load(source), data, subset_size=1), target)


def quark(source: Path, target: Path, inputs: Inputs) -> None:
    from onnxruntime.quantization import CalibrationDataReader
    from quark.onnx import ModelQuantizer
    from quark.onnx.quantization.config.config import Config
    from quark.onnx.quantization.config.custom_config import get_default_config

    config = Config(global_quant_config=get_default_config("S8S8_AAWS"))
    reader = _reader(CalibrationDataReader, inputs)
    ModelQuantizer(config).quantize_model(str(source), str(target), reader)


def neural_compressor(source: Path, target: Path, inputs: Inputs) -> None:
    from onnx_neural_compressor.data_reader import CalibrationDataReader
    from onnx_neural_compressor.quantization import config, quantize

    reader = _reader(CalibrationDataReader, inputs)
    quantize(str(source), str(target), config.StaticQuantConfig(reader))


def aimet(source: Path, target: Path, inputs: Inputs) -> None:
    from aimet_onnx.quantsim import QuantizationSimModel

    simulated = QuantizationSimModel(onnx.load(source))
    simulated.compute_encodings([inputs])
    onnx.save(simulated.to_onnx_qdq(), target)


def olive(source: Path, target: Path, inputs: Inputs, *, passes: dict[str, dict[str, Any]]) -> None:
    from olive.workflows import run

    with tempfile.TemporaryDirectory() as folder:
        found = run(
            {
                "input_model": {"type": "ONNXModel", "model_path": str(source)},
                "passes": passes,
                "output_dir": f"{folder}/output",
                "cache_dir": f"{folder}/cache",
                "log_severity_level": 4,
            }
        )
        best = found.get_best_candidate()
        if best is None:
            raise RuntimeError("Olive ends without a model")
        onnx.save(onnx.load(best.model_path), target)


def netron(source: Path, target: Path, inputs: Inputs) -> dict[str, Any]:
    """Have Chromium open the page of Netron, and count the nodes that it has drawn."""
    import netron as package

    address = package.start(str(source), browse=False)
    with _consenting(address) as port, tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            [  # noqa: S607  wherever the distribution has put it
                "chromium",
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost",
                f"--user-data-dir={profile}",
                "--virtual-time-budget=60000",
                "--dump-dom",
                f"http://localhost:{port}",
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
    package.stop()
    drawn = done.stdout.count('class="node graph-node"')
    # A Constant is drawn within the nodes that read it.
    nodes = sum(node.op_type != "Constant" for node in onnx.load(source).graph.node)
    if drawn != nodes:
        raise RuntimeError(f"{drawn} of {nodes} nodes are drawn")
    shutil.copy(source, target)
    return {"drawn": drawn}


@contextlib.contextmanager
def _consenting(address: tuple[str, int]) -> Iterator[int]:
    """Pass a server's pages on with the cookie that Netron otherwise asks a person for."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = http.client.HTTPConnection(*address)
            asked.request("GET", self.path)
            given = asked.getresponse()
            self.send_response(given.status)
            self.send_header("Content-Type", given.headers["Content-Type"] or "text/plain")
            self.send_header("Set-Cookie", "consent=1")
            self.end_headers()
            self.wfile.write(given.read())

    with http.server.ThreadingHTTPServer(("localhost", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()
