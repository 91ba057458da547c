"""What was measured of deferral: with which targets it gains, and what a product costs."""

from onnxfold.options import Defer, Options, Target

# Targets with which benchmarks/results/defer.csv has no median under 0.99 and some above 1.
MEASURED_CHEAPER: frozenset[Target] = frozenset()
# A product costs as much as this many elements, and its own: benchmarks/results/row_scale_costs.csv
# (Mul, and ScaleRows of the library; one thread).
OPERATOR_ELEMENTS = {Target.ONNX: 3_800, Target.ORT: 3_800, Target.KERNELS: 11_000}


def is_wanted(settings: Options) -> bool:
    """Whether norms are to be deferred, or left deferred; if not, they are computed in place."""
    if settings.defer is Defer.AUTO:
        return settings.target in MEASURED_CHEAPER
    return settings.defer is Defer.ALL
