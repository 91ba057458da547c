"""The CUDA kernels' arithmetic, indexing and launch decisions, without a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir
import pytest

from onnxfold.operators.functions import SIGNATURES, Output, Statistics
from tests.calls import NUMPY_TYPES, random_inputs
from tests.custom_ops.bounds import TYPES, assert_outputs_right
from tests.custom_ops.cuda_kernels import Arguments, HostMemory, Kernels, Plan
from tests.custom_ops.cuda_list import CHECKS, LENGTHS, Check, row_boundaries
from tests.custom_ops.emulated import build_emulation

pytestmark = pytest.mark.campaign  # the compiler takes half a minute
H100 = 132  # multiprocessors
BASE = 1 << 20  # an aligned address
# By vectors of a thread that shares a block's row, and whether they are shifted (plan.h).
REGISTERS = {
    (1, False): 40,
    (1, True): 56,
    (2, False): 64,
    (2, True): 64,
    (4, False): 64,
    (4, True): 128,
}
FLOAT_REGISTERS = {(4, True): 80}  # where they are fewer for elements of 4 bytes


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_emulation(tmp_path_factory.getbasetemp().parent / "emulation")


@pytest.fixture(scope="module")
def kernels(library: Path) -> Kernels:
    return Kernels(library, HostMemory())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_emulated_kernels_hold_what_the_list_says(check: Check, kernels: Kernels) -> None:
    check(kernels, False)


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_emulated_kernels_hold_the_whole_list(check: Check, kernels: Kernels) -> None:
    check(kernels, True)


def test_the_list_can_fail(kernels: Kernels) -> None:
    inputs = random_inputs("LayerNorm", (2, 40), ir.DataType.FLOAT)
    outputs = kernels.run("LayerNorm", inputs, epsilon=1e-2)
    with pytest.raises(AssertionError, match="80 of 80 wrong"):
        assert_outputs_right("LayerNorm", inputs, outputs)


def test_writing_beside_a_tensor_is_seen() -> None:
    memory = HostMemory()
    buffer = memory.allocate(b"12345678", 4)
    ctypes.memset(memory.address(buffer) + 8, 0, 1)
    with pytest.raises(AssertionError, match="beside its tensor"):
        memory.content(buffer)


def test_unknown_ops_are_refused(kernels: Kernels) -> None:
    with pytest.raises(AssertionError, match="RMSNormal: no such op"):
        kernels.call("RMSNormal", ir.DataType.FLOAT, Arguments())


@pytest.fixture(scope="module")
def plan(library: Path) -> Iterator[object]:
    function = ctypes.CDLL(str(library)).onnxfold_plan
    function.restype = ctypes.c_char_p

    def planned(
        dtype: ir.DataType,
        rows: int,
        size: int,
        *,
        name: str = "RMSNormScale",
        multiprocessors: int = H100,
        x: int = BASE,
        scale: int = BASE,
    ) -> Plan:
        result = Plan()
        given = Arguments(x=x, y=x, scale=scale, rows=rows, size=size, epsilon=1e-5)
        number = TYPES.index(dtype)
        arguments = (name.encode(), number, ctypes.byref(given), multiprocessors)
        assert function(*arguments, ctypes.byref(result)) is None
        return result

    return planned


def vectors_touched(size: int, shift: int, width: int) -> int:
    return -(-(size + shift) // width)


def most_registers(dtype: ir.DataType, plan: Plan) -> int:
    kernel = plan.vectors, plan.shifted
    every = REGISTERS[kernel]
    return FLOAT_REGISTERS.get(kernel, every) if dtype == ir.DataType.FLOAT else every


@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.name)
def test_every_plan_covers_its_rows_and_fits_the_device(plan, dtype: ir.DataType) -> None:
    width = 16 // NUMPY_TYPES[dtype].itemsize
    for size in sorted({*LENGTHS, *row_boundaries(dtype)}):
        for rows in (1, 2, 131, 132, 133, 263, 264, 265, 1055, 1056, 1057, 100_000, 2**31, 2**33):
            p = plan(dtype, rows, size)
            assert 32 <= p.threads <= 1024
            assert p.threads % 32 == 0
            assert 1 <= p.blocks <= 2**31 - 1
            assert p.vectors == 0 or rows < 2**31  # numbers of rows have 32 bits there
            if p.vectors == 0:
                assert p.threads <= 512
                assert p.wide == (size % width == 0)
                assert p.blocks == min(rows, 2**31 - 1) * p.parts
                continue
            assert p.parts == 1
            threads = p.threads_per_row or p.threads
            rows_per_block = p.threads // threads
            assert p.blocks == -(-rows // rows_per_block)
            assert p.shifted == (size % width != 0)
            shifts = {row * size % width for row in range(width)}
            needed = max(vectors_touched(size, shift, width) for shift in shifts)
            assert threads * p.vectors >= needed
            # No whole warp, or thread group of a warp, is left without a vector.
            assert size == 0 or (threads - 32) * p.vectors < needed + 1 or p.vectors <= 2
            # What the registers of a multiprocessor leave room for, as sass_kernels.csv has them:
            # every fourth warp takes its own from the same quarter, eight of each thread at a time.
            warps = -(-p.threads // 128)
            registers = 0 if p.threads_per_row else most_registers(dtype, p)
            assert warps * 32 * -(-registers // 8) * 8 <= 65536 // 4


@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.name)
@pytest.mark.parametrize(
    ("vectors", "many", "few", "fewest"),
    [
        (1, (8, 1, 128), (8, 1, 128), (8, 1, 128)),
        (8, (8, 1, 128), (8, 1, 128), (8, 1, 128)),
        (9, (8, 2, 128), (8, 2, 128), (8, 2, 128)),
        (16, (8, 2, 128), (8, 2, 128), (8, 2, 128)),
        (17, (32, 1, 128), (32, 1, 128), (32, 1, 128)),
        (32, (32, 1, 128), (32, 1, 128), (32, 1, 128)),
        (33, (32, 2, 128), (32, 2, 128), (32, 2, 128)),
        (64, (32, 2, 128), (32, 2, 128), (32, 2, 128)),
        (65, (32, 4, 128), (32, 4, 128), (32, 4, 128)),
        (128, (32, 4, 128), (32, 4, 128), (32, 4, 128)),
        (129, (0, 4, 64), (0, 2, 96), (0, 2, 96)),
        (256, (0, 4, 64), (0, 2, 128), (0, 2, 128)),
        (257, (0, 4, 96), (0, 1, 288), (0, 1, 288)),
        (768, (0, 4, 192), (0, 1, 768), (0, 1, 768)),
        (769, (0, 4, 224), (0, 4, 224), (0, 1, 800)),
        (1024, (0, 4, 256), (0, 4, 256), (0, 1, 1024)),
        (1025, (0, 4, 288), (0, 4, 288), (0, 2, 544)),
        (2048, (0, 4, 512), (0, 4, 512), (0, 2, 1024)),
        (2049, (0, 4, 544), (0, 4, 544), (0, 4, 544)),
        (4096, (0, 4, 1024), (0, 4, 1024), (0, 4, 1024)),
        (4097, (0, 0, 512), (0, 0, 512), (0, 0, 512)),
    ],
)
def test_the_table_of_launches(
    plan,
    dtype: ir.DataType,
    vectors: int,
    many: tuple[int, ...],
    few: tuple[int, ...],
    fewest: tuple[int, ...],
) -> None:
    size = vectors * 16 // NUMPY_TYPES[dtype].itemsize
    for rows, expected in ((8 * H100, many), (2 * H100, few), (H100, fewest)):
        p = plan(dtype, rows, size)
        assert (p.threads_per_row, p.vectors, p.threads) == expected
        assert not p.shifted


@pytest.mark.parametrize("vectors", [129, 256])
def test_a_thread_has_eight_vectors_where_no_scale_needs_registers(plan, vectors: int) -> None:
    for dtype in TYPES:
        size = vectors * 16 // NUMPY_TYPES[dtype].itemsize
        p = plan(dtype, 8 * H100, size, scale=0)
        assert (p.threads_per_row, p.vectors, p.threads) == (32, 8, 128)


def test_few_rows_are_counted_by_the_multiprocessors(plan) -> None:
    size = 8 * 200
    assert plan(ir.DataType.FLOAT16, 8 * 20, size, multiprocessors=20).vectors == 4
    assert plan(ir.DataType.FLOAT16, 8 * 20 - 1, size, multiprocessors=20).vectors == 2
    size = 8 * 300
    assert plan(ir.DataType.FLOAT16, 41, size, multiprocessors=20).vectors == 4
    assert plan(ir.DataType.FLOAT16, 40, size, multiprocessors=20).vectors == 1


@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.name)
def test_alignment_decides_between_vectors_shifted_vectors_and_elements(
    plan, dtype: ir.DataType
) -> None:
    item = NUMPY_TYPES[dtype].itemsize
    plain = plan(dtype, 10, 1024)
    assert (plain.shifted, plain.vectors > 0) == (False, True)
    odd = plan(dtype, 10, 1023)
    assert (odd.shifted, odd.vectors > 0) == (True, True)
    constants = plan(dtype, 10, 1024, scale=BASE + item)
    assert (constants.shifted, constants.vectors > 0) == (True, True)
    tensors = plan(dtype, 10, 1024, x=BASE + item)
    assert (tensors.wide, tensors.vectors, tensors.threads) == (False, 0, 512)
    assert plan(dtype, 10, 40, x=BASE + item).threads == 64
    # The longest shifted row in registers, and the first that is not.
    width = 16 // item
    longest = 3072 if dtype == ir.DataType.FLOAT else 2048
    assert plan(dtype, 10, (longest - 1) * width + 1).vectors > 0
    assert plan(dtype, 10, longest * width - 1).vectors == 0


def test_a_row_of_crmsnorm_of_8191_floats_stays_in_registers(plan) -> None:
    p = plan(ir.DataType.FLOAT, 100 * H100, 8191, name="CRMSNorm")
    assert (p.shifted, p.threads_per_row, p.vectors, p.threads) == (True, 0, 4, 544)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.name)
@pytest.mark.parametrize(
    ("size", "many", "few"),
    [
        (511, (0, 2, 64), (0, 2, 64)),
        (1023, (0, 2, 96), (0, 2, 96)),
        (4095, (0, 4, 160), (0, 1, 544)),
        (8191, (0, 4, 288), (0, 2, 544)),
    ],
)
def test_rows_of_crmsnorm_stay_in_few_registers(
    plan, dtype: ir.DataType, size: int, many: tuple[int, ...], few: tuple[int, ...]
) -> None:
    """A power of two less one: one vector more than a boundary of the table, when shifted."""
    length = (size + 1) * 2 // NUMPY_TYPES[dtype].itemsize - 1
    for rows, expected in ((100 * H100, many), (H100, few)):
        p = plan(dtype, rows, length, name="CRMSNorm")
        assert p.shifted
        assert (p.threads_per_row, p.vectors, p.threads) == expected


@pytest.mark.parametrize(
    ("dtype", "rows", "size", "name", "parts"),
    [
        (ir.DataType.FLOAT16, 1, 8 * 4096, "LayerNorm", 1),  # the table's last
        (ir.DataType.FLOAT16, 1, 8 * 4097, "LayerNorm", 3),
        (ir.DataType.FLOAT, 1, 4 * 4097, "LayerNorm", 3),
        (ir.DataType.FLOAT16, 1, 1 << 23, "LayerNorm", H100),
        (ir.DataType.FLOAT16, 10, 1 << 20, "AddRMSNormWithSum", 13),
        (ir.DataType.FLOAT16, H100 // 2, 1 << 20, "RMSNorm", 2),
        (ir.DataType.FLOAT16, H100 // 2 + 1, 1 << 20, "RMSNorm", 1),
        (ir.DataType.FLOAT16, H100, 1 << 20, "RMSNorm", 1),
        (ir.DataType.FLOAT16, H100, (1 << 20) + 1, "RMSNorm", 2),  # by element
        (ir.DataType.FLOAT16, 1, 4096, "CRMSNormFull", 1),
        (ir.DataType.FLOAT16, 1, 4097, "CRMSNormFull", 3),
        (ir.DataType.FLOAT, 1, 1 << 30, "CRMSNormFull", 2 * H100),
        (ir.DataType.FLOAT16, 1, 1 << 20, "RMSNormQuantize", 1),  # extended
    ],
)
def test_a_few_rows_beyond_the_table_are_shared_by_blocks(
    plan, dtype: ir.DataType, rows: int, size: int, name: str, parts: int
) -> None:
    p = plan(dtype, rows, size, name=name)
    assert (p.parts, p.blocks) == (parts, rows * parts)
    assert p.vectors == 0 or parts == 1
    assert parts <= p.threads


def test_nothing_is_launched_where_nothing_is_written(plan) -> None:
    for name, signature in SIGNATURES.items():
        full = signature.statistics is Statistics.CRMS_FULL
        of_rows = signature.output in (Output.SCALE, Output.QUANTIZED_ROWS)
        assert plan(ir.DataType.FLOAT, 0, 8, name=name).blocks == 0
        # A full row has one element where X has none, and a row of none has a scale.
        assert plan(ir.DataType.FLOAT, 3, 0, name=name).blocks == (3 if full or of_rows else 0)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.name)
@pytest.mark.parametrize("name", ["RMSNormRowEpsilonScale", "LayerNormQuantize"])
def test_extended_kernels_have_as_many_registers_as_shifted_ones(
    plan, dtype: ir.DataType, name: str
) -> None:
    width = 16 // NUMPY_TYPES[dtype].itemsize
    longest = plan(dtype, 8 * H100, 2048 * width, name=name)
    assert (longest.vectors, longest.threads) == (4, 512)
    assert plan(dtype, 8 * H100, 2049 * width, name=name).vectors == 0
