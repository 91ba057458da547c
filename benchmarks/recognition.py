"""How long recognition takes over 1 to 1000 decomposed layer norms: it is linear in the graph.

python benchmarks/recognition.py
"""

from __future__ import annotations

import time

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from onnxfold.graph import GraphView
from onnxfold.norms import find_norms

WIDTH = 64
LAYERS = (1, 2, 6, 12, 24, 48, 96, 500, 1000)


def tower(layers: int) -> onnx.ModelProto:
    """A residual tower of `layers` norms in the spelling of torch, each with a linear layer."""
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    constants = {"two": np.float32(2), "e": np.float32(1e-5)}
    x = "x0"
    for i in range(layers):
        for name in ("g", "b"):
            constants[f"{name}{i}"] = rng.standard_normal(WIDTH).astype(np.float32)
        constants[f"w{i}"] = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32)
        lines = (
            f"ReduceMean {x} -> u{i}", f"Sub {x} u{i} -> d{i}", f"Pow d{i} two -> q{i}",
            f"ReduceMean q{i} -> v{i}", f"Add v{i} e -> f{i}", f"Sqrt f{i} -> s{i}",
            f"Div d{i} s{i} -> n{i}", f"Mul n{i} g{i} -> m{i}", f"Add m{i} b{i} -> y{i}",
            f"MatMul y{i} w{i} -> z{i}", f"Add {x} z{i} -> x{i + 1}",
        )  # fmt: skip
        for line in lines:
            op_type, *inputs, _, output = line.split()
            axes = {"axes": [-1]} if op_type == "ReduceMean" else {}
            nodes.append(helper.make_node(op_type, inputs, [output], name=output, **axes))
        x = f"x{i + 1}"
    dims = ["batch", "time", WIDTH]
    graph = helper.make_graph(
        nodes,
        "tower",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, dims)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def main() -> None:
    print(f"{'norms':>6} {'view, ms':>10} {'find, ms':>10} {'per norm, ms':>13}")
    for layers in LAYERS:
        model = ir.from_proto(tower(layers))
        start = time.perf_counter()
        view = GraphView(model)
        viewed = time.perf_counter()
        sites = find_norms(view)
        found = time.perf_counter()
        if len(sites) != layers:
            raise SystemExit(f"{len(sites)} of {layers} norms found")
        view_ms, find_ms = 1e3 * (viewed - start), 1e3 * (found - viewed)
        print(f"{layers:>6} {view_ms:>10.1f} {find_ms:>10.1f} {find_ms / layers:>13.2f}")


if __name__ == "__main__":
    main()
