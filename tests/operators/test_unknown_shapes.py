"""What a law says of a node without a shape it says of it with the shape, or it says nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator

import onnx_ir as ir
import pytest

from onnxfold.graph import AxisBlock, Fiber, ModelInfo
from onnxfold.operators.families.rules import transfer_of
from onnxfold.operators.families.transfer import Carried, ZeroMean
from tests.operators.rows import LAWS
from tests.operators.sample import Draw
from tests.operators.samplers import SAMPLERS

_SAMPLES = 8


def _forgetful(view: ModelInfo) -> Iterator[ModelInfo]:
    """Yield the model without the shape of each value in turn, and without any."""
    (node,) = view.nodes()
    names = [v.name for v in (*node.inputs, *node.outputs) if v is not None]
    for lost in (*([name] for name in names), names):
        model = view.model.clone()
        for value in ModelInfo(model).by_ref().values():
            if value.name in lost and value.const_value is None:
                value.shape = None
        yield ModelInfo(model)


def _fibers(view: ModelInfo, value: ir.Value | None) -> Iterator[Fiber]:
    yield Fiber(())
    for axis, size in enumerate(view.shape(value) or ()):
        if isinstance(size, int) and size > 1:
            yield Fiber.of([AxisBlock(axis, 1, size, 1)])
            if size % 2 == 0:
                yield Fiber.of([AxisBlock(axis, 1, size // 2, 2)])


@pytest.mark.parametrize(
    "key", [law.key for law in LAWS], ids=lambda key: ".".join(filter(None, key))
)
def test_a_law_says_no_more_of_unknown_shapes(key: tuple[str, str]) -> None:
    for seed in range(_SAMPLES):
        known = SAMPLERS[key](Draw(random.Random(seed))).view()  # noqa: S311  # no secret
        (node,) = known.nodes()
        law = transfer_of(node)
        assert law is not None
        for other in _forgetful(known):
            (twin,) = other.nodes()
            for index, value in enumerate(node.outputs):
                for fiber in _fibers(known, value):
                    said = law.backward(other, twin, index, fiber)
                    if isinstance(said, Carried | ZeroMean):
                        assert said == law.backward(known, node, index, fiber)
            for index, value in enumerate(node.inputs):
                for fiber in _fibers(known, value):
                    effect = law.forward(other, twin, index, fiber)
                    assert effect in (None, law.forward(known, node, index, fiber))


@pytest.mark.parametrize(
    "key", [law.key for law in LAWS if "Attention" in law.key[1]], ids=lambda key: key[1]
)
def test_attention_hands_on_a_shift_of_its_values_alone(key: tuple[str, str]) -> None:
    reached = set()
    for seed in range(60):
        view = SAMPLERS[key](Draw(random.Random(seed))).view()  # noqa: S311  # no secret
        (node,) = view.nodes()
        law = transfer_of(node)
        assert law is not None
        for index, value in enumerate(node.inputs):
            for fiber in _fibers(view, value):
                for output, outer in law.forward(view, node, index, fiber) or ():
                    back = law.backward(view, node, output, outer)
                    assert isinstance(back, Carried)
                    assert (index, fiber) in back.inputs
                    reached.add(index)
    assert reached == {2}
