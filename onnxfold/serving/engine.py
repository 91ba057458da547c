"""A loaded model: its ONNX Runtime session, its signature, and whether its rows are independent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from onnxfold import model_io
from onnxfold.errors import OnnxfoldError, UsageError, first_cause
from onnxfold.inputs import InputSpec
from onnxfold.runtime.library import device_of, get_library_path, runtime_errors
from onnxfold.serving.batch_independence import two_rows, why_rows_mix
from onnxfold.serving.batching import RunError
from onnxfold.serving.codec import RequestError
from onnxfold.serving.served_signature import (
    Array,
    ServedSignature,
    signature_of,
    why_not_batched,
    why_unsure,
)
from onnxfold.serving.session import open_session

if TYPE_CHECKING:
    import onnxruntime as ort


@dataclass(frozen=True, slots=True)
class Engine:
    """A session and its properties; `run` may be called from several threads.

    ``kernels`` is None if onnxfold's kernels are registered, otherwise the reason; ``unbatched`` is
    None if requests may be stacked along axis 0, otherwise the reason.
    """

    session: ort.InferenceSession
    signature: ServedSignature
    kernels: str | None
    unbatched: str | None

    @classmethod
    def open(cls, path: Path, *, name: str, threads: int, providers: Sequence[str] = ()) -> Engine:
        """Load a model with onnxfold's kernels and try whether its rows may be stacked.

        The trial runs two rows together and each alone. Raises ModelError for a model that ONNX
        Runtime does not load or that the protocol cannot represent, OnnxfoldError as
        :func:`onnxfold.register` does, except that a library that was not built is not required.
        """
        kernels = _why_no_kernels(providers)
        session = open_session(
            path,
            name=name,
            library=None if kernels else device_of(providers),
            threads=threads,
            providers=providers,
        )
        signature = signature_of(session, path, name).without_optional()
        for _, spec in signature.roles():
            _ = spec.dtype  # raises for types that no request can represent
        engine = cls(session, signature, kernels, None)
        unbatched = why_not_batched(signature) or why_unsure(signature)
        return cls(session, signature, kernels, unbatched or engine._why_rows_mix(path))

    def run(self, feeds: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """Compute outputs by name.

        Raises RequestError if ONNX Runtime blames the values (an index out of range), RunError for
        other failures.
        """
        from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

        try:
            results = self.session.run(list(outputs), dict(feeds))
        except InvalidArgument as error:
            raise RequestError(f"the model refuses these values: {first_cause(error)}") from error
        except runtime_errors() as error:
            raise RunError(f"the run failed: {first_cause(error)}") from error
        return [np.asarray(result) for result in results]

    def _why_rows_mix(self, path: Path) -> str | None:
        try:
            feeds = two_rows(model_io.load(path), InputSpec())
        except UsageError as error:
            return f"no trial inputs of two rows can be made for it: {error}"
        return why_rows_mix(self.session, feeds, [spec.name for spec in self.signature.outputs])


def _why_no_kernels(providers: Sequence[str]) -> str | None:
    try:
        get_library_path(device_of(providers))
    except UsageError:
        raise  # the environment names a missing library
    except OnnxfoldError as error:
        return str(error)
    return None
