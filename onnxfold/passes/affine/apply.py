"""Carries out affine fusions, in place, on the working copy of a model.

Requires: the view that the fusions were decided on, whose model has not changed since.  Ensures:
every norm in a fusion has lost what moved (its operands are ones or absent, its Mul and Add are
gone), the linear layers behind it have taken it, and what a norm computes keeps its name.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxfold.errors import InvariantError
from onnxfold.graph import ModelInfo
from onnxfold.graph.channels import Channels
from onnxfold.graph.edit import Editor, change_constant, inherit, sweep
from onnxfold.norms.site import NormSite
from onnxfold.passes.affine.source import Source, source_of
from onnxfold.passes.fusion import Absorption, AffineFusion, Place, ScaleFusion
from onnxfold.passes.scales.writer import ChannelOp, channel_op, embedded
from onnxfold.weights.edited import Product, edited
from onnxfold.weights.edits import Edit, Scale, Shift

__all__ = ["apply_affine", "apply_scales"]

Float64 = npt.NDArray[np.float64]
_GAMMA, _BETA = 1, 2


def apply_affine(
    view: ModelInfo, sites: Iterable[NormSite], fusions: Iterable[AffineFusion]
) -> None:
    """Carry out ``fusions`` on ``view.model``, in place."""
    fusions = tuple(fusions)
    by_output = {view.ref(site.output): site for site in sites}
    sources: list[tuple[AffineFusion, Source]] = []
    for fusion in fusions:
        source = source_of(view, by_output[fusion.output])
        if not isinstance(source, Source):
            raise InvariantError(f"norm '{fusion.norm}' has no gamma or beta that can move")
        sources.append((fusion, source))
    absorber = _Absorber(view)
    for fusion, source in sources:
        for reader in fusion.readers:
            absorber.absorb(fusion, source, reader)
    for fusion, source in sources:
        absorber.take_away(fusion, source)


def apply_scales(view: ModelInfo, fusions: Iterable[ScaleFusion]) -> None:
    """Let linear layers do the operators behind them, on ``view.model``, in place.

    Fusions are carried out in order: a later one scales what an earlier one has added.
    """
    values = view.by_ref()
    made: list[tuple[ScaleFusion, ChannelOp]] = []
    for fusion in fusions:
        node = values[fusion.output].producer()
        op = None if node is None else channel_op(view, node)
        if op is None:
            raise InvariantError(f"'{fusion.output}' is no product or sum with a constant")
        made.append((fusion, op))
    absorber = _Absorber(view)
    for fusion, op in made:
        absorber.do_before(fusion, op)


class _Absorber:
    """Edits constants once each, however many norms ask for the same edit."""

    def __init__(self, view: ModelInfo):
        self._view = view
        self._values = view.by_ref()
        self._editor = Editor(view)
        self._before: dict[str, ir.TensorProtocol] = {}
        self._edited: set[str] = set()
        self._copied: set[tuple[ir.Node, int]] = set()
        self._fills: dict[tuple[ir.DataType, tuple[int, ...], float], ir.Value] = {}

    def absorb(self, fusion: AffineFusion, source: Source, reader: Absorption) -> None:
        """Change the weight and the bias of one linear layer."""
        weight = reader.weight
        tensor = self._original(weight.value)
        if source.beta is not None:
            for place in reader.biases:
                part = slice(place.start, place.start + place.channels.size)
                outer, factor = reader.outer, reader.factor
                product = Product(tensor, source.beta, weight.channels, outer, factor, part)
                self._change(place, Shift(place.channels, product))
        if fusion.gamma and source.gamma is not None:
            self._change(weight, Scale(weight.channels, source.gamma))

    def do_before(self, fusion: ScaleFusion, op: ChannelOp) -> None:
        """Change the constants before a scale, and remove the scale."""
        for place in fusion.scaled:
            if op.scale is not None:
                scale = embedded(op.scale, fusion.part, place.channels.size)
                self._append(place, Scale(place.channels, scale))
        if fusion.shifted is not None and op.shift is not None:
            channels = fusion.shifted.channels
            shift = embedded(op.shift, fusion.part, channels.size, neutral=0.0)
            self._append(fusion.shifted, Shift(channels, shift))
        start, end = op.node.inputs[op.index], op.node.outputs[0]
        if start is None:
            raise InvariantError(f"'{fusion.output}' has no input")
        operands = list(op.node.inputs)
        end.replace_all_uses_with(start, replace_graph_outputs=True)
        sweep([op.node])
        for operand in operands:
            self._drop_if_unread(operand)
        inherit(end, start)

    def _append(self, place: Place, edit: Edit) -> None:
        """Edit what the reader has now, copying it first where others need it unchanged."""
        node = self._node(place)
        index = place.reader.index
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is None:
            self._add_bias(place, edit)
            return
        tensor = self._view.tensor(value)
        if tensor is None:
            raise InvariantError(f"the plan changes '{value.name}', which is no constant")
        if place.copy and (node, index) not in self._copied:
            self._copied.add((node, index))
            name = f"{value.name}.fused"
            copy = self._editor.new_constant(value, edited(tensor, edit, name), name)
            node.replace_input_with(index, copy)
        else:
            change_constant(value, edited(tensor, edit, tensor.name or value.name or ""))

    def _original(self, ref: str) -> ir.TensorProtocol:
        """Return the tensor of a constant as it was before any fusion."""
        if ref not in self._before:
            tensor = self._view.tensor(self._values[ref])
            if tensor is None:
                raise InvariantError(f"the plan changes '{ref}', which is no constant")
            self._before[ref] = tensor
        return self._before[ref]

    def _change(self, place: Place, edit: Edit) -> None:
        if place.behind:
            if not isinstance(edit, Shift):
                raise InvariantError(f"a new bias of '{place.reader.node}' is no weight")
            self._add_behind(place, edit)
            return
        if not place.value:
            self._add_bias(place, edit)
            return
        value = self._values[place.value]
        tensor = self._original(place.value)
        if place.copy:
            name = f"{value.name}.fused"
            copy = self._editor.new_constant(value, edited(tensor, edit, name), name)
            self._node(place).replace_input_with(place.reader.index, copy)
        elif place.value not in self._edited:
            self._edited.add(place.value)
            change_constant(value, edited(tensor, edit, tensor.name or value.name or ""))

    def _add_bias(self, place: Place, edit: Edit) -> None:
        node = self._node(place)
        bias = self._new_bias(node, (place.channels.size,), edit)
        _set_input(node, place.reader.index, bias)

    def _add_behind(self, place: Place, edit: Shift) -> None:
        """Add a new bias to a product; the sum takes over the name and all readers."""
        node = self._node(place)
        product, (axis,) = node.outputs[0], place.channels.axes
        rank = self._view.rank(product)
        if rank is None:
            raise InvariantError(f"'{product.name}' is of unknown rank")
        shape = (place.channels.size, *(1,) * (rank - 1 - axis))
        bias = self._new_bias(node, shape, Shift(place.channels.renamed({axis: 0}), edit.vector))
        self._editor.put_behind(product, ir.node("Add", [product, bias]))

    def _new_bias(self, node: ir.Node, shape: tuple[int, ...], edit: Edit) -> ir.Value:
        # Not the type of the stored weight, which a Cast may follow.
        known = [value.dtype for value in (node.outputs[0], *node.inputs) if value is not None]
        dtype = next(dtype for dtype in known if dtype is not None)
        zeros = ir.Tensor(np.zeros(shape, dtype.numpy()), dtype=dtype)
        name = f"{node.outputs[0].name}.bias"
        return self._editor.new_constant(node.outputs[0], edited(zeros, edit, name), name)

    def _node(self, place: Place) -> ir.Node:
        node = self._values[place.reader.node].producer()
        if node is None:
            raise InvariantError(f"the plan names '{place.reader.node}', which no node computes")
        return node

    def take_away(self, fusion: AffineFusion, source: Source) -> None:
        """Remove from the norm what its readers have taken."""
        left = None
        if fusion.gamma and not fusion.beta and source.beta is not None:
            left = source.beta / (1.0 if source.gamma is None else source.gamma)
        if source.nodes:
            self._take_nodes(fusion, source, left)
        else:
            self._take_operands(fusion, source, left)

    def _take_operands(self, fusion: AffineFusion, source: Source, left: Float64 | None) -> None:
        node = source.site.nodes[-1]
        gamma, beta = ([*node.inputs, None, None][index] for index in (_GAMMA, _BETA))
        if fusion.gamma and gamma is not None:
            node.replace_input_with(_GAMMA, self._filled(gamma, 1.0))
        if fusion.beta and beta is not None:
            optional = (node.domain, node.op_type) == ("", "LayerNormalization")
            node.replace_input_with(_BETA, None if optional else self._filled(beta, 0.0))
            if optional:
                node.resize_inputs(_BETA)
        elif left is not None and beta is not None:
            node.replace_input_with(_BETA, self._constant(beta, source.channels, left))
        for operand in (gamma, beta):
            self._drop_if_unread(operand)

    def _take_nodes(self, fusion: AffineFusion, source: Source, left: Float64 | None) -> None:
        """Let the readers of gamma * x + beta read x, or x + beta / gamma."""
        add, mul = _parts(source)
        start = _data_input(self._view, (mul or add or source.nodes[-1]))
        if add is not None and not fusion.beta:  # gamma goes, the Add stays with what is left
            index = list(add.inputs).index(start if mul is None else mul.outputs[0])
            constant = add.inputs[1 - index]
            add.replace_input_with(index, start)
            if left is not None and constant is not None:
                rank = self._view.rank(source.value) or 0
                add.replace_input_with(
                    1 - index, self._constant(constant, source.channels, left, rank)
                )
            sweep([node for node in (mul,) if node is not None])
            return
        if not fusion.gamma and mul is not None:  # beta alone goes
            start, nodes = mul.outputs[0], [node for node in source.nodes if node is not mul]
        else:
            nodes = list(source.nodes)
        self._bypass(source, start, nodes)

    def _bypass(self, source: Source, start: ir.Value, nodes: list[ir.Node]) -> None:
        end = source.value
        own = {use.node for use in start.uses()} <= set(nodes) and not start.is_graph_output()
        end.replace_all_uses_with(start)
        producer = start.producer()
        last = end.producer()
        operands = [operand for node in nodes for operand in node.inputs]
        sweep(list(reversed(nodes)))
        for operand in operands:
            self._drop_if_unread(operand)
        if own and producer is not None and last is not None:
            name, end.name = end.name, f"{end.name}.fused"
            start.name, producer.name = name, last.name
            if source.site.output is end:
                start.metadata_props.update(end.metadata_props)

    def _filled(self, like: ir.Value, number: float) -> ir.Value:
        """Return a shared constant of one number, in the type and shape of another value."""
        shape = tuple(int(dim) for dim in (self._view.shape(like) or ()) if isinstance(dim, int))
        dtype = like.dtype or ir.DataType.FLOAT
        key = (dtype, shape, number)
        if key not in self._fills:
            name = f"{'ones' if number else 'zeros'}.{'x'.join(map(str, shape))}"
            tensor = ir.Tensor(np.full(shape, number, dtype.numpy()), dtype=dtype)
            near = next(iter(self._view.model.graph)).outputs[0]
            self._fills[key] = self._editor.new_constant(near, tensor, name)
        return self._fills[key]

    def _constant(
        self, like: ir.Value, channels: Channels, vector: Float64, rank: int | None = None
    ) -> ir.Value:
        """Return a vector as a constant that broadcasts as the norm's parameter did."""
        dtype = like.dtype or ir.DataType.FLOAT
        sizes = {digit.axis: digit.size for digit in channels.digits}
        total = rank if rank is not None else max(sizes) + 1
        shape = tuple(sizes.get(axis, 1) for axis in range(total))
        array = channels.spread(vector, shape)
        if rank is None:
            array = array.reshape(array.shape[min(sizes) :])
        tensor = ir.Tensor(array.astype(dtype.numpy()), dtype=dtype)
        return self._editor.new_constant(like, tensor, f"{like.name}.left")

    def _drop_if_unread(self, value: ir.Value | None) -> None:
        """Remove a constant expression that nothing reads any more, and what only it reads."""
        waiting = [value]
        while waiting:
            value = waiting.pop()
            if value is None or value.uses() or value.is_graph_output():
                continue
            node, home = value.producer(), value.graph
            if node is not None and node.graph is not None and self._view.array(value) is not None:
                waiting += node.inputs
                sweep([node])
            elif value.is_initializer() and not value.is_graph_input() and home is not None:
                home.initializers.pop(value.name or "", None)


def _parts(source: Source) -> tuple[ir.Node | None, ir.Node | None]:
    by_type = {node.op_type: node for node in source.nodes}
    return by_type.get("Add"), by_type.get("Mul")


def _data_input(view: ModelInfo, node: ir.Node) -> ir.Value:
    """Return the operand of a Mul or Add that is no constant."""
    for operand in node.inputs:
        if operand is not None and view.array(operand) is None:
            return operand
    raise InvariantError(f"'{node.name}' reads constants only")


def _set_input(node: ir.Node, index: int, value: ir.Value) -> None:
    if index >= len(node.inputs):
        node.resize_inputs(index + 1)
    node.replace_input_with(index, value)
