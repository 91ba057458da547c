"""Run a model in ONNX Runtime with onnxfold's kernels: python plain.py IN.onnx.

Where the library is registered, its kernels replace the bodies of the functions.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime as ort

import onnxfold

if len(sys.argv) != 2:
    sys.exit("usage: python plain.py IN.onnx")
source = Path(sys.argv[1])
fast = Path(tempfile.mkdtemp()) / "fast.onnx"
onnxfold.optimize(source, fast, target="kernels")

options = ort.SessionOptions()
onnxfold.register(options)
sessions = {
    "original": ort.InferenceSession(source),
    "folded": ort.InferenceSession(fast),
    "folded, with kernels": ort.InferenceSession(fast, options),
}

rng = np.random.default_rng(0)
feeds = {
    value.name: rng.standard_normal([d if isinstance(d, int) else 2 for d in value.shape], "f")
    for value in sessions["original"].get_inputs()
}
expected = sessions["original"].run(None, feeds)[0]
for name, session in sessions.items():
    error = np.abs(session.run(None, feeds)[0] - expected).max()
    print(f"{name}: differs from the original by at most {error:.2g}")
