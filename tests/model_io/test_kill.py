"""A process that is killed before any of its steps leaves whole models behind."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnxfold import model_io
from onnxfold.model_io import copying
from tests.hostile.faults import STEPS
from tests.model_io.files import contents, linear, save, weight

# Large enough that an embedded weight stays in the model file until it is copied.
SHAPE = (160, 128)


def edit(source: Path, destination: Path, progress: Callable[[int, int], None]) -> None:
    model = model_io.load(source)
    model.graph.initializers["W1"].const_value = ir.tensor(np.zeros(SHAPE, np.float32))
    with model_io.stage(model, destination, source=source, force=True, progress=progress) as staged:
        staged.commit()


def killed_before(step: int, source: Path, destination: Path) -> bool:
    """Run the edit in a process that is killed before a step; False if it ended before that."""
    with warnings.catch_warnings():
        # Python 3.12 warns of threads; the child runs none of them and ends without cleaning up.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        left = step
        folder = str(destination.parent)

        def count(*_: object) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        def audit(event: str, arguments: tuple[object, ...]) -> None:
            if event in STEPS and str(arguments[0]).startswith(folder):
                count()

        code = 1
        try:
            sys.addaudithook(audit)
            edit(source, destination, count)
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


@pytest.mark.campaign
@pytest.mark.parametrize("data", [(), ("in.onnx.data",)], ids=["embedded", "external"])
@pytest.mark.parametrize("case", ["new", "replaced", "in place"])
def test_a_kill_before_any_step_leaves_the_old_pair_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: tuple[str, ...], case: str
) -> None:
    # Small batches, so that a kill also falls between parts of one file.
    monkeypatch.setattr(copying, "_BATCH_BYTES", 40_000)
    proto = linear(*(weight(f"W{i}", *SHAPE) for i in range(3)))
    start = tmp_path / "start"
    start.mkdir()
    source = save(proto, start / "in.onnx", *data)
    old = contents(source)
    new = {**old, "W1": bytes(4 * SHAPE[0] * SHAPE[1])}
    if case == "replaced":
        with model_io.stage(model_io.load(source), start / "out.onnx") as staged:
            staged.commit()
    outcomes: list[bool] = []
    while True:
        folder = tmp_path / f"run{len(outcomes)}"
        shutil.copytree(start, folder)
        destination = folder / ("in.onnx" if case == "in place" else "out.onnx")
        killed = killed_before(len(outcomes), folder / "in.onnx", destination)
        read = contents(destination) if destination.exists() else None
        assert read in ([old, new] if case != "new" else [None, new])
        if case != "in place":
            assert contents(folder / "in.onnx") == old
        outcomes.append(read == new)
        # Leftovers do not block the next run.
        edit(folder / "in.onnx", destination, lambda *_: None)
        assert contents(destination) == new
        shutil.rmtree(folder)
        if not killed:
            break
    assert outcomes == sorted(outcomes)
    assert outcomes[-1]
    assert outcomes.count(False) >= 10
