"""The only mutator of graphs: replaced nodes, changed constants, removed nodes.

An editor works on one version of a model, in place or on a copy, which leaves the version and the
facts about it unchanged. Values visible to callers (inputs, outputs) keep their names and types;
nodes and weights without readers are removed.
"""

from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from onnxfold.errors import InvariantError
from onnxfold.graph.model_info import ModelInfo, operator
from onnxfold.graph.traversal import all_graphs, declared_shape, graph_values
from onnxfold.operators import facets
from onnxfold.operators.new_nodes import Lowered, NewNodes
from onnxfold.operators.table import row_of


def _register(graph: ir.Graph, tensor: ir.TensorProtocol, name: str) -> ir.Value:
    """Add a tensor to a graph under an unused name."""
    tensor.name = name
    shape = ir.Shape(tensor.shape.numpy())
    kind = ir.TensorType(tensor.dtype)
    value = ir.Value(name=name, shape=shape, type=kind, const_value=tensor)
    graph.register_initializer(value)
    return value


def change_constant(value: ir.Value, tensor: ir.TensorProtocol) -> None:
    """Change the tensor of an initializer or Constant node."""
    if value.is_initializer():
        value.const_value = tensor
        return
    node = value.producer()
    if node is None:
        raise InvariantError(f"the plan changes '{value.name}', which does not exist")
    node.attributes.clear()
    node.attributes.add(ir.AttrTensor("value", tensor))


class Editor:
    """Edits of one version of a model, with the names in use and the replacements made.

    ``info`` describes the version as it was; ``value`` and ``node`` map its answers to the model
    that is edited.
    """

    def __init__(self, info: ModelInfo, *, copy: bool = False):
        self.info = info
        self.model = info.model.clone() if copy else info.model
        self._values: dict[ir.Value, ir.Value] = {}
        self._nodes: dict[ir.Node, ir.Node] = {}
        self._replaced: dict[ir.Value, ir.Value] = {}
        # Names of the version: even one that an edit frees still identifies the old value for the
        # proof.
        self._taken = {v.name for graph in info.graphs for v in graph_values(graph)}
        if copy:
            for old, new in zip(info.graphs, all_graphs(self.model), strict=True):
                self._match(old, new)

    def _match(self, old: ir.Graph, new: ir.Graph) -> None:
        for graph, target in ((old.inputs, new.inputs), (_weights(old), _weights(new))):
            self._values.update(zip(graph, target, strict=True))
        for node, twin in zip(old, new, strict=True):
            self._nodes[node] = twin
            self._values.update(zip(node.outputs, twin.outputs, strict=True))

    def value(self, known: ir.Value) -> ir.Value:
        """Return the value of the edited model that corresponds to one of the version."""
        return self._values.get(known, known)

    def node(self, known: ir.Node) -> ir.Node:
        """Return the node of the edited model that corresponds to one of the version."""
        return self._nodes.get(known, known)

    def by_ref(self) -> dict[str, ir.Value]:
        """Return the values of the edited model by the references of the version."""
        return {ref: self.value(value) for ref, value in self.info.by_ref().items()}

    def unused(self, name: str) -> str:
        """Return the name, with a number if it is taken, and reserve it."""
        candidate, number = name, 2
        while candidate in self._taken:
            candidate, number = f"{name}.{number}", number + 1
        self._taken.add(candidate)
        return candidate

    def new_constant(self, near: ir.Value, tensor: ir.TensorProtocol, name: str) -> ir.Value:
        """Add an initializer to the graph that contains ``near``."""
        node = near.producer()
        graph = node.graph if node is not None else near.graph
        if not isinstance(graph, ir.Graph):
            raise InvariantError(f"'{near.name}' is in no graph")
        return _register(graph, tensor, self.unused(name))

    def new_weight(self, tensor: ir.TensorProtocol, name: str) -> ir.Value:
        """Add an initializer to the main graph."""
        return _register(self.model.graph, tensor, self.unused(name))

    def insert_behind(self, value: ir.Value, lowered: Lowered) -> None:
        """Insert nodes after the producer of a value, or first if the value is an input."""
        node = value.producer()
        graph = node.graph if node is not None else value.graph
        if not isinstance(graph, ir.Graph):
            raise InvariantError(f"'{value.name}' is in no graph")
        first = graph[0]  # as the graph is without its leading constants
        self._prepare(graph, lowered, ())
        if node is not None:
            graph.insert_after(node, lowered.nodes)
        else:
            graph.insert_before(first, lowered.nodes)

    def compute_before(self, place: ir.Node, new: NewNodes) -> ir.Value:
        """Insert nodes that replace nothing before another one; return the last result.

        They are named by their results, which have unique names.
        """
        if not isinstance(place.graph, ir.Graph):
            raise InvariantError(f"node '{place.name}' is in no graph")
        self._prepare(place.graph, Lowered.of(new), ())
        for node in new.nodes:
            node.name = node.outputs[0].name
        place.graph.insert_before(place, new.nodes)
        return new.nodes[-1].outputs[0]

    def rename(self, value: ir.Value, name: str) -> None:
        """Rename a value that is about to be replaced under its name."""
        value.name = self.unused(name)

    def put_behind(
        self,
        value: ir.Value,
        nodes: Sequence[ir.Node],
        *,
        role: str = "bias",
        before: str = "product",
    ) -> None:
        """Insert nodes of a chain from a value, whose name and readers go to the last result.

        The first node reads the value. ``role`` names the nodes, ``before`` its operand.
        """
        producer, result = splice_behind(value, nodes), nodes[-1].outputs[0]
        inherit(value, result)
        value.name = self.unused(f"{result.name}.{before}")
        if result.is_graph_output():  # whose sizes may have names that no other value has
            value.shape = self._of_known_sizes(value)
        alone = len(producer.outputs) == 1 and producer.name
        name = f"{producer.name if alone else result.name}.{role}"
        for place, node in enumerate(nodes):
            node.name = name if node is nodes[-1] else f"{name}{place}"
            if node is not nodes[-1]:
                node.outputs[0].name = self.unused(f"{result.name}.{role}")

    def _of_known_sizes(self, value: ir.Value) -> ir.Shape | None:
        """Return the shape of a value with only those size names that inputs have."""
        known = {size for each in self.model.graph.inputs for size in declared_shape(each) or ()}
        shape = declared_shape(value)
        if shape is None:
            return None
        return ir.Shape(s if isinstance(s, int) or s in known else None for s in shape)

    def stand_in(self, lowered: Lowered, before: ir.Node, old: Iterable[ir.Node]) -> None:
        """Insert new nodes before a node; they take the names of the nodes that they replace.

        Those ``old`` nodes without further readers are removed, with their weights.
        """
        graph = before.graph
        if not isinstance(graph, ir.Graph):
            raise InvariantError(f"node '{before.name}' is in no graph")
        self._prepare(graph, lowered, tuple(new for _, new in lowered.stands_for))
        graph.insert_before(before, lowered.nodes)
        for value, new in lowered.stands_for:
            heir = self._replaced.get(new, new)
            producer = heir.producer()
            if producer in lowered.nodes:
                inherit(value, heir)
                _inherit_node(value.producer(), producer)
            value.replace_all_uses_with(heir, replace_graph_outputs=True)
            self._replaced[value] = heir
        sweep(old)

    def drop_if_unread(self, value: ir.Value | None) -> None:
        """Remove a constant expression without readers, and everything that only it reads."""
        waiting = [value]
        while waiting:
            value = waiting.pop()
            if value is None or value.uses() or value.is_graph_output():
                continue
            node = value.producer()
            if node is not None and node.graph is not None and self.info.array(value) is not None:
                waiting += node.inputs
                sweep([node])
            else:
                drop_weight(value)

    def _prepare(self, graph: ir.Graph, lowered: Lowered, heirs: tuple[ir.Value, ...]) -> None:
        """Name the new nodes, redirect replaced operands, register weights."""
        for value in lowered.initializers:
            if value.graph is graph:
                continue  # shared with existing nodes
            value.name = self.unused(value.name or "weight")
            add_constant(graph, value)
        for node in lowered.nodes:
            for index, operand in enumerate(node.inputs):
                if operand in self._replaced:
                    node.replace_input_with(index, self._replaced[operand])
            for output in node.outputs:
                if output not in heirs and output.name != "":  # omitted
                    output.name = self.unused(output.name or node.op_type)


