"""Norms of one value that tools have merged up to gamma and beta: each is one of its own.

TorchScript's exporter and ONNX Runtime's basic optimizations merge what is computed twice.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import onnxfold
from tests.graphs import graph, weights
from tests.pairs import pairs
from tests.recognition.replay import sites_of
from tests.sessions import executed

_SHARED = {
    "layer_norm": "m = ReduceMean<axes=[-1]>(h) d = Sub(h, m) q = Mul(d, d) "
    "v = ReduceMean<axes=[-1]>(q) e = Add(v, eps) r = Sqrt(e) n = Div(d, r) ",
    "rms_norm": "q = Mul(h, h) v = ReduceMean<axes=[-1]>(q) e = Add(v, eps) r = Sqrt(e) "
    "n = Div(h, r) ",
    "layer_norm, times a reciprocal": "m = ReduceMean<axes=[-1]>(h) d = Sub(h, m) q = Mul(d, d) "
    "v = ReduceMean<axes=[-1]>(q) e = Add(v, eps) r = Sqrt(e) i = Reciprocal(r) n = Mul(d, i) ",
}
_TAILS = {
    "gamma and beta": [
        "g1 = Mul(n, gamma1) a1 = Add(g1, b1)",
        "g2 = Mul(n, gamma2) a2 = Add(b2, g2)",
    ],
    "gamma": ["a1 = Mul(n, gamma1)", "a2 = Mul(gamma2, n)"],
    "beta": ["a1 = Add(n, b1)", "a2 = Add(b2, n)"],
    "one gamma, two betas": ["g = Mul(n, gamma1) a1 = Add(g, b1)", "a2 = Add(g, b2)"],
    "three": [
        "g1 = Mul(n, gamma1) a1 = Add(g1, b1)",
        "g2 = Mul(n, gamma2) a2 = Add(g2, b2)",
        "a3 = Mul(n, gamma3)",
    ],
}  # fmt: skip


def merged(shared: str, tails: list[str], kind: str = "double", opset: int = 17) -> ir.Model:
    """A linear layer behind each of some norms of h."""
    numbers = range(1, len(tails) + 1)
    body = "h0 = MatMul(x, W) h = Add(h0, c) " + shared + " ".join(tails)
    for number in numbers:
        body += f" p{number} = MatMul(a{number}, V{number}) y{number} = Add(p{number}, c{number})"
    shapes: dict[str, tuple[int, ...]] = {"W": (6, 6), "c": (6,)}
    shapes |= {f"V{number}": (6, 3) for number in numbers} | {f"c{n}": (3,) for n in numbers}
    shapes |= {f"gamma{number}": (6,) for number in (1, 2, 3)} | {f"b{n}": (6,) for n in (1, 2)}
    dtype = {"double": np.float64, "float": np.float32, "float16": np.float16}[kind]
    made = {name: array.astype(dtype) for name, array in weights(**shapes).items()}
    made["eps"] = np.array(2.0**-10, dtype)
    outputs = ", ".join(f"{kind}[B,4,3] y{number}" for number in numbers)
    return graph(body, f"{kind}[B,4,6] x", outputs, made, opset=opset)


@pairs(shared=_SHARED, tail=_TAILS, target=["onnx", "ort", "kernels"])
def test_each_norm_gives_its_gamma_and_beta_away(shared: str, tail: str, target: str) -> None:
    model = merged(_SHARED[shared], _TAILS[tail], "float")
    count = len(_TAILS[tail])
    sites = sites_of(ir.to_proto(model))
    assert [site.kind.value for site in sites] == [shared.split(",", maxsplit=1)[0]] * count
    assert all(site.escaping == () for site in sites)
    result = onnxfold.optimize(model, target=target)
    assert "left_out" not in result.report
    document = result.report["inspect"]
    if shared.startswith("layer_norm"):
        assert document["summary"]["foldable"] == count
        assert [row["action"] for row in document["norms"]] == ["rms"] * count
        assert all(row["reason"] is None for row in document["norms"])
    stays = {"gamma1", "gamma2", "gamma3", "b1", "b2"} & set(result.model.graph.initializers)
    # Kernels apply gamma for nothing, and sessions fuse an RMSNorm that was none with its gamma.
    free = target == "kernels" or (target == "onnx" and shared == "rms_norm")
    assert bool(stays) is free or target == "kernels"
    assert not onnxfold.optimize(result.model, target=target, check=None).changed


@pytest.mark.parametrize("opset", [9, 13, 16, 17])
def test_what_a_session_merges_is_taken_apart_again(opset: int, tmp_path: Path) -> None:
    """The same graph before and behind ONNX Runtime's basic optimizations: one result."""
    apart = _SHARED["layer_norm"]
    again = re.sub(r"\b([mdqvern])\b(?!<)", r"\1_2", apart)
    tails = ["g1 = Mul(n, gamma1) a1 = Add(g1, b1)", "g2 = Mul(n_2, gamma2) a2 = Add(g2, b2)"]
    twice = ir.to_proto(merged(f"{apart} {again}", tails, "float", opset))
    behind = executed(twice, tmp_path, level="basic")
    divisions = [sum(n.op_type == "Div" for n in m.graph.node) for m in (twice, behind)]
    assert divisions == [2, 1]
    before, after = (
        onnxfold.optimize(model).report["inspect"]["summary"] for model in (twice, behind)
    )
    for key in ("norms", "foldable", "gamma_fused", "beta_fused"):
        assert before[key] == after[key] == 2, key


def test_a_norm_whose_gamma_has_to_stay_keeps_it_alone() -> None:
    """The second is read by a residual, too."""
    tails = list(_TAILS["gamma and beta"])
    tails[1] += " s = Add(a2, x) k = Tanh(s)"
    model = merged(_SHARED["layer_norm"], tails, "float")
    model.graph.outputs.append(next(n.outputs[0] for n in model.graph if n.op_type == "Tanh"))
    result = onnxfold.optimize(model)
    assert result.report["inspect"]["summary"]["gamma_fused"] == 1
    assert [row["action"] for row in result.report["inspect"]["norms"]] == ["rms", "rms"]
    assert "gamma2" in result.model.graph.initializers
    assert not onnxfold.optimize(result.model, check=None).changed


@pytest.mark.parametrize(
    "tails",
    [
        ["a1 = Mul(n, half)", "k = Div(n, two) l = Erf(k) a2 = Mul(a1, l)"],
        ["a1 = Mul(n, half)", "a2 = Add(n, half)"],
        ["a1 = Mul(n, gamma1)", "a2 = Tanh(n)"],
        ["a1 = Mul(n, gamma1)", "a2 = Mul(n, x)"],
    ],
    ids=["Gelu", "numbers", "another reader", "a gate"],
)
def test_what_reads_a_norm_without_gamma_in_other_ways_makes_no_second_one(
    tails: list[str],
) -> None:
    model = merged(_SHARED["layer_norm"], tails, "float")
    for name, number in {"half": 0.5, "two": 2.0}.items():
        tensor = ir.tensor(np.array(number, np.float32), name=name)
        value = ir.Value(name=name, const_value=tensor, type=ir.TensorType(ir.DataType.FLOAT))
        for node in model.graph:
            for index, operand in enumerate(node.inputs):
                if operand is not None and operand.name == name:
                    node.replace_input_with(index, value)
        if value.uses():
            value.shape = ir.Shape([])
            model.graph.register_initializer(value)
    (site,) = sites_of(ir.to_proto(model))
    assert site.output.name == "n"
