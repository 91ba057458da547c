"""The runtime class that MLServer loads, asks and unloads."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from mlserver import MLModel, ModelSettings
from mlserver.errors import InferenceError, MLServerError
from mlserver.handlers import DataPlane
from mlserver.registry import MultiModelRegistry
from mlserver.settings import ModelParameters
from mlserver.types import (
    Datatype,
    InferenceRequest,
    InferenceResponse,
    MetadataModelResponse,
    MetadataTensor,
    ResponseOutput,
)

from onnxfold.runtime.library import device_of
from onnxfold.serving.batching import Batcher, RunError
from onnxfold.serving.codec import RequestError, Tensor, decode, selected
from onnxfold.serving.engine import Engine
from onnxfold.serving.host import metrics
from onnxfold.serving.last_resort import LastResort
from onnxfold.serving.optimized import served_file
from onnxfold.serving.request_statistics import RequestStatistics
from onnxfold.serving.served_signature import Array, TensorSpec
from onnxfold.serving.settings import NamedModel, ServeSettings
from onnxfold.serving.triton.config import ModelConfig
from onnxfold.serving.triton.deployment import TritonDevice

VERSION = "1"  # of every model: a file that is loaded again replaces the old one
_INTERNAL_ERROR, _UNAVAILABLE = 500, 503


class Shared:
    """The shared parts of a server: the settings, the worker threads, a folder for files."""

    def __init__(self, settings: ServeSettings, folder: Path) -> None:
        self.settings = settings
        self.folder = folder
        self.executor = ThreadPoolExecutor(settings.workers, thread_name_prefix="onnxfold")
        self.last_resort = LastResort(settings.grace_s, folder)


class OnnxModel(MLModel):
    """An ONNX model in ONNX Runtime with onnxfold's kernels.

    Loading again creates a second instance; MLServer uses the first until the second is ready, and
    the first answers its requests before it closes its session.
    """

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__(settings)
        extra = settings.parameters.extra
        self._source: NamedModel = extra["model"]
        self._shared: Shared = extra["shared"]
        self._engine: Engine | None = None
        self._batcher: Batcher | None = None
        self._statistics = RequestStatistics()

    def loaded(self) -> Engine:
        """Return the loaded model; raises MLServerError if it is not loaded."""
        if self._engine is None:
            raise MLServerError(f"model '{self.name}' is not loaded", status_code=_UNAVAILABLE)
        return self._engine

    async def load(self) -> bool:
        settings = self._shared.settings
        engine = await asyncio.to_thread(self._open)
        self._engine = engine
        self._batcher = Batcher(
            partial(self._run, engine),
            self._shared.executor,
            workers=settings.workers,
            max_rows=settings.max_batch,
            delay_s=settings.batch_delay_ms / 1000,
            stackable=engine.unbatched is None,
            observe=self._observe,
            ran=self._statistics.ran,
        )
        metrics.WAITING.labels(self.name).set_function(self._waiting)
        return True

    async def unload(self) -> bool:
        self.ready = False
        if self._batcher is not None:
            await self._batcher.drain()
        self._engine = self._batcher = None
        return True

    async def metadata(self) -> MetadataModelResponse:
        signature = self.loaded().signature
        return MetadataModelResponse(
            name=self.name,
            versions=[VERSION],
            platform="onnxruntime_onnx",
            inputs=[_described(spec) for spec in signature.inputs],
            outputs=[_described(spec) for spec in signature.outputs],
        )

    def config(self) -> dict[str, Any]:
        """Return the model's configuration, as in Triton's extension `model_configuration`."""
        settings, engine = self._shared.settings, self.loaded()
        return ModelConfig(
            self.name,
            engine.signature,
            max_batch=settings.max_batch if engine.unbatched is None else 0,
            device=TritonDevice.CPU if device_of(settings.providers) == "cpu" else TritonDevice.GPU,
            threads=settings.threads,
            count=settings.workers,
            delay_us=round(settings.batch_delay_ms * 1000),
        ).document()

    def statistics(self) -> dict[str, Any]:
        """Return the model's statistics in the form of Triton's extension `statistics`."""
        return self._statistics.document(self.name, VERSION)

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        start = time.perf_counter()
        try:
            response = await self._answer(payload)
        except MLServerError:
            self._statistics.fail.add(time.perf_counter() - start)
            raise
        self._statistics.success.add(time.perf_counter() - start)
        return response

    async def _answer(self, payload: InferenceRequest) -> InferenceResponse:
        engine, batcher = self.loaded(), self._batcher
        assert batcher is not None  # noqa: S101 - they are set together
        tensors = [Tensor(t.name, t.datatype, t.shape, t.data) for t in payload.inputs]
        asked = [output.name for output in payload.outputs or ()]
        try:
            names = selected(asked, engine.signature)
            start = time.perf_counter()
            feeds = decode(tensors, engine.signature)
            self._statistics.decoded(time.perf_counter() - start)
            arrays = await batcher.submit(feeds, names)
        except RequestError as error:
            raise InferenceError(f"{self.name}: {error}") from error
        except RunError as error:
            raise MLServerError(f"{self.name}: {error}", status_code=_INTERNAL_ERROR) from error
        types = {spec.name: spec.datatype.name for spec in engine.signature.outputs}
        # Packed unchanged and unchecked: the endpoints write arrays as bytes or as JSON.
        outputs = [
            ResponseOutput.model_construct(
                name=name, datatype=types[name], shape=list(array.shape), data=array
            )
            for name, array in zip(names, arrays, strict=True)
        ]
        return InferenceResponse.model_construct(
            model_name=self.name, model_version=VERSION, outputs=outputs
        )

    def _open(self) -> Engine:
        settings, shared = self._shared.settings, self._shared
        with served_file(self._source.path, shared.folder, optimize=settings.optimize) as path:
            return Engine.open(
                path, name=self.name, threads=settings.threads, providers=settings.providers
            )

    def _run(
        self, engine: Engine, feeds: Mapping[str, Array], outputs: Sequence[str]
    ) -> list[Array]:
        start = time.perf_counter()
        try:
            return engine.run(feeds, outputs)
        except (RequestError, RunError):
            metrics.RUNS_FAILED.labels(self.name).inc()
            raise
        finally:
            metrics.RUN_SECONDS.labels(self.name).observe(time.perf_counter() - start)

    def _observe(self, requests: int, rows: int) -> None:
        metrics.BATCH_REQUESTS.labels(self.name).observe(requests)
        metrics.BATCH_ROWS.labels(self.name).observe(rows)

    def _waiting(self) -> int:
        return 0 if self._batcher is None else self._batcher.waiting


async def ready_model(registry: MultiModelRegistry, name: str, version: str | None) -> OnnxModel:
    """Return a loaded model; raises as :func:`demand_ready` does."""
    model = await registry.get_model(name, version)
    if not model.ready:
        raise _loading(name)
    assert isinstance(model, OnnxModel)  # noqa: S101 - the registry holds no other
    return model


async def statistics(
    registry: MultiModelRegistry, name: str | None, version: str | None
) -> dict[str, Any]:
    """Return the statistics of a loaded model, or of all loaded models without a name."""
    if name:
        models = [await ready_model(registry, name, version)]
    else:
        models = [model for model in await registry.get_models() if model.ready]
    return {"model_stats": [model.statistics() for model in models]}


def _loading(name: str) -> MLServerError:
    return MLServerError(f"model '{name}' is loading", status_code=_UNAVAILABLE)


async def demand_ready(data_plane: DataPlane, name: str, version: str | None) -> None:
    """Raise ModelNotFound for an unknown model, and for one that still loads a 503.

    This comes before MLServer's own inference, which would keep a counter for every requested name.
    """
    if not await data_plane.model_ready(name, version):
        raise _loading(name)


def model_settings(model: NamedModel, shared: Shared) -> ModelSettings:
    """Return MLServer's settings of a model."""
    extra: dict[str, Any] = {"model": model, "shared": shared}
    return ModelSettings(
        name=model.name,
        implementation=OnnxModel,
        platform="onnxruntime_onnx",
        parameters=ModelParameters(uri=str(model.path), version=VERSION, extra=extra),
    )


def _described(spec: TensorSpec) -> MetadataTensor:
    return MetadataTensor(name=spec.name, datatype=Datatype(spec.datatype.name), shape=spec.shape)
