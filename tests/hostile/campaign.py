"""Mutants by number, in processes that may crash, hang or run out of memory without harm.

A worker is forked from a process that has imported everything and run nothing; it runs mutants in
order until it dies or has done its share, and the next worker continues after the fatal one.
"""

from __future__ import annotations

import json
import os
import random
import resource
import select
import shutil
import signal
import tempfile
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import onnx

from onnxfold.check import runners
from onnxfold.check.reference import interpreter
from tests.hostile.case import Outcome, build_commands_once, run_case
from tests.hostile.mutation import Mutant, mutant
from tests.model_io.files import rich_model
from tests.soundness.random_graphs import random_graph

__all__ = ["Found", "made", "mutants", "replayed", "seeds"]

ROOT = Path(__file__).parents[2]
# Beside what the process has when it starts.
MEMORY_BYTES = 4 << 30
# Loops without end are given up sooner than in earnest.
_BODY_NODES = 5_000
_LOOPS_S = 3.0
# Wall time for each second of processor time: others use the machine too.
_PATIENCE = 6
_SHARE = 2000
_LARGE_BYTES = 100_000

Make = Callable[[int], Mutant]


@dataclass(frozen=True, slots=True)
class Found:
    """What one mutant did; ``killed`` names the signal or the time limit that ended its process."""

    number: int
    done: list[str]
    outcomes: list[Outcome]
    killed: str | None = None

    @property
    def faults(self) -> list[str]:
        faults = [f"{o.command}: {o.fault}" for o in self.outcomes if o.fault]
        return [*faults, self.killed] if self.killed else faults


def seeds() -> list[bytes]:
    """Real files of every exporter, small ones more often than large ones, and models of ours."""
    small = sorted((ROOT / "tests/recognition/fixtures").glob("*.onnx"))
    large = [
        ROOT / "models/digits_vit/digits_vit.onnx",
        *sorted((ROOT / "tests/recipes").glob("*.onnx")),
    ]
    found = [path.read_bytes() for path in small]
    found += [rich_model(width).SerializeToString() for width in (8, 8, 64)]
    found += [random_graph(seed).model.SerializeToString() for seed in range(300)]
    shrunk = [_shrunk(path.read_bytes()) for path in large]
    found += [raw for raw in shrunk if len(raw) < _LARGE_BYTES] * 3
    return found + [path.read_bytes() for path in large if path.stat().st_size < 300_000][:20]


def _shrunk(raw: bytes) -> bytes:
    """The first tenth of a model's nodes, and the weights that they read."""
    model = onnx.ModelProto.FromString(raw)
    graph = model.graph
    del graph.node[max(20, len(graph.node) // 10) :]
    read = {name for node in graph.node for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    last = graph.node[-1].output[0]
    del graph.output[1:]
    del graph.output[0].type.tensor_type.shape.dim[:]
    graph.output[0].type.tensor_type.ClearField("shape")
    graph.output[0].name = last
    return model.SerializeToString()


def made(number: int, models: Sequence[bytes], campaign: int = 0) -> Mutant:
    """The mutant of a number, always the same one."""
    return mutant(models, random.Random(campaign * 1_000_003 + number))  # noqa: S311 # no secret


def mutants(
    numbers: Sequence[int], *, limit_s: float, campaign: int = 0, folder: Path | None = None
) -> Generator[Found, None, None]:
    """Run the mutants of these numbers; each command has `limit_s` seconds of processor time."""
    models = seeds()
    yield from replayed(
        numbers, lambda number: made(number, models, campaign), limit_s=limit_s, folder=folder
    )


def replayed(
    numbers: Sequence[int], make: Make, *, limit_s: float, folder: Path | None = None
) -> Generator[Found, None, None]:
    """Run what `make` gives for these numbers."""
    _import_all()
    waiting = list(numbers)
    with tempfile.TemporaryDirectory(prefix="hostile-", dir=folder) as scratch:
        while waiting:
            share, done = waiting[:_SHARE], 0
            for found in _worker(share, make, limit_s, Path(scratch)):
                done += 1
                yield found
            waiting = waiting[done:]


def _import_all() -> None:
    import onnxruntime  # noqa: F401

    import onnxfold.api
    import onnxfold.report.document  # noqa: F401


def _worker(
    numbers: Sequence[int], make: Make, limit_s: float, scratch: Path
) -> Generator[Found, None, None]:
    """Results in order, until all are done or the process is gone."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _serve(numbers, make, scratch, writer)
    os.close(writer)
    kill = None
    position, text = 0, b""
    try:
        while position < len(numbers):
            ready, _, _ = select.select([reader], [], [], _PATIENCE * limit_s)
            if not ready:
                kill = f"hang: more than {_PATIENCE * limit_s:g} s"
                os.kill(pid, signal.SIGKILL)
                break
            part = os.read(reader, 1 << 16)
            if not part:
                break
            text += part
            *lines, text = text.split(b"\n")
            for line in lines:
                yield _parsed(line, limit_s)
                position += 1
    finally:
        os.close(reader)
        if position < len(numbers) and kill is None:
            # Either it died, or the caller wants no more.
            kill_quietly(pid)
        status = os.waitpid(pid, 0)[1]
    if position < len(numbers):
        reason = kill or f"crash: {_ending(status)}"
        case = make(numbers[position])
        shutil.rmtree(scratch / "case", ignore_errors=True)
        yield Found(numbers[position], case.done, [], reason)


def kill_quietly(pid: int) -> None:
    """Kill a child that may be gone already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit status {os.WEXITSTATUS(status)}"


def _parsed(line: bytes, limit_s: float) -> Found:
    record = json.loads(line)
    outcomes = [Outcome(**outcome) for outcome in record["outcomes"]]
    slow = [o for o in outcomes if o.cpu_s > limit_s]
    killed = f"slow: {slow[0].command} took {slow[0].cpu_s:.1f} s" if slow else None
    return Found(record["number"], record["done"], outcomes, killed)


def _serve(numbers: Sequence[int], make: Make, scratch: Path, writer: int) -> None:
    """The child: never returns."""
    code = 1
    try:
        _limit_memory()
        build_commands_once()
        interpreter._MOST_BODY_NODES = _BODY_NODES
        runners._LONGEST_WITH_LOOPS_S = _LOOPS_S
        for number in numbers:
            case = make(number)
            outcomes = [asdict(outcome) for outcome in run_case(scratch / "case", case)]
            record = {"number": number, "done": case.done, "outcomes": outcomes}
            os.write(writer, json.dumps(record).encode() + b"\n")
        code = 0
    finally:
        os._exit(code)


def _limit_memory() -> None:
    used = 0
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData"):
            used = int(line.split()[1]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY_BYTES, used + MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