def _weights(graph: ir.Graph) -> list[ir.Value]:
    return list(graph.initializers.values())


def set_input(node: ir.Node, index: int, value: ir.Value | None) -> None:
    """Connect an input of a node to a value, possibly at a new index.

    None removes the last input.
    """
    if index >= len(node.inputs):
        node.resize_inputs(index + 1)
    node.replace_input_with(index, value)
    if value is None and index == len(node.inputs) - 1:
        node.resize_inputs(index)


def set_attribute(node: ir.Node, attribute: ir.Attr) -> None:
    """Let a node have an attribute, in the place of one of its name."""
    node.attributes.add(attribute)


def redirect(old: ir.Value, new: ir.Value, *, outputs: bool = False) -> None:
    """Redirect all readers of one value to another, and graph outputs if ``outputs`` is set."""
    old.replace_all_uses_with(new, replace_graph_outputs=outputs)


def splice_behind(value: ir.Value, nodes: Sequence[ir.Node]) -> ir.Node:
    """Insert nodes after the producer of a value, which is returned; the first reads the value.

    All other readers of the value read the last node's result. Raises InvariantError if no node of
    a graph computes the value.
    """
    producer = value.producer()
    if producer is None or not isinstance(producer.graph, ir.Graph):
        raise InvariantError(f"'{value.name}' is computed in no graph")
    index = nodes[0].inputs.index(value)
    value.replace_all_uses_with(nodes[-1].outputs[0], replace_graph_outputs=True)
    nodes[0].replace_input_with(index, value)
    producer.graph.insert_after(producer, nodes)
    return producer


