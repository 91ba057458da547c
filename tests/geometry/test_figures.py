"""Names in figures, and the sentence that a page begins with."""

from __future__ import annotations

from onnxfold.geometry.figures import distinct, shortened
from onnxfold.geometry.page import conclusion


def test_names_of_norms_stay_distinct_where_they_are_shortened() -> None:
    paths = [f"/model/h.{i}/ln_{i % 2}/LayerNormalization" for i in range(12)]
    assert distinct(paths)[:2] == ["0/ln_0", "1/ln_1"]
    assert distinct([*paths, "/model/ln_f/LayerNormalization"])[-1] == "ln_f"
    assert distinct(["norm"]) == ["norm"]
    assert distinct(["a.norm", "norm"]) == ["a", "norm"]
    long = [f"{'layer' * 10}_{number}" for number in range(100)]
    assert len({shortened(name) for name in distinct(long)}) == 100
    assert all(len(shortened(name)) <= 22 for name in long)


def test_a_conclusion_is_drawn_of_layer_norms_alone() -> None:
    def of(mean: float | None) -> dict[str, float | None]:
        return {"mean": mean}

    rms = {"before": {"uniform_share": of(0.9)}, "error_without_mean": None}
    one = {"before": {"uniform_share": of(0.004)}, "error_without_mean": of(0.05)}
    two = {"before": {"uniform_share": of(0.02)}, "error_without_mean": of(0.14)}
    said = conclusion({"model": "m.onnx", "norms": [rms, one, two]})
    assert said is not None
    assert said.startswith("m.onnx: the means carry 0.40% to 2.00% of the squared length")
    assert said.endswith("change the normalized vectors by 5.00% to 14.00%.")
    assert conclusion({"model": "m.onnx", "norms": [rms]}) is None
