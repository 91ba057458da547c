"""Trial of whether the rows of a model are independent, so that requests may be batched."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from onnxfold.check.reference import Array
from onnxfold.check.runners import why_not_onnxruntime
from onnxfold.errors import UsageError, first_cause
from onnxfold.inputs import InputSpec, make_inputs
from onnxfold.runtime.library import runtime_errors

if TYPE_CHECKING:
    import onnxruntime as ort


def two_rows(model: ir.Model, spec: InputSpec) -> dict[str, Array]:
    """Make inputs of a model with two rows each, in the shapes and from the files of `spec`.

    Raises UsageError, with the reason, if that is not possible.
    """
    reason = why_not_onnxruntime(model)
    if reason is not None:
        raise UsageError(reason)
    shapes = {name: (2, *shape[1:]) for name, shape in spec.shapes.items()}
    (feeds,) = make_inputs(model, replace(spec, shapes=shapes), count=1, seed=0)
    rows = {name: array[:2] if array.ndim else array for name, array in feeds.items()}
    for name, array in rows.items():
        if array.shape[:1] != (2,):
            raise UsageError(f"its input '{name}' has no two rows: {list(array.shape)}")
    return rows


def why_rows_mix(
    session: ort.InferenceSession, feeds: Mapping[str, Array], outputs: Sequence[str]
) -> str | None:
    """Run two rows together and each alone; return the difference, or None if rows are independent.

    Batching changes the order of summation, which moves results by many roundings but by far less
    than half the digits of the type. An operator that mixes rows (a norm over the batch, one
    quantization scale for the batch) changes leading digits.
    """
    try:
        together = session.run(list(outputs), dict(feeds))
        alone = [
            session.run(list(outputs), {name: a[row : row + 1] for name, a in feeds.items()})
            for row in range(2)
        ]
    except runtime_errors() as error:
        return f"the trial with two rows fails: {first_cause(error)}"
    for name, both, *each in zip(outputs, together, *alone, strict=True):
        if any(np.shape(one) != (1, *np.shape(both)[1:]) for one in each) or len(both) != 2:
            return f"'{name}' has {_shape(both)} for two rows and {_shape(each[0])} for one"
        if not _agree(np.asarray(both), np.concatenate(each)):
            return f"its rows are not independent: '{name}' is another with two rows than alone"
    return None


def _shape(value: Any) -> str:
    return f"the shape {list(np.shape(value))}"


def _agree(both: Array, apart: Array) -> bool:
    if both.dtype.kind != "f":
        return bool(np.array_equal(both, apart))
    if not np.array_equal(np.isfinite(both), np.isfinite(apart)):
        return False
    finite = np.isfinite(both)
    a, b = both[finite].astype(np.float64), apart[finite].astype(np.float64)
    scale = float(np.max(np.abs(b), initial=0.0))
    bound = math.sqrt(float(np.finfo(both.dtype).eps)) * scale
    return bool(np.max(np.abs(a - b), initial=0.0) <= bound)
