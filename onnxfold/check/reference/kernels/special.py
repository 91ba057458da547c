"""Functions of scipy.special, imported late because that takes as long as a small proof."""

import numpy as np

from onnxfold.check.reference.precision import Array


def erf(x: Array) -> Array:
    """Return the error function of every element, in the type of x."""
    from scipy import special

    return np.asarray(special.erf(x))


def expit(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)) of every element, in the type of x."""
    from scipy import special

    return np.asarray(special.expit(x))
