"""Resident memory, measured by the system in a fresh process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from onnxfold import model_io
from onnxfold.model_io.mapped import release
from tests.model_io.files import linear, refer, save, weight

COUNT, MIB = 12, 2**20
TENSOR_MIB = 16

# Prints how far the resident memory rose, in MiB, while a model was loaded, edited and saved.
SCRIPT = """
import pathlib, sys
import numpy as np, onnx_ir as ir
from onnxfold import model_io

def status(key):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))

def edited(tensor):
    evaluate = lambda: ir.Tensor(tensor.numpy() + np.float32(1))
    return ir.LazyTensor(evaluate, dtype=tensor.dtype, shape=tensor.shape, name=tensor.name)

before = status("VmRSS")
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
model = model_io.load(sys.argv[1])
values = list(model.graph.initializers.values())
for value in values[: int(sys.argv[3])]:
    value.const_value = edited(value.const_value)
for value in values:
    value.const_value.numpy().max()
with model_io.stage(model, sys.argv[2], external_data=sys.argv[4] == "external") as staged:
    files = staged.commit()
print((status("VmHWM") - before) // 1024, files.nbytes)
"""


def sparse_model(folder: Path, external: bool) -> Path:
    """A model of 192 MiB of zeros that takes no room on the disk."""
    proto = linear(*(weight(f"w{i}", 1) for i in range(COUNT)))
    nbytes = TENSOR_MIB * MIB
    for index, tensor in enumerate(proto.graph.initializer):
        tensor.dims[0] = nbytes // 4
        refer(tensor, "in.data", index * nbytes, nbytes)
    with open(folder / "in.data", "wb") as file:
        file.truncate(COUNT * nbytes)
    (folder / "in.onnx").write_bytes(proto.SerializeToString())
    if external:
        return folder / "in.onnx"
    embedded = onnx.load(folder / "in.onnx")
    assert embedded.graph.initializer[0].data_location != TensorProto.EXTERNAL
    onnx.save(embedded, folder / "one.onnx")
    return folder / "one.onnx"


@pytest.mark.campaign
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("form", ["external", "embedded"])
@pytest.mark.parametrize(("edits", "tensors"), [(0, 1), (4, 4)])
def test_memory_is_that_of_a_few_tensors(
    tmp_path: Path, form: str, edits: int, tensors: int
) -> None:
    """Read: one mapped weight. Edited: one mapped, its result, and the result being written.

    The fourth is for what numpy and the system keep for a moment.
    """
    source = sparse_model(tmp_path, form == "external")
    paths = str(source), str(tmp_path / "out.onnx")
    command = [sys.executable, "-c", SCRIPT, *paths, str(edits), form]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # ours
    peak_mib, nbytes = map(int, output.split())
    assert nbytes >= COUNT * TENSOR_MIB * MIB
    assert peak_mib < tensors * TENSOR_MIB + 8


# Prints how far the resident memory rose, in MiB, while every weight was centered and saved.
CENTRED = """
import pathlib, sys
from onnxfold import model_io
from onnxfold.graph import whole_axes
from onnxfold.weights.edited import centred_tensor

def status(key):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))

model = model_io.load(sys.argv[1])
for value in model.graph.initializers.values():
    fiber = whole_axes(tuple(value.const_value.shape.numpy()), (1,))
    value.const_value = centred_tensor(value.const_value, fiber, value.name)
before = status("VmRSS")
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
with model_io.stage(model, sys.argv[2], external_data=True) as staged:
    files = staged.commit()
print((status("VmHWM") - before) // 1024, files.nbytes)
"""


@pytest.mark.campaign
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_large_changed_weight_is_never_whole_in_memory(tmp_path: Path) -> None:
    """Of 256 MiB each: neither the result nor, but for a part, the mapped original."""
    large_mib, count, width = 256, 2, 1024
    proto = linear(*(weight(f"w{i}", 1, 1) for i in range(count)))
    for index, tensor in enumerate(proto.graph.initializer):
        tensor.dims[:] = [large_mib * MIB // (4 * width), width]
        refer(tensor, "in.data", index * large_mib * MIB, large_mib * MIB)
    with open(tmp_path / "in.data", "wb") as file:
        file.truncate(count * large_mib * MIB)
    (tmp_path / "in.onnx").write_bytes(proto.SerializeToString())
    command = [sys.executable, "-c", CENTRED, str(tmp_path / "in.onnx"), str(tmp_path / "o.onnx")]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # ours
    peak_mib, nbytes = map(int, output.split())
    assert nbytes >= count * large_mib * MIB
    assert peak_mib < large_mib // 2


def test_pages_of_a_weight_are_dropped_and_read_again(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).standard_normal((3000, 7), dtype=np.float32)
    source = save(linear(weight("W", 3000, 7)), tmp_path / "in.onnx", "in.data")
    (tmp_path / "in.data").write_bytes(numbers.tobytes())
    loaded = model_io.load(source).graph.initializers["W"].const_value
    assert loaded is not None
    mapped = loaded.numpy()
    for rows in (mapped[:1], mapped[1000:2001], mapped[-1:], mapped.T, mapped[:, 3], mapped[:0]):
        release(rows)
        np.testing.assert_array_equal(mapped, numbers)
    release(mapped.reshape(-1)[5:-5])
    np.testing.assert_array_equal(mapped, numbers)


def test_a_map_that_is_not_ours_keeps_what_was_written_to_it(tmp_path: Path) -> None:
    """Dropping the pages of a private map would lose what is in them alone."""
    (tmp_path / "data").write_bytes(bytes(40_000))
    private = np.memmap(tmp_path / "data", np.float32, mode="c")
    private[:] = 5.0
    release(private)
    release(private[100:])
    assert np.all(private == 5.0)
