"""Models that a verification compares, and the comparison."""

from __future__ import annotations

from dataclasses import replace

import onnx
import onnx_ir as ir

from onnxfold.check import Verification
from onnxfold.check.compare import verify
from onnxfold.model_io.load import Source
from tests.folded import Weights


def verified(a: ir.Model, b: ir.Model, **options: object) -> Verification:
    return verify(Source(a), Source(b), **options)  # type: ignore[arg-type]  # as given


def single(body: str, inputs: str = "float[4, 8] x", outputs: str = "float[M, N] y") -> ir.Model:
    imports = '["": 17, "com.microsoft": 1, "org.x": 1]'
    return ir.from_proto(
        onnx.parser.parse_model(
            f"<ir_version: 9, opset_import: {imports}> g ({inputs}) => ({outputs}) {{ {body} }}"
        )
    )


def one_gamma(w: Weights) -> Weights:
    gamma = w.gamma.copy()
    gamma[3] *= 1.001
    return replace(w, gamma=gamma)
