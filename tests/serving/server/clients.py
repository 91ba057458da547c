"""tritonclient over HTTP and gRPC behind one call, and callers that keep on asking."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.serving.server.process import Server

__all__ = ["KINDS", "Callers", "Infer", "calling", "client"]

Array = npt.NDArray[Any]
Infer = Callable[..., dict[str, Array]]
KINDS = ("http binary", "http json", "grpc")


@contextmanager
def client(server: Server, kind: str) -> Iterator[Infer]:
    """Yield infer(model, arrays, outputs=None, types={}) for one kind of client."""
    import tritonclient.grpc
    import tritonclient.http

    library = tritonclient.grpc if kind == "grpc" else tritonclient.http
    address = server.grpc if kind == "grpc" else server.http
    words = {} if kind == "grpc" else {"binary_data": kind == "http binary"}

    def infer(
        model: str,
        arrays: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        types: Mapping[str, str] | None = None,
    ) -> dict[str, Array]:
        inputs = []
        for name, array in arrays.items():
            datatype = (types or {}).get(name) or tritonclient.http.np_to_triton_dtype(array.dtype)
            one = library.InferInput(name, list(array.shape), datatype)
            one.set_data_from_numpy(array, **words)
            inputs.append(one)
        wanted = outputs if outputs is not None or kind != "http json" else named(model)
        asked = (
            None if wanted is None else [library.InferRequestedOutput(n, **words) for n in wanted]
        )
        result = connection.infer(model, inputs, outputs=asked)
        answer = result.get_response()
        described = answer.outputs if kind == "grpc" else answer["outputs"]
        names = [one.name if kind == "grpc" else one["name"] for one in described]
        return {name: result.as_numpy(name) for name in names}

    def named(model: str) -> list[str]:
        return [one["name"] for one in connection.get_model_metadata(model)["outputs"]]

    connection = library.InferenceServerClient(address)
    try:
        yield infer
    finally:
        connection.close()


@dataclass(slots=True)
class Callers:
    """Threads that ask until told to stop; what they got and what went wrong."""

    answered: int = 0
    failures: list[str] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def calling(
    server: Server,
    kinds: Sequence[str],
    ask: Callable[[Infer, np.random.Generator], None],
    *,
    once: bool = False,
) -> Iterator[Callers]:
    """Run one thread for each kind, which calls `ask` once, or until the block is left."""
    callers = Callers()

    def work(number: int, kind: str) -> None:
        generator = np.random.default_rng(number)
        try:
            with client(server, kind) as infer:
                while not callers.done.is_set():
                    ask(infer, generator)
                    with callers.lock:
                        callers.answered += 1
                    if once:
                        return
        except Exception as error:
            callers.failures.append(f"{kind}: {type(error).__name__}: {error}")

    threads = [
        threading.Thread(target=work, args=(number, kind)) for number, kind in enumerate(kinds)
    ]
    for thread in threads:
        thread.start()
    try:
        yield callers
    finally:
        callers.done.set()
        for thread in threads:
            thread.join(timeout=120)
