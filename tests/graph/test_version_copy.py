"""Copies of models: the same, apart, and with a way from each value and node to its copy."""

import onnx.parser
import onnx_ir as ir
import pytest

from onnxfold.graph.traversal import all_graphs, all_nodes
from onnxfold.graph.version_copy import Copy

TEXT = """<ir_version: 8, opset_import: ["" : 17], producer_name: "tester">
g (float[N, 4] x, bool c) => (float[N, 4] y, float[N, 4] z)
<float[N, 4] h, float[4] w = {1, 2, 3, 4}>
{
  h = Mul(x, w)
  y = If(c) <then_branch = yes () => (float[N, 4] a) { a = Relu(h) },
             else_branch = no () => (float[N, 4] b) { b = Add(h, x) }>
  z = Identity(h)
}"""


@pytest.fixture
def model() -> ir.Model:
    made = ir.from_proto(onnx.parser.parse_model(TEXT))
    made.metadata_props["key"] = "of the model"
    node, value = made.graph[0], made.graph[0].outputs[0]
    node.metadata_props["key"], value.metadata_props["key"] = "of a node", "of a value"
    node.meta["mark"], value.meta["mark"] = 1, 2
    return made


def test_a_copy_is_written_as_its_original(model: ir.Model) -> None:
    assert ir.to_proto(Copy(model).model) == ir.to_proto(model)


def test_values_and_nodes_lead_to_the_copy_and_none_is_shared(model: ir.Model) -> None:
    copy = Copy(model)
    for old, new in zip(all_nodes(model), all_nodes(copy.model), strict=True):
        assert copy.nodes[old] is new is not old
        read = [copy.values[value] for value in old.inputs if value is not None]
        assert [*new.inputs, *new.outputs] == [*read, *map(copy.values.__getitem__, old.outputs)]
        assert not set(new.inputs) & set(old.inputs)
    for old, new in zip(all_graphs(model), all_graphs(copy.model), strict=True):
        assert [copy.values[value] for value in old.inputs] == list(new.inputs)
        assert [copy.values[value] for value in old.outputs] == list(new.outputs)


def test_what_is_noted_in_memory_is_noted_at_the_copy(model: ir.Model) -> None:
    node = Copy(model).model.graph[0]
    assert (node.meta["mark"], node.outputs[0].meta["mark"]) == (1, 2)


def test_edits_of_a_copy_leave_the_original(model: ir.Model) -> None:
    before = ir.to_proto(model)
    copy = Copy(model).model
    for value in copy.graph.inputs:
        if value.shape:
            value.shape[0] = 7
    for node in all_nodes(copy):
        node.op_type = "Other"
        node.metadata_props["key"] = "new"
        node.outputs[0].metadata_props["key"] = "new"
        node.outputs[0].shape = None
    copy.metadata_props["key"] = "new"
    copy.graph.initializers["w"].const_value = None
    assert ir.to_proto(model) == before


def test_a_shape_that_both_have_cannot_be_changed_in_place(model: ir.Model) -> None:
    shape = Copy(model).model.graph[0].outputs[0].shape
    assert shape is not None
    with pytest.raises(TypeError, match="frozen"):
        shape[0] = 7


def test_devices_follow_the_copies_of_the_values_that_they_hold(model: ir.Model) -> None:
    two = model.add_device_configuration("two", num_devices=2)
    node = model.graph[0]
    sharded = node.inputs[0]
    assert sharded is not None
    specs = (ir.ShardingSpec(value=sharded, device=(0, 1)), ir.ShardingSpec())
    node.device_configurations = (ir.NodeDeviceConfiguration(two, specs),)
    copy = Copy(model)
    (placing,) = copy.nodes[node].device_configurations
    assert [spec.value for spec in placing.sharding_specs] == [copy.values[sharded], None]
