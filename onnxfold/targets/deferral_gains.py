"""Measurements of deferral: the targets for which it pays, and the cost of a product."""

from onnxfold.options import Defer, Options, Target

# Targets for which benchmarks/results/defer.csv has medians above 1, and none below 0.99.
MEASURED_CHEAPER: frozenset[Target] = frozenset()
# A product costs as much as this many elements plus its own: benchmarks/results/row_scale_costs.csv
# (Mul, and ScaleRows of the library; one thread).
OPERATOR_ELEMENTS = {Target.ONNX: 3_800, Target.ORT: 3_800, Target.KERNELS: 11_000}


def is_wanted(settings: Options) -> bool:
    """Whether norms are deferred, or stay deferred; otherwise they are computed in place."""
    if settings.defer is Defer.AUTO:
        return settings.target in MEASURED_CHEAPER
    return settings.defer is Defer.ALL
