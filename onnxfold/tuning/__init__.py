"""Chains of tools: each result is checked, and the fastest correct one is kept.

See `onnxfold tune` and :func:`onnxfold.tune`.
"""