def insert_before(place: ir.Node, node: ir.Node) -> None:
    """Insert a node before another one; raises InvariantError if that is not in a graph."""
    if not isinstance(place.graph, ir.Graph):
        raise InvariantError(f"node '{place.name}' is in no graph")
    place.graph.insert_before(place, node)


def add_last(graph: ir.Graph, node: ir.Node) -> None:
    """Append a node to a graph."""
    graph.append(node)


def set_outputs(graph: ir.Graph, values: Sequence[ir.Value]) -> None:
    """Make these values the only outputs of a graph."""
    graph.outputs.clear()
    graph.outputs.extend(values)


def replace_node(node: ir.Node, new: Sequence[ir.Node], results: Mapping[int, ir.Value]) -> None:
    """Replace one node by new nodes; ``results`` take over its outputs, by index."""
    if node.graph is None:
        raise InvariantError(f"node '{node.name}' is in no graph")
    old = [node.outputs[index] for index in results]
    ir.convenience.replace_nodes_and_values(
        node.graph, node, [node], new, old, list(results.values())
    )


def drop_states(
    loop: ir.Node, body: ir.Graph, values: Mapping[int, ir.Value], first: tuple[int, int]
) -> None:
    """Remove states from a loop; their readers, in the body and after it, read ``values`` instead.

    ``first``: the index of the first state among the loop's inputs and among the body's outputs.
    """
    for state in sorted(values, reverse=True):
        body.outputs.pop(first[1] + state)
        inside = body.inputs.pop(first[0] + state)
        redirect(inside, values[state])
        redirect(loop.outputs[state], values[state])
    if not values:
        return
    kept = [index for index in range(len(loop.outputs)) if index not in values]
    gone = {first[0] + state for state in values}
    new = ir.Node(
        loop.domain,
        loop.op_type,
        [value for index, value in enumerate(loop.inputs) if index not in gone],
        list(loop.attributes.values()),
        num_outputs=len(kept),
        name=loop.name,
        doc_string=loop.doc_string,
        metadata_props=dict(loop.metadata_props),
    )
    replace_node(loop, [new], dict(zip(kept, new.outputs, strict=True)))


def add_constant(graph: ir.Graph, value: ir.Value) -> None:
    """Add a new weight to a graph; axes and sizes become a Constant node, before others.

    ONNX Runtime's transformers optimizer accepts a model in memory only if no shape depends on an
    initializer, because it stores these separately before a session infers the shapes.
    """
    tensor = value.const_value
    if tensor is None or tensor.dtype is not ir.DataType.INT64:
        graph.register_initializer(value)
        return
    attribute = ir.AttrTensor("value", tensor)
    node = ir.Node("", "Constant", (), [attribute], outputs=[value], name=value.name)
    graph.insert_before(graph[0], node)


def make_input(value: ir.Value) -> None:
    """Let a weight be an input that callers give; raises InvariantError where a graph has none."""
    if not value.is_initializer() or value.graph is None:
        raise InvariantError(f"'{value.name}' is a weight of no graph")
    graph = value.graph
    del graph.initializers[value.name or ""]
    value.const_value = None
    if not value.is_graph_input():
        graph.inputs.append(value)


def retype(value: ir.Value, dtype: ir.DataType) -> None:
    """Give a value another element type."""
    value.type = ir.TensorType(dtype)


def inherit(old: ir.Value, new: ir.Value) -> None:
    """Give a value the name and type of the one that it replaces."""
    new.shape, new.type = old.shape, old.type
    new.doc_string = old.doc_string
    new.metadata_props.update(old.metadata_props)
    name, old.name = old.name, f"{old.name}.replaced"
    new.name = name


def _inherit_node(old: ir.Node | None, new: ir.Node | None) -> None:
    """Copy the metadata of the node that computed a result to the one that now does.

    Of two results of one node, the first prevails.
    """
    if old is not None and new is not None:
        new.doc_string = new.doc_string or old.doc_string
        for key, value in old.metadata_props.items():
            new.metadata_props.setdefault(key, value)


def sweep(nodes: Iterable[ir.Node]) -> None:
    """Remove each of ``nodes`` without readers, with the weights and sizes that only it reads."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        graph = node.graph
        if not isinstance(graph, ir.Graph) or any(map(_is_read, node.outputs)):
            continue
        inputs = [operand for operand in node.inputs if operand is not None]
        graph.remove(node, safe=True)
        for value in inputs:
            producer = value.producer()
            if _is_read(value):
                continue
            if producer is not None and _computes_sizes(producer):
                waiting.append(producer)
            else:
                drop_weight(value)


def _computes_sizes(node: ir.Node) -> bool:
    """Whether a node is a constant, or computes shapes, axes or positions for operators."""
    row = row_of(node)
    if operator(node) == "Constant" or not facets.reads_elements(row):
        return True
    return row.foldable and all(output.dtype is ir.DataType.INT64 for output in node.outputs)


def drop_weight(value: ir.Value | None) -> None:
    """Remove an initializer without readers; other values stay."""
    if value is None or _is_read(value) or value.is_graph_input() or not value.is_initializer():
        return
    if value.graph is not None:
        value.graph.initializers.pop(value.name or "", None)


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()
