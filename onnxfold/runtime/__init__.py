"""ONNX Runtime with the kernel library: registration, self-test, timing, examination."""
