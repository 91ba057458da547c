"""What a user can ask of the server: models by name, ports, batches, threads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onnxfold.errors import ModelError, UsageError

__all__ = ["NamedModel", "ServeSettings"]

_NAMED = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)=(?P<path>.+)", re.DOTALL)
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model file and the name under which clients ask for it."""

    name: str
    path: Path

    @classmethod
    def parse(cls, text: str) -> NamedModel:
        """Read `path` or `name=path`; the name of a path is that of the file.

        Raises ModelError where there is no such file.
        """
        match = _NAMED.fullmatch(text)
        # A file whose own name holds an equals sign is itself, not a name and a path.
        if match is not None and not Path(text).exists():
            name, path = match["name"], Path(match["path"])
        else:
            path = Path(text)
            name = _NOT_IN_NAMES.sub("_", path.stem).strip("_.-") or "model"
        if not path.is_file():
            raise ModelError(f"cannot serve '{path}': there is no such file")
        return cls(name, path.absolute())


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """The fields are the options of `onnxfold serve`.

    ``max_batch`` counts rows; 1 turns batching off. ``workers`` is how many runs go on at once,
    ``threads`` how many threads one run uses. ``grace_s`` is how long a stop waits for requests.
    """

    models: tuple[NamedModel, ...]
    host: str = "127.0.0.1"
    http_port: int = 8080
    grpc_port: int = 8081
    metrics_port: int = 8082
    max_batch: int = 16
    batch_delay_ms: float = 0.0
    threads: int = 1
    workers: int = 1
    optimize: bool = True
    providers: tuple[str, ...] = ()
    grace_s: float = 30.0

    def __post_init__(self) -> None:
        _check_names(self.models)
        ports = (self.http_port, self.grpc_port, self.metrics_port)
        if len(set(ports)) != len(ports):
            raise UsageError(
                f"--http-port {ports[0]}, --grpc-port {ports[1]} and --metrics-port {ports[2]} "
                "must differ"
            )
        if self.max_batch < 1 or self.workers < 1 or self.threads < 0:
            raise UsageError("--max-batch and --workers must be at least 1, --threads at least 0")
        if not (0 <= self.batch_delay_ms <= 60_000 and self.grace_s >= 0):
            raise UsageError("--batch-delay-ms must be from 0 to 60000, --grace 0 or more")


def _check_names(models: Sequence[NamedModel]) -> None:
    if not models:
        raise UsageError("name at least one model to serve")
    seen: dict[str, Path] = {}
    for model in models:
        if model.name in seen:
            raise UsageError(
                f"'{seen[model.name]}' and '{model.path}' are both named '{model.name}'; "
                "give one another name: NAME=PATH"
            )
        seen[model.name] = model.path
