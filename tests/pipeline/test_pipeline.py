"""optimize and inspect as a Python user meets them."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

import onnxfold
from onnxfold import model_io
from onnxfold.api import rewriting
from onnxfold.errors import VerificationError
from onnxfold.model_io.load import Source, open_source
from onnxfold.options import METADATA_KEY
from tests.builders import chain_model, post_norm_model, pre_norm_model


def _operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def test_the_same_kind_of_model_comes_back() -> None:
    proto = chain_model()
    assert isinstance(onnxfold.optimize(proto).model, onnx.ModelProto)
    assert isinstance(onnxfold.optimize(ir.from_proto(proto)).model, ir.Model)
    assert isinstance(onnxfold.optimize(gs.import_onnx(proto)).model, gs.Graph)


@pytest.mark.parametrize("kind", ["proto", "graphsurgeon"])
def test_what_is_given_back_is_checked_and_not_what_it_was_made_of(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conversion on the way back that spoils a weight is found."""

    def spoiled(proto: onnx.ModelProto) -> onnx.ModelProto:
        weight = max(proto.graph.initializer, key=lambda tensor: len(tensor.raw_data))
        array = onnx.numpy_helper.to_array(weight)
        weight.CopyFrom(onnx.numpy_helper.from_array(array * np.float32(1.01), weight.name))
        return proto

    def back(result: ir.Model) -> onnx.ModelProto | gs.Graph:
        proto = spoiled(model_io.materialise(result))
        return proto if kind == "proto" else gs.import_onnx(proto)

    proto = chain_model()
    given = proto if kind == "proto" else gs.import_onnx(proto)

    def opened(each: Any) -> Source:
        return replace(open_source(each), give_back=back)

    monkeypatch.setattr(rewriting, "open_source", opened)
    with pytest.raises(VerificationError, match="verification failed"):
        onnxfold.optimize(given)
    assert onnxfold.optimize(given, check=0).verification is None


def test_a_result_is_pickled_and_copied_with_its_model(tmp_path: Path) -> None:
    """Nodes refer to each other in a long row, and weights are mapped files."""
    proto = pre_norm_model(blocks=60)
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    result = onnxfold.optimize(ir.load(tmp_path / "m.onnx"), check=0)
    for twin in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result)):  # noqa: S301
        assert isinstance(twin.model, ir.Model)
        assert ir.to_proto(twin.model) == model_io.materialise(result.model)
        assert (twin.report, twin.plan) == (result.report, result.plan)
        assert (twin.changed, twin.proof) == (True, result.proof)


def test_a_program_of_torch_comes_back_as_one() -> None:
    torch_onnx = pytest.importorskip("torch.onnx")
    program = torch_onnx.ONNXProgram(ir.from_proto(chain_model()), None)
    folded = onnxfold.optimize(program).model
    assert isinstance(folded, torch_onnx.ONNXProgram)
    assert folded.exported_program is program.exported_program
    operators = [_operators(each.model_proto) for each in (program, folded)]
    assert ["LayerNormalization" in names for names in operators] == [True, False]
    (norm,) = onnxfold.inspect(program)["norms"]
    assert norm["foldable"]


