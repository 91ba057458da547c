"""The options of the server: models by name, ports, batches, threads."""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from onnxfold.errors import ModelError, UsageError
from onnxfold.fleet import check_threads
from onnxfold.options import ProvidersOption, Told

_NAMED = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)=(?P<path>.+)", re.DOTALL)
_LINGER_S = 1.0
_PORT = Told("", metavar="PORT", min=1, max=65535)
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model file and the name under which clients ask for it."""

    name: str
    path: Path

    @classmethod
    def parse(cls, text: str) -> "NamedModel":
        """Read `path` or `name=path`; Raises ModelError if the file does not exist.

        Raises ModelError if the file does not exist.
        """
        match = _NAMED.fullmatch(text)
        # An existing file with an equals sign in its name is a path, not a name and a path.
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
    """The options of `onnxfold serve`, each declared once with its help.

    ``tls`` are the files of the certificate chain and its key.
    """

    models: tuple[NamedModel, ...]
    providers: ProvidersOption = ()
    host: Annotated[str, Told("Listen here; 0.0.0.0 for every address.", metavar="ADDRESS")] = (
        "127.0.0.1"
    )
    http_port: Annotated[int, _PORT] = 8080
    grpc_port: Annotated[int, _PORT] = 8081
    metrics_port: Annotated[int, _PORT] = 8082
    max_batch: Annotated[
        int,
        Told("Run requests that wait together, up to this; 1 turns it off.", metavar="ROWS"),
    ] = 16
    batch_delay_ms: Annotated[
        float, Told("Let a request wait this long for others to join it.", metavar="MS")
    ] = 0.0
    threads: Annotated[
        int, Told("Threads within an operator; 0: one for each core.", metavar="N")
    ] = 1
    workers: Annotated[int, Told("Runs that go on at once.", metavar="N")] = 1
    optimize: Annotated[bool, Told("Serve the models as they are.")] = True
    grace_s: Annotated[
        float,
        Told("How long a stop waits for requests under way.", metavar="SECONDS", flag="--grace"),
    ] = 30.0
    max_request_bytes: Annotated[
        int,
        Told("Refuse larger requests, as sent and as decompressed.", metavar="BYTES", min=1),
    ] = 1 << 28
    max_buffered: Annotated[
        int | None,
        Told(
            "Bytes of all requests that are held at once; others are refused with 503.",
            metavar="BYTES",
            min=1,
            show_default="4 of the largest requests",
        ),
    ] = None
    header_timeout_s: Annotated[
        float,
        Told(
            "How long the head of an HTTP request may take.",
            metavar="SECONDS",
            flag="--header-timeout",
        ),
    ] = 10.0
    body_timeout_s: Annotated[
        float,
        Told(
            "How long its body may take; a second more for each 64 KiB.",
            metavar="SECONDS",
            flag="--body-timeout",
        ),
    ] = 30.0
    token: str | None = None
    tls: tuple[Path, Path] | None = None

    @property
    def most_buffered(self) -> int:
        """Return the most bytes of bodies that the server keeps at once."""
        return self.max_buffered or 4 * self.max_request_bytes

    @property
    def linger_s(self) -> float:
        """Return how long a stop waits for requests on their way on open connections."""
        return min(_LINGER_S, self.grace_s / 2)

    @property
    def open_to_others(self) -> str | None:
        """Return a warning of what somebody on the network could do, or None."""
        if _is_loopback(self.host):
            return None
        if self.token is None:
            return (
                f"whoever reaches {self.host} may ask, load and unload models: "
                "--token-file demands a token"
            )
        if self.tls is None:
            return "the token goes over the network as it is: --tls-cert and --tls-key hide it"
        return None

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
        check_threads("--workers", self.workers)
        check_threads("--threads", self.threads)
        if self.max_request_bytes < 1 or not min(self.header_timeout_s, self.body_timeout_s) > 0:
            raise UsageError(
                "--max-request-bytes must be at least 1, --header-timeout and --body-timeout more "
                "than 0"
            )
        if self.most_buffered < self.max_request_bytes:
            raise UsageError(
                f"--max-buffered {self.max_buffered} must not be less than --max-request-bytes, "
                f"{self.max_request_bytes}"
            )
        if not (0 <= self.batch_delay_ms <= 60_000 and self.grace_s >= 0):
            raise UsageError("--batch-delay-ms must be from 0 to 60000, --grace 0 or more")


def read_token(path: Path) -> str:
    """Return the token that clients must send: one line of a file, printable and without spaces.

    Raises UsageError for a file that cannot be read or lacks such a line.
    """
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file '{path}': {error}") from error
    if not token or not token.isprintable() or " " in token:
        raise UsageError(f"--token-file '{path}': it must contain one line, without spaces")
    return token


def tls_files(cert: Path | None, key: Path | None) -> tuple[Path, Path] | None:
    """Return both files of TLS, or None if TLS is off.

    Raises UsageError for one without the other, and if they cannot be read or do not match.
    """
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise UsageError("--tls-cert and --tls-key must be given together")
    import ssl  # which would slow down every command

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except OSError as error:  # ssl.SSLError is one
        raise UsageError(f"--tls-cert '{cert}' with --tls-key '{key}': {error}") from error
    return cert, key


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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
