"""The shipped tiny ViT: its files, its accuracy and the table that compares files."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import pytest

from models.digits_vit.accuracy import logits, main, table
from models.digits_vit.data import HELDOUT, Digits, load_heldout, split_digits

SHIPPED = HELDOUT.parent / "digits_vit.onnx"


def test_the_shipped_model_reaches_its_stated_accuracy() -> None:
    digits = load_heldout()
    predicted = logits(SHIPPED, digits).argmax(axis=1)
    correct = int((predicted == digits.labels).sum())
    readme = (SHIPPED.parent / "README.md").read_text(encoding="utf-8")
    assert f"{correct / len(digits.labels):.2%} ({correct} of {len(digits.labels)})" in readme
    assert correct >= 0.97 * len(digits.labels)


def test_the_shipped_model_is_a_pre_norm_vit_with_trained_affine_norms() -> None:
    model = onnx.load(SHIPPED)
    onnx.checker.check_model(model, full_check=True)
    assert [opset.version for opset in model.opset_import if not opset.domain] == [18]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    arrays = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    norms = [node for node in model.graph.node if node.op_type == "LayerNormalization"]
    assert len(norms) == 9
    for node in norms:
        gamma, beta = (arrays[name] for name in node.input[1:])
        assert gamma.std() > 0.01
        assert beta.std() > 0.01


def test_the_shipped_files_name_no_file_of_another_machine() -> None:
    model = onnx.load(SHIPPED)
    keys = {entry.key for node in model.graph.node for entry in node.metadata_props}
    assert keys == {"namespace"}
    assert not any(node.doc_string for node in model.graph.node)
    content = SHIPPED.read_bytes()
    assert not any(word in content for word in (b"site-packages", b"/tmp/", b"/home/", b".py"))


@pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="needs scikit-learn")
def test_the_held_out_digits_are_not_among_the_training_ones() -> None:
    shipped = load_heldout()
    training, heldout = split_digits(0)
    assert np.array_equal(shipped.images, heldout.images)
    assert np.array_equal(shipped.labels, heldout.labels)
    assert len(training.labels) == 1437
    seen = {image.tobytes() for image in training.images}
    assert not any(image.tobytes() in seen for image in shipped.images)


def test_the_table_counts_other_predictions_against_the_first_file() -> None:
    labels = np.array([0, 1, 2, 3])
    right = np.eye(10, dtype=np.float32)[labels]
    wrong = right.copy()
    wrong[2] = np.eye(10, dtype=np.float32)[7]
    digits = Digits(np.zeros((4, 1, 8, 8), np.float32), labels)
    head, first, second = table({Path("a.onnx"): right, Path("b.onnx"): wrong}, digits)
    assert head.split() == "model accuracy correct other predictions max logit difference".split()
    assert first.split() == ["a.onnx", "100.00%", "4", "of", "4", "0", "0.0e+00"]
    assert second.split() == ["b.onnx", "75.00%", "3", "of", "4", "1", "1.0e+00"]


def test_the_command_prints_one_row_for_each_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(SHIPPED), str(SHIPPED)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2  # the same path is run once