def test_a_path_gives_a_path(tmp_path: Path) -> None:
    onnx.save(chain_model(), tmp_path / "in.onnx")
    result = onnxfold.optimize(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert result.model == tmp_path / "out.onnx"
    assert result.report["output"]["path"] == str(tmp_path / "out.onnx")


@pytest.mark.parametrize("options", [{"inputs": ("x",)}, {"providers": ("NoProvider",)}])
def test_options_of_the_check_are_read_before_the_work(options: dict[str, tuple[str, ...]]) -> None:
    stages: list[str] = []
    with pytest.raises(onnxfold.UsageError):
        onnxfold.optimize(
            pre_norm_model(), progress=lambda stage, _: stages.append(stage), **options
        )
    assert not stages


def test_other_objects_are_refused_with_the_kinds_that_are_taken() -> None:
    with pytest.raises(onnxfold.UsageError, match="type int is not a model; pass a path"):
        onnxfold.optimize(3)


def test_the_given_model_is_not_changed() -> None:
    proto = pre_norm_model()
    before = proto.SerializeToString(deterministic=True)
    onnxfold.optimize(proto)
    assert proto.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("target", ["kernels", "onnx", "ort"])
def test_every_floating_type_folds_and_is_proved_and_verified(dtype: type, target: str) -> None:
    result = onnxfold.optimize(chain_model(dtype), target=target)
    assert [fold.norm for fold in result.plan.folds] == ["norm"]
    assert result.proof is not None
    assert result.proof.passed
    assert result.proof.folded_norms == 1
    assert result.verification is not None
    assert result.verification.passed
    assert "LayerNormalization" not in _operators(result.model)
    assert "left_out" not in result.report


@pytest.mark.parametrize("target", ["kernels", "onnx"])
def test_the_result_is_valid_onnx_and_runs_in_the_reference_evaluator(target: str) -> None:
    proto = pre_norm_model()
    folded = onnxfold.optimize(proto, target=target).model
    onnx.checker.check_model(folded, full_check=True)
    feeds = {"ids": np.array([[3, 1, 4], [1, 5, 9]])}
    (expected,) = ReferenceEvaluator(proto).run(None, feeds)
    (found,) = ReferenceEvaluator(folded).run(None, feeds)
    # Two blocks of float32 arithmetic on numbers of order 10: some hundred roundings.
    np.testing.assert_allclose(found, expected, rtol=0, atol=100 * 2**-24 * np.abs(expected).max())


def test_the_result_for_kernels_declares_its_functions_and_the_others_have_none() -> None:
    made = onnxfold.optimize(pre_norm_model(), target="kernels").model
    assert {function.domain for function in made.functions} == {"onnxfold"}
    assert "onnxfold" in {entry.domain for entry in made.opset_import}
    plain = onnxfold.optimize(pre_norm_model(), target="onnx").model
    assert not plain.functions
    assert {entry.domain for entry in plain.opset_import} == {""}


def test_names_of_inputs_and_outputs_are_kept() -> None:
    proto = pre_norm_model()
    folded = onnxfold.optimize(proto).model
    assert list(folded.graph.input) == list(proto.graph.input)
    assert list(folded.graph.output) == list(proto.graph.output)


def test_provenance_is_one_metadata_key() -> None:
    folded = onnxfold.optimize(pre_norm_model(), target="ort").model
    properties = {entry.key: entry.value for entry in folded.metadata_props}
    assert set(properties) == {METADATA_KEY}
    assert json.loads(properties[METADATA_KEY])["folded"] == 3


@pytest.mark.parametrize("target", ["kernels", "onnx", "ort"])
def test_what_is_noted_at_nodes_and_weights_is_kept(target: str, tmp_path: Path) -> None:
    proto = pre_norm_model()
    for thing in (*proto.graph.node, *proto.graph.initializer):
        thing.doc_string = f"about {thing.name}"
        thing.metadata_props.add(key="note", value=thing.name)
    onnx.save(proto, tmp_path / "in.onnx")
    onnxfold.optimize(tmp_path / "in.onnx", tmp_path / "out.onnx", target=target)
    folded = onnx.load(tmp_path / "out.onnx")

    norms = {node.name for node in proto.graph.node if node.op_type == "LayerNormalization"}
    found = {entry.value for node in folded.graph.node for entry in node.metadata_props}
    assert len(norms) == 3
    assert norms <= found
    tables = {tensor.name: tensor for tensor in folded.graph.initializer}
    for old in proto.graph.initializer:
        new = tables.get(old.name, old)
        assert (new.doc_string, list(new.metadata_props)) == (
            old.doc_string,
            list(old.metadata_props),
        )
    changed = [t.name for t in proto.graph.initializer if tables.get(t.name, t) != t]
    assert changed  # which the metadata of edited weights is seen at


def test_a_small_tied_table_is_split_and_a_large_one_gets_a_centring() -> None:
    split = onnxfold.optimize(pre_norm_model(4, tied=True), target="kernels").plan
    assert (len(split.folds), len(split.insertions)) == (5, 0)
    assert split.split_bytes == 32 * 16 * 4
    kept = onnxfold.optimize(pre_norm_model(4, tied=True), target="kernels", allow_split=0).plan
    assert (len(kept.folds), len(kept.insertions), kept.split_bytes) == (5, 1, 0)


def test_post_norm_streams_keep_their_mean_and_say_why() -> None:
    document = onnxfold.inspect(post_norm_model())
    assert document["summary"]["foldable"] == 0
    reasons = [norm["reason"]["code"] for norm in document["norms"]]
    assert reasons == ["graph_input", "affine_norm_output"]


@pytest.mark.parametrize("read", ["mean", "inv"])
def test_a_norm_whose_statistics_are_read_stays(read: str) -> None:
    proto = chain_model()
    proto.graph.node[2].output.extend(["mean", "inv"])
    proto.graph.output.add().CopyFrom(onnx.helper.make_tensor_value_info(read, 1, ["batch", 1]))
    result = onnxfold.optimize(proto)
    assert not result.plan.folds
    (norm,) = result.report["inspect"]["norms"]
    assert norm["reason"]["code"] == "statistics_read"


def test_excluded_norms_stay() -> None:
    document = onnxfold.inspect(pre_norm_model(), exclude="^norm1$")
    folded = {norm["name"]: norm["foldable"] for norm in document["norms"]}
    assert folded == {"norm0": True, "norm1": False, "last": True}
    with pytest.raises(onnxfold.UsageError, match="not a regular expression"):
        onnxfold.inspect(pre_norm_model(), exclude="(")


@pytest.mark.parametrize("target", ["kernels", "onnx", "ort"])
def test_a_second_run_changes_nothing(tmp_path: Path, target: str) -> None:
    onnx.save(pre_norm_model(tied=True), tmp_path / "in.onnx")
    onnxfold.optimize(tmp_path / "in.onnx", tmp_path / "once.onnx", target=target)
    again = onnxfold.optimize(tmp_path / "once.onnx", tmp_path / "twice.onnx", target=target)
    assert not again.changed
    assert (tmp_path / "once.onnx").read_bytes() == (tmp_path / "twice.onnx").read_bytes()


def test_residual_additions_are_fused_unless_asked_not_to() -> None:
    fused = _operators(onnxfold.optimize(pre_norm_model(), target="kernels").model)
    assert "AddBiasRMSNormAffineWithSum" in fused
    apart = onnxfold.optimize(pre_norm_model(), target="kernels", fuse_residual=False).model
    plain = _operators(apart)
    assert plain.count("RMSNormAffine") == 3


def test_a_dry_run_plans_and_gives_no_model() -> None:
    result = onnxfold.optimize(pre_norm_model(), dry_run=True)
    assert result.model is None
    assert len(result.plan.folds) == 2  # the norm of the table stays (docs/pipeline.md)


def test_a_wrong_result_is_caught_and_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of the whole: a rewriting that is wrong must not reach the disk."""
    from onnxfold.targets import lowering as targets

    real = targets.call

    def wrong(name: str, *args: object, **options: object) -> ir.Node:
        return real(name, *args, **{**options, "epsilon": 0.5})  # type: ignore[arg-type]

    monkeypatch.setattr(targets, "call", wrong)
    onnx.save(chain_model(), tmp_path / "in.onnx")
    result = onnxfold.optimize(tmp_path / "in.onnx", tmp_path / "out.onnx")
    left = {row["name"]: row["reason"] for row in result.report["left_out"]}
    assert left["centring"] == "the proof failed: output 'y' could not be proved equal: node 'norm'"
    assert not result.plan.folds
    written = onnx.load(tmp_path / "out.onnx")
    assert "LayerNormalization" in _operators(written)
    assert not result.changed


def test_verification_alone_catches_a_wrong_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onnxfold.proof import Proof
    from onnxfold.targets import lowering as targets

    real = targets.call

    def wrong(name: str, *args: object, **options: object) -> ir.Node:
        return real(name, *args, **{**options, "epsilon": 0.5})  # type: ignore[arg-type]

    monkeypatch.setattr(targets, "call", wrong)
    monkeypatch.setattr("onnxfold.pipeline.proofs.prove_models", lambda *_: Proof(True, 1, 1, ()))
    onnx.save(chain_model(), tmp_path / "in.onnx")
    with pytest.raises(onnxfold.VerificationError, match="output 'y'"):
        onnxfold.optimize(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(onnxfold.VerificationError, match="; both ran in the interpreter"):
        onnxfold.optimize(tmp_path / "in.onnx", tmp_path / "out.onnx")


def _with_infinite_mask() -> onnx.ModelProto:
    """A head whose bias bars a class with -inf: beta cannot be added to it and taken out again."""
    proto = chain_model()
    mask = np.zeros(16, np.float32)
    mask[0] = -np.inf
    proto.graph.initializer.append(onnx.numpy_helper.from_array(mask, "mask"))
    proto.graph.node[-1].output[0] = "scores"
    proto.graph.node.append(onnx.helper.make_node("Add", ["scores", "mask"], ["y"], name="bar"))
    return proto


def test_a_beta_moves_where_a_mask_bars_some_outputs() -> None:
    result = onnxfold.optimize(_with_infinite_mask())
    assert result.report["inspect"]["summary"]["beta_fused"] == 1
    assert result.verification is not None
    assert result.verification.passed


def test_where_moved_gammas_alone_fail_a_check_the_rest_is_done_and_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from onnxfold.check import compare

    real = compare.verify

    def strict(*args: Any, **options: Any) -> Any:
        if not failed:
            failed.append(args)
            raise onnxfold.VerificationError("output 'y' is off")
        return real(*args, **options)

    failed: list[Any] = []
    monkeypatch.setattr(compare, "verify", strict)
    result = onnxfold.optimize(_with_infinite_mask())
    (left,) = result.report["left_out"]
    assert left == {"name": "affine", "reason": "output 'y' is off"}
    assert result.report["inspect"]["summary"]["gamma_fused"] == 0
    assert len(result.plan.folds) == 1
    assert result.proof is not None
    assert result.proof.passed
    assert result.verification is not None
    assert result.verification.passed


def test_a_weight_with_the_name_of_a_merged_factor_is_kept(tmp_path: Path) -> None:
    """A weight of the model may already have the name that a merged factor would take."""
    proto = chain_model()
    proto.graph.node[-1].output[0] = "h2"
    for name, value in (("k1", 0.5), ("k2", 3.0), ("h4.factor", 7.0)):
        array = np.asarray(value, np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    proto.graph.node.extend(
        [
            onnx.helper.make_node("Mul", ["h2", "k1"], ["h3"]),
            onnx.helper.make_node("Mul", ["h3", "k2"], ["h4"]),
            onnx.helper.make_node("Add", ["h4", "h4.factor"], ["y"]),
        ]
    )
    onnx.save(proto, tmp_path / "in.onnx")
    result = onnxfold.optimize(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert result.verification is not None
    assert result.verification.passed
