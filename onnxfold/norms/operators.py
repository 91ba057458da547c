"""The norms that are one operator: standard, ONNX Runtime's, and onnxfold's own."""

NORM_OPERATORS = frozenset(
    {
        ("", "GroupNormalization"),
        ("", "InstanceNormalization"),
        ("", "LayerNormalization"),
        ("", "LpNormalization"),
        ("", "MeanVarianceNormalization"),
        ("", "RMSNormalization"),
        ("", "SimplifiedLayerNormalization"),
        ("com.microsoft", "GroupNorm"),
        ("com.microsoft", "LayerNormalization"),
        ("com.microsoft", "SimplifiedLayerNormalization"),
        ("onnxfold", "LayerNorm"),
        ("onnxfold", "LayerNormAffine"),
        ("onnxfold", "LayerNormScale"),
        ("onnxfold", "RMSNorm"),
        ("onnxfold", "RMSNormAffine"),
        ("onnxfold", "RMSNormScale"),
    }
)
DEFAULT_EPSILON = 9.999999747378752e-06
"""1e-5 as attributes hold it, which are float32; of the operators outside domain onnxfold."""
WITHOUT_AFFINE = frozenset({"LpNormalization", "MeanVarianceNormalization"})
"""Those that have no operands for gamma and beta."""
EMBEDDED = "onnxfold.embedded"
"""A mark in memory, on the norm of a former EmbedLayerNormalization."""
