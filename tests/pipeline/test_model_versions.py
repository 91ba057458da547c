"""What the passes share: one view and one recognition for each version of a model, few copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.graph import ModelInfo
from onnxfold.passes.base import ProofOutcome, Settings
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.pipeline import PASSES, fold, folding
from onnxfold.pipeline.basis_passes import BASIS_PASSES
from onnxfold.pipeline.stage_timer import StageTimer
from onnxfold.recognition import find
from onnxfold.target import Target
from tests.builders import chain_model, pre_norm_model

_VIT = Path(__file__).parents[2] / "models" / "digits_vit" / "digits_vit.onnx"


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count views, recognitions, shape inferences and copies of models."""
    counts: Counter[str] = Counter()

    def count(owner: Any, name: str, label: str) -> None:
        real: Callable[..., Any] = getattr(owner, name)

        def counting(*args: Any, **options: Any) -> Any:
            counts[label] += 1
            return real(*args, **options)

        monkeypatch.setattr(owner, name, counting)

    count(ModelInfo, "__init__", "views")
    count(find, "decomposed_sites", "recognitions")
    count(onnx.shape_inference, "infer_shapes", "inferences")
    count(ir.Model, "clone", "copies")
    return counts


def test_a_vit_is_looked_at_once_per_version(counted: Counter[str], tmp_path: Path) -> None:
    """Versions: prepared, and after affine, scales, centering, lower (read back and prepared).

    The shapes of the model are inferred once, on the copy that records their claims.
    """
    result = onnxfold.optimize(_VIT, tmp_path / "out.onnx", target="kernels", check=0)
    assert result.report["inspect"]["summary"]["foldable"] == 9
    assert result.report["inspect"]["summary"]["scales_fused"] > 0
    # No tables, deferral or other bases, unless they are asked for, and none to take back; no
    # BatchNormalizations.
    versions = len(PASSES) - len(BASIS_PASSES) - 2
    # No pass decides on the written model, which the figures describe; those before share the
    # first.
    assert counted["recognitions"] == versions - 1 + 1
    # Of the model as it came.  Four on the way: before Gelus, before and behind residual additions,
    # of what is written.  Two for the proof of the whole: as it came, and as it is written.
    assert counted["views"] == 1 + versions + 4 + 2 + 2
    # Of the model as it came, before rows become calls, of what is written, and as it is written.
    assert counted["inferences"] == 1 + 1 + 1 + 1
    # One to infer shapes in and to prepare, one for each pass to edit and the last to prove, and
    # two for the proof of the whole.
    assert counted["copies"] == versions + 1 + 2


def test_without_a_proof_one_copy_is_edited_in_place(counted: Counter[str], tmp_path: Path) -> None:
    onnxfold.optimize(_VIT, tmp_path / "out.onnx", check=None)
    assert counted["copies"] == 1 + 1  # the last one for the figures of what is written
    assert counted["inferences"] == 1


def test_a_version_that_is_proved_against_stays_as_it_is() -> None:
    prepared = prepare(ir.from_proto(pre_norm_model()))
    before = ir.to_proto(prepared.model).SerializeToString(deterministic=True)
    settings = Settings(Target.KERNELS)
    folded = fold(prepared, ir.from_proto(pre_norm_model()), settings, StageTimer(None))
    assert folded.changed
    assert ir.to_proto(prepared.model).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("name", ["affine", "scales", "centring"])
def test_a_pass_whose_proof_fails_is_left_out_and_the_others_stand(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a ViT, where every pass has something to do."""
    refused = ProofOutcome(failures=("it cannot be shown",))
    passes = tuple(
        folding.Pass(each.name, each.decide, each.apply, lambda *_: refused)
        if each.name == name
        else each
        for each in PASSES
    )
    monkeypatch.setattr(folding, "PASSES", passes)
    result = onnxfold.optimize(ir.load(_VIT), target="kernels")
    assert result.report["left_out"] == [
        {"name": name, "reason": "the proof failed: it cannot be shown"}
    ]
    plan = result.plan
    done = {"affine": plan.fusions, "scales": plan.scales, "centring": plan.folds}
    assert [each for each, part in done.items() if not part] == [name]
    assert result.proof is not None
    assert result.proof.passed
    assert result.verification is not None
    assert result.verification.passed


def test_a_spelling_that_cannot_be_proved_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = ProofOutcome(failures=("it cannot be shown",))
    lower = folding.LOWER
    broken = folding.Pass(lower.name, lower.decide, lower.apply, lambda *_: refused)
    monkeypatch.setattr(folding, "LOWER", broken)
    result = onnxfold.optimize(pre_norm_model(), target="kernels")
    assert [left["name"] for left in result.report["left_out"]] == ["lower"]
    assert len(result.plan.folds) == 3
    operators = {node.op_type for node in result.model.graph.node}
    assert not any(name.startswith("Add") and name != "Add" for name in operators)
    assert result.verification is not None
    assert result.verification.passed


def test_a_norm_whose_fold_is_not_proved_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = ProofOutcome(failures=("it cannot be shown",))
    passes = tuple(
        folding.Pass(each.name, each.decide, each.apply, lambda *_: refused) for each in PASSES
    )
    monkeypatch.setattr(folding, "PASSES", passes)
    (row,) = onnxfold.optimize(chain_model()).report["inspect"]["norms"]
    assert not row["foldable"]
    assert row["reason"]["code"] == "not_proved"


@pytest.mark.parametrize(
    ("check", "proved", "samples"), [(2, True, 2), (0, True, 0), (None, False, 0)]
)
def test_what_was_proved_and_run_is_what_was_asked_for(
    check: int | None, proved: bool, samples: int
) -> None:
    result = onnxfold.optimize(chain_model(), check=check)
    assert (result.proof is not None) is proved
    assert (result.verification is not None) is (samples > 0)
    assert result.report["assurance"] == {"proved": proved, "samples": samples}


@pytest.mark.parametrize("target", Target)
def test_the_figures_without_a_proof_are_those_with_one(target: Target, tmp_path: Path) -> None:
    """They are counted before types are taken away, not on what is inferred of what is written."""
    documents = [
        onnxfold.optimize(_VIT, tmp_path / f"{check}.onnx", target=target, check=check).report
        for check in (0, None)
    ]
    assert documents[0]["before_after"] == documents[1]["before_after"]
