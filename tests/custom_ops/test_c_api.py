from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from onnxfold.operators.functions import DOMAIN, VERSION
from onnxfold.runtime.library import get_library_path
from tests.custom_ops import c_program
from tests.oracle import Array, normalised

ROWS, SIZE = 5, 33


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return c_program.build(tmp_path_factory.mktemp("c") / "run_model")


def run(program: Path, model: Path) -> tuple[list[Array], list[tuple[str, str]]]:
    return c_program.run(program, get_library_path(), model, (ROWS, SIZE))


def inputs(count: int) -> list[Array]:
    return c_program.pattern(count, (ROWS, SIZE))


def write(
    path: Path, nodes: Sequence[onnx.NodeProto], names: Sequence[str], outputs: Sequence[str]
) -> Path:
    def info(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", SIZE])

    graph = helper.make_graph(nodes, "g", [info(n) for n in names], [info(n) for n in outputs])
    opsets = [("", 18), (DOMAIN, VERSION), ("probe", 1)]
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets]
    path.write_bytes(
        helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()
    )
    return path


def norm(name: str, terms: Sequence[str], outputs: Sequence[str]) -> onnx.NodeProto:
    return helper.make_node(name, terms, outputs, domain=DOMAIN, axes=[-1], axis=-1, epsilon=1e-5)


def probe(source: str, target: str) -> onnx.NodeProto:
    return helper.make_node("Probe", [source], [target], domain="probe")


def test_a_c_program_runs_the_kernels(program: Path, tmp_path: Path) -> None:
    node = norm("AddLayerNormWithSum", ["x", "r"], ["y", "s"])
    model = write(tmp_path / "m.onnx", [node], ["x", "r"], ["y", "s"])
    (y, total), _ = run(program, model)
    x, r = inputs(2)
    expected, _ = normalised("AddLayerNorm", {"X": x, "residual": r}, axes=1, epsilon=1e-5)
    np.testing.assert_array_equal(total, (x + r).ravel())
    np.testing.assert_allclose(y, expected.ravel(), rtol=2e-6, atol=5e-6)


def test_terms_that_nothing_else_reads_lend_their_memory(program: Path, tmp_path: Path) -> None:
    nodes = [
        probe("x", "a"),
        probe("r", "b"),
        norm("AddRMSNormWithSum", ["a", "b"], ["y", "s"]),
        probe("y", "py"),
        probe("s", "ps"),
    ]
    model = write(tmp_path / "m.onnx", nodes, ["x", "r"], ["py", "ps"])
    _, probes = run(program, model)
    memory = {"a": probes[0][1], "b": probes[1][1]}
    used = {address for address, _ in probes[2:]}
    assert used == set(memory.values())


def test_terms_that_are_read_again_keep_their_memory(program: Path, tmp_path: Path) -> None:
    nodes = [
        probe("x", "a"),
        probe("r", "b"),
        norm("AddRMSNormWithSum", ["a", "b"], ["y", "s"]),
        probe("y", "py"),
        probe("s", "ps"),
        # These wait for the norm, and so read a and b after it.
        helper.make_node("Max", ["a", "py"], ["ay"]),
        helper.make_node("Max", ["b", "ps"], ["bs"]),
    ]
    model = write(tmp_path / "m.onnx", nodes, ["x", "r"], ["py", "ps", "ay", "bs"])
    (y, total, ay, bs), probes = run(program, model)
    x, r = inputs(2)
    assert not {probes[0][1], probes[1][1]} & {address for address, _ in probes[2:]}
    np.testing.assert_array_equal(total, (x + r).ravel())
    np.testing.assert_array_equal(ay, np.maximum(x.ravel(), y))
    np.testing.assert_array_equal(bs, np.maximum(r.ravel(), total))


def test_a_chain_of_norms_works_in_one_buffer(program: Path, tmp_path: Path) -> None:
    nodes = [
        probe("x", "a"),
        norm("RMSNorm", ["a"], ["b"]),
        norm("LayerNorm", ["b"], ["c"]),
        norm("Center", ["c"], ["d"]),
        probe("d", "out"),
    ]
    model = write(tmp_path / "m.onnx", nodes, ["x"], ["out"])
    (out,), probes = run(program, model)
    assert probes[0][1] == probes[1][0]
    expected, _ = normalised("LayerNorm", {"X": inputs(1)[0]}, axes=1, epsilon=1e-5)
    # A norm before it changes the row's scale by epsilon alone, a part in 1e5 of its square.
    np.testing.assert_allclose(out, expected.ravel(), rtol=2e-5, atol=5e-6)


def test_registering_the_library_twice_is_an_error_and_no_crash(tmp_path: Path) -> None:
    node = norm("RMSNorm", ["x"], ["y"])
    model = write(tmp_path / "m.onnx", [node], ["x"], ["y"])
    options = onnxruntime.SessionOptions()
    for _ in range(2):
        options.register_custom_ops_library(get_library_path())
    from onnxruntime.capi.onnxruntime_pybind11_state import Fail

    with pytest.raises(Fail, match="already"):
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
