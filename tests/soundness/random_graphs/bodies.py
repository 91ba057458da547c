"""Graphs within graphs: If, Loop, Scan, and functions of the model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.soundness.random_graphs.carriers import Carriers
from tests.soundness.random_graphs.draft import Body, H, T
from tests.soundness.random_graphs.norms import Norms
from tests.soundness.random_graphs.readers import Readers
from tests.soundness.random_graphs.writers import Writers

__all__ = ["Bodies"]

_LOCAL = "local"


class Bodies(Writers, Carriers, Norms, Readers):
    """Writers, carriers and norms inside of bodies that read the outer graph."""

    def nest(self) -> None:
        kind = self.rng.choice(("If", "If", "Loop", "Scan", "function", "function"))
        if self.body is not self.main:
            return
        self.made[kind] += 1
        getattr(self, f"nest_{kind.lower()}")()

    def fill(self, hidden: Sequence[str]) -> str:
        """Fill the body under construction and return its [B, T, H] result."""
        self.body.hidden = list(hidden)
        if self.main.streams and self.chance(0.4):
            self.body.streams.append(self.rng.choice(self.main.streams))
        self.write()
        for _ in range(self.rng.randint(0, 2)):
            self.rng.choice((self.carry, self.normalise, self.write))()
        return self.read_linear(self.norm(self.stream()))

    def body_graph(
        self, stem: str, inputs: Sequence[str], outputs: Sequence[str]
    ) -> onnx.GraphProto:
        kinds = {"trip": (TensorProto.INT64, []), "go": (TensorProto.BOOL, [])}
        return helper.make_graph(
            self.body.nodes,
            stem,
            [helper.make_tensor_value_info(name, *kinds.get(name, (self.dtype, None)))
             for name in inputs],
            [helper.make_tensor_value_info(name, TensorProto.BOOL if name == "went" else self.dtype,
                                           [] if name == "went" else None)
             for name in outputs],
            self.body.initializers,
        )  # fmt: skip

    def nest_if(self) -> None:
        graphs = []
        for stem in ("then", "else"):
            self.body = Body()
            result = self.fill(self.main.hidden[-2:])
            graphs.append(self.body_graph(stem, [], [result]))
        self.body = self.main
        y = self.node("If", "flag", then_branch=graphs[0], else_branch=graphs[1])
        self.body.hidden.append(self.node("Reshape", y, self.ints(-1, T, H)))

    def nest_loop(self) -> None:
        state = self.name("state")
        self.body = Body()
        start = self.node("Reshape", state, self.ints(-1, T, H))
        result = self.node("Identity", self.fill([*self.main.hidden[-1:], start]))
        went = "went"
        self.body.nodes.append(helper.make_node("Identity", ["go"], [went]))
        body = self.body_graph("loop", ["trip", "go", state], [went, result])
        self.body = self.main
        trips = self.initializer(np.array(2, dtype=np.int64), "trips")
        y = self.node("Loop", trips, "", self.main.hidden[-1], body=body)
        self.body.hidden.append(self.node("Reshape", y, self.ints(-1, T, H)))

    def nest_scan(self) -> None:
        state, element = self.name("state"), self.name("element")
        h = self.main.hidden[-1]
        sequence = self.node("Concat", *[self.unsqueeze(h, 0)] * 2, axis=0)
        self.body = Body()
        values = [self.node("Reshape", name, self.ints(-1, T, H)) for name in (state, element)]
        result = self.fill(values)
        outputs = [self.node("Identity", value) for value in (result, result)]
        body = self.body_graph("scan", [state, element], outputs)
        self.body = self.main
        last, every = self.nodes("Scan", h, sequence, outputs=2, body=body, num_scan_inputs=1)
        self.body.hidden.append(self.node("Reshape", last, self.ints(-1, T, H)))
        if self.chance(0.3):
            self.body.outputs.append(every)

    def nest_function(self) -> None:
        """A block of writer and norm that is called with the weights of the caller."""
        known = [name for name, made in self.functions.items() if made.domain == _LOCAL]
        name = self.rng.choice(known) if known and self.chance(0.5) else self._block()
        made = self.functions[name]
        shapes = {"x": (), "W": (H, self.C), "b": (self.C,), "V": (self.C, H)}
        operands = [
            self.main.hidden[-1] if key == "x" else self.weight(*shapes[key]) for key in made.input
        ]
        flags = {"slope": self.rng.choice((0.5, 2.0))} if made.attribute else {}
        outputs = self.nodes(name, *operands, outputs=2, domain=_LOCAL, **flags)
        self.main.streams.append(outputs[0])
        self.main.hidden.append(outputs[1])

    def _block(self) -> str:
        """Write a function: x W + b as a stream, and what follows its norm as hidden."""
        outer, known, self.weights = self.body, self.weights, {}
        main = self.main
        self.main = self.body = Body()
        y = self.node("Add", self.node("MatMul", "x", "W"), "b")
        flags: list[str] = []
        if self.chance(0.4):
            slope = self._attribute("slope")
            y, flags = self.node("Mul", y, slope), ["slope"]
        self.body.streams.append(y)
        normed = self._plain_norm(y)
        hidden = self.node("MatMul", normed, "V")
        nodes = [*self._constants(), *self.body.nodes]
        self.main, self.body, self.weights = main, outer, known
        name = self.name("Block")
        imports = [helper.make_opsetid("", self.opset)]
        if self.chance(0.1):
            # A body of another opset cannot be inlined; its operators mean the same in both.
            self.made["function of another opset"] += 1
            imports = [helper.make_opsetid("", 22 if self.opset == 21 else self.opset)]
        self.functions[name] = helper.make_function(
            _LOCAL, name, ["x", "W", "b", "V"], [y, hidden], nodes, imports, flags
        )
        return name

    def _plain_norm(self, y: str) -> str:
        mean = self.mean(y, -1)
        centred = self.node("Sub", y, mean)
        variance = self.mean(self.node("Mul", centred, centred), -1)
        root = self.node("Sqrt", self.node("Add", variance, self.scalar(2.0**-10)))
        return self.node("Div", centred, root)

    def _attribute(self, name: str) -> str:
        constant = helper.make_node("Constant", [], [self.name("attribute")])
        constant.attribute.append(
            onnx.AttributeProto(
                name="value_float", ref_attr_name=name, type=onnx.AttributeProto.FLOAT
            )
        )
        self.body.nodes.append(constant)
        return self.node("Cast", constant.output[0], to=self.dtype)

    def _constants(self) -> list[onnx.NodeProto]:
        """The initializers of the body as nodes: a function has none."""
        return [
            helper.make_node("Constant", [], [tensor.name], value=tensor)
            for tensor in self.body.initializers
        ]
