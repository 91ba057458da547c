"""`tune` writes what is right alone, whatever the tools do."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfold
from onnxfold.errors import ModelError, UsageError, VerificationError
from onnxfold.runtime.library import has_cuda
from onnxfold.tuning import search
from onnxfold.tuning import tuner as tuning
from onnxfold.tuning.steps import STEPS
from onnxfold.tuning.tune_result import METADATA_KEY, Status
from tests.builders import pre_norm_model
from tests.sessions import session
from tests.tuning.broken_tools import BROKEN
from tests.tuning.forked import forked_jobs

DIGITS = Path(__file__).parents[2] / "models/digits_vit/digits_vit.onnx"
HELDOUT = DIGITS.with_name("heldout.npz")


def _outputs(path: Path) -> np.ndarray:
    loaded = session(path)
    images = np.random.default_rng(0).normal(size=(3, 1, 8, 8)).astype(np.float32)
    return loaded.run(None, {loaded.get_inputs()[0].name: images})[0]


@pytest.fixture(autouse=True)
def _forked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.function is not test_one_chain_is_written_with_the_command_that_makes_it:
        forked_jobs(monkeypatch)


@pytest.fixture
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is run in a moment, for what holds of any."""
    path = tmp_path_factory.mktemp("small") / "small.onnx"
    onnx.save(pre_norm_model(), path)
    return path


@pytest.fixture
def broken_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, step in BROKEN.items():
        monkeypatch.setitem(STEPS, name, step)  # type: ignore[arg-type]  # a dictionary


def test_one_chain_is_written_with_the_command_that_makes_it(tmp_path: Path) -> None:
    out = tmp_path / "fast.onnx"
    result = onnxfold.tune(DIGITS, out, chains=("fold-ort",))
    assert result.output == out
    assert result.winner is not None
    assert result.winner.chain == ("fold-ort",)
    np.testing.assert_allclose(_outputs(out), _outputs(DIGITS), rtol=0, atol=2e-5)
    notes = {p.key: p.value for p in onnx.load(out).metadata_props}
    assert json.loads(notes[METADATA_KEY])["commands"] == [
        'onnxfold tune IN OUT --chain "fold-ort"'
    ]
    assert "onnxfold" in notes, "the note of the fold is still there"


def test_the_function_can_be_called_twice(tmp_path: Path) -> None:
    """The package of its parts has another name, which would replace the function."""
    assert tuning.__name__ == "onnxfold.tuning.tuner"
    assert callable(onnxfold.tune)


@pytest.mark.usefixtures("broken_tools")
@pytest.mark.parametrize("name", sorted(BROKEN.keys() - {"fold-onnx", "int4-blocks32"}))
def test_a_planted_fault_is_a_row_and_never_written(small: Path, name: str, tmp_path: Path) -> None:
    out = tmp_path / "fast.onnx"
    with pytest.raises(VerificationError) as caught:
        onnxfold.tune(small, out, chains=(name,), precision=("fp32", "int8"), step_seconds=40)
    assert not out.exists()
    row = caught.value.result.candidates[1]  # type: ignore[attr-defined]
    assert row.status in (Status.WRONG, Status.FAILED)
    assert row.reason
    assert "\n" not in row.reason
    assert row.reason in str(caught.value)


@pytest.mark.usefixtures("broken_tools")
def test_a_winner_is_looked_into_though_its_outputs_are_near_enough(tmp_path: Path) -> None:
    out = tmp_path / "fast.onnx"
    with pytest.raises(VerificationError, match=r"are right, but node '.*' is wrong"):
        onnxfold.tune(DIGITS, out, chains=("int4-blocks32",), data=HELDOUT, precision=("int4",))
    assert not out.exists()


@pytest.mark.usefixtures("broken_tools")
def test_nodes_that_a_tool_left_in_disorder_are_sorted(small: Path, tmp_path: Path) -> None:
    """ONNX Runtime sorts them itself, other readers need not."""
    out = tmp_path / "fast.onnx"
    onnxfold.tune(small, out, chains=("fold-onnx",))
    onnx.checker.check_model(onnx.load(out))


