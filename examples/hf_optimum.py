"""Serve a Hugging Face model with optimum and onnxfold: python hf_optimum.py FOLDER.

FOLDER is a model of transformers, as save_pretrained writes it. optimum takes the session options
on which the kernels are registered, and the optimized file by its name.
"""

import sys
from pathlib import Path

import onnxruntime as ort
import torch
from optimum.onnxruntime import ORTModelForFeatureExtraction

import onnxfold

folder = Path(sys.argv[1])
exported = folder / "onnx"
ORTModelForFeatureExtraction.from_pretrained(folder, export=True).save_pretrained(exported)
folded = exported / "model_onnxfold.onnx"
result = onnxfold.optimize(exported / "model.onnx", folded, target="kernels")
print(result.report["inspect"]["summary"]["foldable"], "norms folded")

options = ort.SessionOptions()
onnxfold.register(options)
plain = ORTModelForFeatureExtraction.from_pretrained(exported, file_name="model.onnx")
fast = ORTModelForFeatureExtraction.from_pretrained(
    exported, file_name="model_onnxfold.onnx", session_options=options
)

ids = torch.arange(1, 9).reshape(1, 8)
inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
difference = plain(**inputs).last_hidden_state - fast(**inputs).last_hidden_state
print(f"outputs differ by at most {difference.abs().max().item():.2g}")
