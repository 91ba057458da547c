"""A model repository for Triton Inference Server: the optimized model, its kernels, its config."""
