"""Norms among constant factors and constants that are added, in residual streams or not."""

from __future__ import annotations

import random

import numpy as np
import onnx
import onnx_ir as ir

from tests.graphs import Array, graph

__all__ = ["factor_graph"]

_WIDTH = 6


def factor_graph(seed: int) -> onnx.ModelProto:
    """The float32 model of a seed."""
    return ir.to_proto(_Draft(seed).model())


class _Draft:
    """A model in ONNX text, with its constants."""

    def __init__(self, seed: int):
        self._choose = random.Random(seed)  # noqa: S311 # no secret
        self._numbers = np.random.default_rng(seed)
        self._opset = self._choose.choice((13, 17))
        self._nodes: list[str] = []
        self._constants: dict[str, Array] = {}

    def model(self) -> ir.Model:
        stream = self._linear("x")
        for _ in range(self._choose.randint(1, 2)):
            if self._choose.random() < 0.3:
                stream = self._factor(stream)
            branch = self._norm(stream)
            steps = (self._factor, self._factor, self._factor, self._sum, self._sum, self._negated)
            for _ in range(self._choose.randint(0, 4)):
                branch = self._choose.choice(steps)(branch)
            branch = self._linear(branch)
            residual = self._choose.random() < 0.5
            stream = self._node(f"Add({stream}, {branch})") if residual else branch
        self._nodes.append(f"y = Tanh({stream})")
        shape = f"float[B,4,{_WIDTH}]"
        return graph(
            " ".join(self._nodes), f"{shape} x", f"{shape} y", self._constants, opset=self._opset
        )

    def _node(self, text: str) -> str:
        name = f"v{len(self._nodes)}"
        self._nodes.append(f"{name} = {text}")
        return name

    def _constant(self, *shape: int, mean: float = 0.0) -> str:
        name = f"w{len(self._constants)}"
        numbers = mean + 0.3 * self._numbers.standard_normal(shape)
        self._constants[name] = np.asarray(numbers, np.float32)
        return name

    def _number(self, number: float) -> str:
        name = f"w{len(self._constants)}"
        self._constants[name] = np.array(number, np.float32)
        return name

    def _linear(self, x: str) -> str:
        y = self._node(f"MatMul({x}, {self._constant(_WIDTH, _WIDTH)})")
        biased = self._choose.random() < 0.6
        return self._node(f"Add({y}, {self._constant(_WIDTH)})") if biased else y

    def _factor(self, x: str) -> str:
        constant = self._constant(*self._choose.choice(((), (1,), (_WIDTH,))), mean=1.5)
        return self._node(f"{self._choose.choice(('Mul', 'Mul', 'Div'))}({x}, {constant})")

    def _sum(self, x: str) -> str:
        return self._node(f"{self._choose.choice(('Add', 'Sub'))}({x}, {self._constant(_WIDTH)})")

    def _negated(self, x: str) -> str:
        return self._node(f"Neg({x})")

    def _gamma(self) -> str:
        if self._choose.random() < 0.7:
            return self._constant(_WIDTH, mean=1.5)
        self._constants["ones"] = np.ones(_WIDTH, np.float32)
        return "ones"

    def _norm(self, x: str) -> str:
        gamma = self._gamma()
        beta = self._constant(_WIDTH) if self._choose.random() < 0.6 else ""
        if self._opset > 13 and self._choose.random() < 0.6:
            inputs = f"{x}, {gamma}, {beta}" if beta else f"{x}, {gamma}"
            return self._node(f"LayerNormalization<axis=-1>({inputs})")
        centred = self._centred(x) if self._choose.random() < 0.7 else x
        square = self._node(f"Mul({centred}, {centred})")
        variance = self._node(f"ReduceMean<axes=[-1]>({square})")
        root = self._node(f"Sqrt({self._node(f'Add({variance}, {self._number(1e-5)})')})")
        y = self._node(f"Mul({self._node(f'Div({centred}, {root})')}, {gamma})")
        return self._node(f"Add({y}, {beta})") if beta else y

    def _centred(self, x: str) -> str:
        mean = self._node(f"ReduceMean<axes=[-1]>({x})")
        return self._node(f"Sub({x}, {mean})")
