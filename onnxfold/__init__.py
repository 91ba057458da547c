"""onnxfold: the same function with cheaper normalization."""
