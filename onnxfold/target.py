"""The targets: what a file is for, as data that every pass asks. A new target is an entry here.

A decision names a trait, never a target, so that a new target has all of them by its row
(docs/adding_a_target.md).
"""

from dataclasses import dataclass
from enum import StrEnum

OPERATOR_PS = 500_000


@dataclass(frozen=True, slots=True)
class Prices:
    """Picoseconds per element of the operators that a plan trades against each other.

    ``row``: per row of the tensor to which a vector is added; ``operator``: per additional
    operator, for any row size.
    """

    layer_norm: int
    rms_norm: int
    centring: int
    adds_beta: bool = True  # as a separate Add if no norm adds it
    addition: int = 80  # an Add of a vector as a separate operator, the same on any target
    row: int = 17_000
    operator: int = OPERATOR_PS
    joined_norm: int = 3_700  # SkipLayerNormalization of ONNX Runtime 1.30 and newer
    centring_operators: int = 2
    split: int = 1  # a copied weight costs storage, not time; 1 makes "in place" the first choice


@dataclass(frozen=True, slots=True)
class Traits:
    """What a file for a target may contain, and the prices of its operators.

    ``purpose``: what is in the file, and for whom, as in the help of ``--target``. ``calls``: norms
    are calls of onnxfold's functions, which its library replaces by kernels; ``contrib``: operators
    of ONNX Runtime's own, and a choice for one device. A target with neither has standard
    operators, which tools downstream rewrite and several runtimes fuse. A product costs as much as
    ``product_elements`` plus its own elements. ``defers``: deferred norms were measured to be
    faster.
    """

    purpose: str
    prices: Prices
    product_elements: int
    calls: bool = False
    contrib: bool = False
    defers: bool = False

    @property
    def standard(self) -> bool:
        """Whether the file has standard operators alone."""
        return not self.calls and not self.contrib


class Target(StrEnum):
    """The purpose of the output model, which limits its operators."""

    ONNX = "onnx"
    ORT = "ort"
    KERNELS = "kernels"

    @property
    def traits(self) -> Traits:
        """The row of the target."""
        return TRAITS[self]


# Picoseconds from benchmarks/kernels.py, float32, 768 elements per row, one thread, rounded; only
# ratios matter. With calls: rms, layer and center of the kernels, with and without an addition;
# otherwise rms, layer, center (as ReduceMean and Sub) and bias (the Add of a vector, 100 with its
# rows) of ONNX Runtime. Rows and operators: benchmarks/fixed_costs.py. product_elements:
# benchmarks/results/row_scale_costs.csv (Mul, and ScaleRows of the library). defers: targets of
# which benchmarks/results/defer.csv has medians above 1, and none below 0.99.
TRAITS = {
    Target.ONNX: Traits(
        purpose="standard operators, for every runtime and tool that takes IN",
        prices=Prices(layer_norm=340, rms_norm=190, centring=250),
        product_elements=3_800,
    ),
    Target.ORT: Traits(
        purpose="what is fastest in ONNX Runtime as it is",
        prices=Prices(layer_norm=340, rms_norm=190, centring=250),
        product_elements=3_800,
        contrib=True,
    ),
    Target.KERNELS: Traits(
        purpose="functions, for ONNX Runtime with the onnxfold library, which other runtimes may "
        "not take",
        prices=Prices(
            layer_norm=130, rms_norm=100, centring=115, adds_beta=False, centring_operators=1
        ),
        product_elements=11_000,
        calls=True,
    ),
}
