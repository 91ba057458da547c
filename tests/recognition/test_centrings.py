"""x - mean(x) that no norm contains, and the Casts from half floats and back around it."""

from __future__ import annotations

import pytest

from onnxfold.graph import ModelInfo
from onnxfold.recognition.find import find_centrings
from onnxfold.shapes import infer
from tests.graphs import graph

_MEAN = "m = ReduceMean<axes=[-1]>(w) d = Sub(w, m)"


def _info(body: str, y: str) -> ModelInfo:
    return infer(graph(body, "float16[B,4,6] x", f"{y}[B,4,6] y", {}, opset=17))


@pytest.mark.parametrize(
    ("body", "y", "found"),
    [
        (f"w = Identity(x) {_MEAN} y = Neg(d)", "float16", ("w", "d")),
        (f"w = Cast<to=1>(x) {_MEAN} c = Cast<to=10>(d) y = Neg(c)", "float16", ("x", "c")),
        (f"w = Cast<to=1>(x) {_MEAN} y = Cast<to=10>(d)", "float16", ("x", "y")),
        (f"w = Cast<to=1>(x) {_MEAN} c = Cast<to=16>(d) y = Neg(c)", "bfloat16", ("w", "d")),
        (f"w = Cast<to=1>(x) {_MEAN} y = Neg(d)", "float", ("w", "d")),
        (
            f"w = Cast<to=1>(x) {_MEAN} c = Cast<to=10>(d) f = Cast<to=10>(w) y = Add(c, f)",
            "float16",
            ("w", "d"),
        ),
        (
            f"w = Cast<to=1>(x) {_MEAN} c = Cast<to=10>(d) f = Cast<to=1>(c) y = Mul(d, f)",
            "float",
            ("w", "d"),
        ),
    ],
    ids=[
        "no Cast",
        "half and back",
        "an output",
        "to another half",
        "not back",
        "the wide x is read",
        "the wide result is read",
    ],
)
def test_casts_around_it_belong_to_it_where_they_undo_each_other(
    body: str, y: str, found: tuple[str, str]
) -> None:
    (each,) = find_centrings(_info(body, y))
    assert (each.input.name, each.output.name) == found
    assert each.nodes[-1].outputs[0] is each.output
