"""Hints of a pass for the proof, which save a search and are never trusted."""

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from onnxfold.graph import Fiber
from onnxfold.graph.channels import Channels


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """A node that absorbs y = r * x + s: W' = W diag(r), and its bias grows by factor * W s.

    ``node`` is the reference of the node's first output and ``weight`` the weight's, in the
    original; ``bias`` is the input that receives W s, None if the output does. ``inner`` and
    ``outer`` are the channels of x and of the output, in the coordinates of W. ``fixed``: W is made
    of codes, r is 1 and W' = W. ``halves``: the number of rows of the bias whose first halves
    receive W s.
    """

    node: str
    weight: str
    inner: Channels
    outer: Channels
    bias: int | None
    factor: float
    fixed: bool = False
    halves: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class ScaledWeight:
    """W' = vector * W along ``channels`` for the named reader (reference of a node)."""

    weight: str
    reader: str
    channels: Channels
    vector: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class TurnedWeight:
    """W' = W R, for every set of the fiber; one array R for all weights of one stream."""

    weight: str
    fiber: Fiber
    matrix: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Certificate:
    """Hints by reference: a fiber for each centered weight or value, and the folded norms.

    ``centred`` contains references of the original; ``folded`` the results of norms.
    ``by_name_alone``: a value with a new name corresponds to nothing in the original, except a
    copied constant, and only ``centred`` values may have mean 0. ``rounding``: equal values must
    not be rounded more than before either, on rows of every kind.
    """

    centred: tuple[tuple[str, Fiber], ...] = ()
    folded: tuple[str, ...] = ()
    linear: tuple[LinearLayer, ...] = ()
    scaled: tuple[ScaledWeight, ...] = ()
    turned: tuple[TurnedWeight, ...] = ()
    by_name_alone: bool = False
    rounding: bool = False


@dataclass(frozen=True, slots=True)
class Proof:
    """Whether everything could be proved, and otherwise what could not."""

    passed: bool
    folded_norms: int
    centred_weights: int
    failures: tuple[str, ...]
    scaled_weights: int = 0
    shifted_biases: int = 0
    shifted_weights: int = 0
    compressed_norms: int = 0
    decompressed_norms: int = 0
    changed_readers: int = 0
    deferred_norms: int = 0
    reinstated_norms: int = 0
    scaled_streams: int = 0
    rotated_weights: int = 0
    split_gammas: int = 0

    def to_json(self) -> dict[str, object]:
        """Return the report's form."""
        return {**asdict(self), "failures": list(self.failures)}