@pytest.mark.usefixtures("broken_tools")
def test_a_broken_tool_does_not_end_the_others(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "fast.onnx"
    wanted = ("int8-channel", "slim", "fold-ort", "fold-ort > slim")
    result = onnxfold.tune(small, out, chains=wanted)
    assert [c.status for c in result.candidates] == [
        Status.RIGHT, Status.FAILED, Status.WRONG, Status.RIGHT, Status.WRONG,
    ]  # fmt: skip
    assert result.winner is not None
    assert result.winner.chain in ((), ("fold-ort",))


def test_equal_files_are_run_once(small: Path, tmp_path: Path) -> None:
    result = onnxfold.tune(
        small, tmp_path / "fast.onnx", chains=("fold-ort", "fold-ort > fold-ort")
    )
    assert [c.status for c in result.candidates[1:]] == [Status.RIGHT, Status.SAME]


def test_the_budget_of_a_precision_decides(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "fast.onnx"
    with pytest.raises(VerificationError, match=r"nothing of int8 is right.*relative error"):
        onnxfold.tune(small, out, chains=("int8",), precision="int8", max_error=1e-6)
    assert not out.exists()
    result = onnxfold.tune(
        small, out, chains=("int8",), precision="int8", max_error=0.5, metric="relative"
    )
    assert result.winner is not None
    assert result.winner.chain == ("int8",)
    assert set(result.winner.errors) >= {"relative"}


def test_data_is_compared_and_calibrated_on(tmp_path: Path) -> None:
    out = tmp_path / "fast.onnx"
    result = onnxfold.tune(
        DIGITS, out, chains=("int8-static",), precision="int8", data=HELDOUT, samples=1
    )
    assert result.winner is not None
    kinds = {node.op_type for node in onnx.load(out).graph.node}
    assert "QuantizeLinear" in kinds


def test_candidates_are_kept_where_the_user_says(small: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    onnxfold.tune(small, tmp_path / "fast.onnx", chains=("fold-ort",), keep_candidates=kept)
    assert [path.name for path in kept.iterdir()] == ["01-fold-ort.onnx"]
    with pytest.raises(UsageError, match="new or an empty folder"):
        onnxfold.tune(small, tmp_path / "b.onnx", chains=("fold-ort",), keep_candidates=kept)


def test_the_input_is_never_replaced_unasked(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(DIGITS.read_bytes())
    with pytest.raises(UsageError):
        onnxfold.tune(model, model, chains=("fold-ort",))
    assert model.read_bytes() == DIGITS.read_bytes()


def test_a_model_that_no_session_takes_is_one_sentence(tmp_path: Path) -> None:
    model = onnx.load(DIGITS)
    model.graph.node[-1].domain = "nowhere"
    model.opset_import.append(onnx.helper.make_opsetid("nowhere", 1))
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    with pytest.raises((ModelError, VerificationError)) as caught:
        onnxfold.tune(path, tmp_path / "out.onnx", chains=("slim",))
    assert "\n" not in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


def test_an_interruption_keeps_the_best_so_far(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = search.Search._tried
    seen: list[str] = []

    def interrupted(self: search.Search, *arguments: object) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append("one")
        tried(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(search.Search, "_tried", interrupted)
    out = tmp_path / "fast.onnx"
    result = onnxfold.tune(small, out, chains=("fold-ort", "optimizer"))
    assert result.output == out
    assert [c.status for c in result.candidates] == [Status.RIGHT, Status.RIGHT, Status.SKIPPED]
    assert result.winner is not None


def test_before_anything_is_right_an_interruption_writes_nothing(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: search.Search, *arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(search.Search, "_tried", interrupted)
    with pytest.raises(KeyboardInterrupt):
        onnxfold.tune(small, tmp_path / "fast.onnx", chains=("fold-ort", "optimizer"))
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(has_cuda(), reason="candidates are timed where a GPU is at hand")
def test_where_no_gpu_is_at_hand_the_measured_order_decides(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "fast.onnx"
    wanted = ("fold-ort > fp16", "fp16")
    result = onnxfold.tune(small, out, device="cuda", precision=("fp32", "fp16"), chains=wanted)
    assert not result.report["timed"]
    assert result.winner is result.candidates[1]
    assert [c.status for c in result.candidates[1:]] == [Status.RIGHT, Status.RIGHT]
    assert all(c.milliseconds is None for c in result.candidates)
