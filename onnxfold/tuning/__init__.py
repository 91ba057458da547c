"""The whole road: chains of tools, each result checked, the fastest right one kept.

`onnxfold tune` and :func:`onnxfold.tune`.
"""
