"""Before and after: counted by hand on small models, and against what a session runs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import onnxfold
from onnxfold import model_io
from onnxfold.report.before_after import figure_notes, figure_rows, figures
from onnxfold.runtime.sessions import session_operators
from tests.builders import model_of

_WIDTH, _INNER = 8, 12


def small_model(kind: str = "LayerNormalization", *, sizes: Any = ("batch", 3)) -> onnx.ModelProto:
    """y = norm(x W) V, x of shape [*sizes, 8]."""
    inputs = ["h", "gamma"] + (["beta"] if kind == "LayerNormalization" else [])
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "W"], ["h"]),
        onnx.helper.make_node(kind, inputs, ["n"]),
        onnx.helper.make_node("MatMul", ["n", "V"], ["y"]),
    ]
    rng = np.random.default_rng(0)
    weights = {
        "W": rng.standard_normal((_WIDTH, _WIDTH)).astype("f"),
        "gamma": rng.standard_normal(_WIDTH).astype("f"),
        "V": rng.standard_normal((_WIDTH, _INNER)).astype("f"),
    }
    if kind == "LayerNormalization":
        weights["beta"] = rng.standard_normal(_WIDTH).astype("f")
    float32 = onnx.TensorProto.FLOAT
    return model_of(
        nodes,
        {"x": (float32, [*sizes, _WIDTH])},
        {"y": (float32, [*sizes, _INNER])},
        weights,
        opset=23,
    )


def test_a_layer_norm_is_counted_as_by_hand() -> None:
    found = figures(model_io.from_proto(small_model()))
    elements = 1 * 3 * _WIDTH
    assert found.operators == {"LayerNormalization": 1, "MatMul": 2}
    assert found.nodes == 3
    assert found.parameters == _WIDTH * _WIDTH + 2 * _WIDTH + _WIDTH * _INNER
    assert found.weight_bytes == 4 * found.parameters
    assert found.multiplications == 3 * _WIDTH * _WIDTH + 3 * _WIDTH * _INNER
    assert found.norm_multiplications == 3 * elements  # squares, scale, gamma
    assert found.norm_additions == 4 * elements  # mean, difference, squares, beta
    assert found.norm_bytes == 4 * (2 * elements + 2 * _WIDTH)
    assert found.unknown_products == found.unknown_norms == 0


def test_an_rms_norm_neither_centres_nor_shifts() -> None:
    found = figures(model_io.from_proto(small_model("RMSNormalization")))
    elements = 3 * _WIDTH
    assert found.norms == {"rms_norm": 1}
    assert found.norm_multiplications == 3 * elements
    assert found.norm_additions == elements
    assert found.norm_bytes == 4 * (2 * elements + _WIDTH)


def test_sizes_that_nothing_tells_are_left_out_and_counted() -> None:
    model = small_model(sizes=(None, 3))
    found = figures(model_io.from_proto(model))
    assert (found.unknown_products, found.multiplications) == (2, 0)
    assert (found.unknown_norms, found.norm_bytes) == (1, 0)


def test_sums_that_leave_out_different_parts_are_not_set_side_by_side() -> None:
    document = onnxfold.diff(small_model(sizes=(None, 3)), small_model())
    labels = {row.label for row in figure_rows(document, every=True)}
    assert "parameters" in labels
    assert not [label for label in labels if "of norms" in label or "multiplications" in label]
    assert "products of unknown size: 2 before, 0 after" in " ".join(figure_notes(document))
    same = onnxfold.diff(small_model(sizes=(None, 3)), small_model(sizes=(None, 3)))
    assert "norms of unknown size, which are left out: 1" in figure_notes(same)


def test_spelling_changes_the_operators_and_not_the_cost() -> None:
    """Whatever a target writes, the norm is found in it; beta stays, in the norm or after it."""
    written = {
        target: onnxfold.optimize(small_model(), target=target).report["before_after"]["after"]
        for target in onnxfold.Target
    }
    operators = [tuple(document["operators"]) for document in written.values()]
    assert len(set(operators)) == len(operators)
    for document in written.values():
        assert document["norms"] == {"rms_norm": 1}
        assert document["norm_additions"] in (3 * _WIDTH, 2 * 3 * _WIDTH)
        assert document["norm_multiplications"] == 3 * 3 * _WIDTH


def profiled(path: Path, folder: Path, feeds: dict[str, Any]) -> Counter[str]:
    """Count the operators that one run of a session executes, from its profile."""
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    session.run(None, feeds)
    events = json.loads(Path(session.end_profiling()).read_text())
    return Counter(
        event["args"]["op_name"] for event in events if event["name"].endswith("_kernel_time")
    )


def test_the_nodes_of_a_session_are_those_that_it_runs(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(small_model(sizes=(2, 3)), path)
    onnxfold.optimize(path, tmp_path / "fast.onnx")
    feeds = {"x": np.ones((2, 3, _WIDTH), "f")}
    for file in (path, tmp_path / "fast.onnx"):
        counted = session_operators(file)
        assert counted is not None
        ran = profiled(file, tmp_path, feeds)
        assert Counter({n.rpartition(".")[2]: c for n, c in counted.items()}) == ran


def test_a_session_that_cannot_be_is_said_and_the_rest_is_counted(tmp_path: Path) -> None:
    model = small_model()
    model.graph.node[0].domain = "nowhere"
    model.opset_import.add(domain="nowhere", version=1)
    onnx.save(model, tmp_path / "m.onnx")
    document = onnxfold.diff(tmp_path / "m.onnx", tmp_path / "m.onnx")
    assert document["before"]["session_operators"] is None
    (reason,) = (note for note in figure_notes(document) if "ONNX Runtime cannot load" in note)
    assert reason.startswith("m.onnx: ONNX Runtime cannot load it: ")
    document["after"]["session_refusal"] = None
    assert f"before: {reason}" in figure_notes(document)
    assert not any("session" in row.label for row in figure_rows(document, every=True))


def test_the_rows_name_what_differs() -> None:
    document = onnxfold.diff(small_model(), small_model("RMSNormalization"))
    rows = {row.label: row for row in figure_rows(document, every=False)}
    assert (rows["LayerNorm"].before, rows["LayerNorm"].after) == (1, 0)
    assert (rows["RMSNorm"].before, rows["RMSNorm"].after) == (0, 1)
    assert "MatMul" not in rows
    assert rows["additions of norms"].change == "-72 (-75.0%)"
    assert "MatMul" in {row.label for row in figure_rows(document, every=True)}
    first, *_, last = figure_notes(document)
    assert "for 1 each of: batch" in first
    sides = "inputs: x float [batch, 3, 8]; outputs: y float [batch, 3, 12]"
    assert last == f"opset 23, IR version 8; {sides}"


def test_another_interface_is_told_for_each_side() -> None:
    document = onnxfold.diff(small_model(sizes=(None, 3)), small_model(sizes=(2, 3)))
    before, after = figure_notes(document)[-2:]
    assert before.startswith(
        "before: opset 23, IR version 8; inputs: x float [?, 3, 8]; outputs: y "
    )
    assert after.startswith("after: opset 23, IR version 8; inputs: x float [2, 3, 8]; outputs: y ")


@pytest.mark.parametrize("external", [False, True])
def test_a_report_of_a_file_counts_its_session_and_one_of_a_model_does_not(
    tmp_path: Path, external: bool
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(small_model(), path, save_as_external_data=external, size_threshold=0)
    counted = onnxfold.optimize(path, tmp_path / "fast.onnx").report["before_after"]
    assert counted["after"]["session_operators"]["SimplifiedLayerNormalization"] == 1
    again = onnxfold.optimize(small_model()).report["before_after"]
    assert "session_operators" not in again["after"]
    same = onnxfold.optimize(tmp_path / "fast.onnx", tmp_path / "same.onnx").report
    assert "before_after" not in same


def test_sessions_of_a_long_graph_are_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime's own optimizations take time with the square of the nodes."""
    path = tmp_path / "m.onnx"
    onnx.save(small_model(), path)
    nodes = len(small_model().graph.node)
    for most, counted in ((nodes, True), (nodes - 1, False)):
        monkeypatch.setattr("onnxfold.pipeline.publishing.MOST_NODES", most)
        made = onnxfold.optimize(path, tmp_path / "fast.onnx", force=True)
        assert ("session_operators" in made.report["before_after"]["after"]) is counted


@pytest.mark.parametrize("change_readers", [False, True])
@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
def test_crms_norms_are_counted_alike_when_written_and_when_compared(
    target: str, change_readers: bool, tmp_path: Path
) -> None:
    original = Path(__file__).parents[1] / "recipes" / "gpt2.onnx"
    output = tmp_path / "crms.onnx"
    made = onnxfold.convert(
        original, output, to="crms", target=target, change_readers=change_readers, check=0
    )
    counts = ("norms", "norm_multiplications", "norm_additions", "norm_bytes", "unknown_norms")
    told, compared = (
        [document["after"][count] for count in counts]
        for document in (made.report["before_after"], onnxfold.diff(original, output))
    )
    assert told == compared
    assert all(told[:4])
    assert told[0] == {"crms": 5}
    assert _kinds_inspected(output) == {"crms": 5}


def _kinds_inspected(path: Path) -> Counter[str]:
    return Counter(norm["kind"] for norm in onnxfold.inspect(path)["norms"])
