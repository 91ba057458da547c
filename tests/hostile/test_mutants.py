"""Mutants of real files through the command line: some of each kind here, many in a benchmark.

`python -m benchmarks.hostile 100000` is the full figure.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.hostile import campaign
from tests.hostile.mutation import MODEL, Mutant

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.onnx"))
# Processor seconds for one command; the slowest here takes about two.
LIMIT_S = 20.0


@pytest.mark.campaign
def test_mutants_are_refused_or_done_and_keep_every_promise() -> None:
    ended = Counter[str]()
    done = Counter[str]()
    for found in campaign.mutants(range(120), limit_s=LIMIT_S):
        assert found.faults == [], (found.number, found.done)
        ended.update(outcome.ended for outcome in found.outcomes)
        done.update(found.done)
    # The mutants are neither all harmless nor all refused at sight, and of every kind.
    assert min(ended["done"], ended["refused"]) > 30
    assert len(done) > 15


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_files_that_once_broke_a_promise_keep_it(path: Path) -> None:
    raw = path.read_bytes()
    (found,) = campaign.replayed([0], lambda _: Mutant({MODEL: raw}), limit_s=LIMIT_S)
    assert found.faults == []


def _broken(number: int) -> Mutant:
    """A maker that does to its process what a mutant might."""
    if number == 1:
        faulthandler.disable()  # pytest turns it on, and this crash is nobody's defect
        os.kill(os.getpid(), signal.SIGSEGV)
    if number == 2:
        time.sleep(60)
    return Mutant({MODEL: b""}, done=["empty"])


def test_a_crash_and_a_hang_are_reported_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = os.getpid()
    monkeypatch.setattr(campaign, "_PATIENCE", 2)

    def make(number: int) -> Mutant:
        return Mutant({}) if os.getpid() == here else _broken(number)

    found = list(campaign.replayed(range(4), make, limit_s=1.0))
    assert [f.killed for f in found] == [None, "crash: SIGSEGV", "hang: more than 2 s", None]
    assert [o.ended for o in found[-1].outcomes] == ["refused", "refused"]
