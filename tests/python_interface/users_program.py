"""Programs that mypy reads; none is run."""

from __future__ import annotations

RIGHT = """
from pathlib import Path
from typing import Any, assert_type

import numpy as np
import onnxfold

result = onnxfold.optimize(
    "m.onnx", target="ort", inputs={"ids": np.zeros((1, 4)), "mask": (1, 128)}, check=3
)
assert_type(result, onnxfold.Result)
onnxfold.optimize("m.onnx", Path("o.onnx"), target=onnxfold.Target.ORT, fuse_affine=False)
onnxfold.convert("m.onnx", to="crms", multiple_of=8)
found = onnxfold.inspect("m.onnx", fold="always")
assert_type(found, onnxfold.Inspection)
assert_type(found.to_dict(), dict[str, Any])
for row in found["norms"]:
    print(row["name"])
verified = onnxfold.verify("m.onnx", "o.onnx", inputs=["ids:1,4"], metric="cosine", max_error=0.1)
assert_type(verified, onnxfold.Verification | onnxfold.BudgetVerification)
assert_type(onnxfold.bench("m.onnx", "o.onnx", rounds=3), onnxfold.Benchmark)
assert_type(onnxfold.tune("m.onnx", "o.onnx", precision=["fp32", "int8"]), onnxfold.TuneResult)
assert_type(onnxfold.measure("m.onnx", batch=2), dict[str, Any])
assert_type(onnxfold.diff("m.onnx", "o.onnx"), dict[str, Any])
try:
    onnxfold.optimize("m.onnx")
except onnxfold.VerificationError as error:
    print(error.exit_code)
"""

WRONG = """
import onnxfold

onnxfold.optimize("m.onnx", taget="ort")  # wrong
onnxfold.convert("m.onnx")  # wrong
onnxfold.inspect("m.onnx", fold=1)  # wrong
onnxfold.verify("m.onnx")  # wrong
onnxfold.measure("m.onnx", None, batch="2")  # wrong
"""
