"""The count of a kernel's instructions, on listings that are short enough to count by hand."""

from __future__ import annotations

import pytest

from benchmarks.rows import RESULTS, read
from benchmarks.sass import Case, Kernel, disassembled, instructions, readable

NAME = (
    "_ZN8onnxfold4cuda12_GLOBAL__N_110row_kernelINS0_4HalfELNS_10StatisticsE0ELb0ELi1ELb0ELb0EEEv"
    "NS_9ArgumentsEf"
)
# Loads x, loads a scale where there is one, and stores; y needs two instructions more with it.
LINES = """
@!P2 LDG.E.128 R4, desc[UR8][R2.64] ;
ULDC.64 UR4, c[0x0][0x228] ;
ISETP.NE.U32.AND P0, PT, RZ, UR4, PT ;
ISETP.NE.AND.EX P0, PT, RZ, UR5, PT, P0 ;
SHFL.BFLY PT, R9, R3, 0x1, 0x1f ;
@!P0 BRA `(.L_x_1) ;
LDG.E.128.CONSTANT R12, desc[UR4][R10.64] ;
FMUL R4, R4, R12 ;
@P2 EXIT ;
STG.E.128 desc[UR8][R2.64], R4 ;
EXIT ;
.L_x_1:
@P2 EXIT ;
STG.E.128 desc[UR8][R2.64], R4 ;
EXIT ;
.L_x_2:
BRA `(.L_x_2) ;
"""
PLAIN = Case("RMSNorm", 8, "row_kernel RMS 0 1 0 0")
SCALED = Case("RMSNormScale", 8, "row_kernel RMS 0 1 0 0", ("scale",))


def kernel(lines: str) -> Kernel:
    numbered = [
        line if line.startswith(".L") else f"        /*{16 * i:04x}*/   {line}"
        for i, line in enumerate(lines.strip().splitlines())
    ]
    listing = "\n".join([f".text.{NAME}:", *numbered])
    return disassembled(listing)["row_kernel RMS 0 1 0 0"]


def test_names_are_read_as_the_table_has_them() -> None:
    assert readable(NAME) == PLAIN.kernel
    other = NAME.replace("NS0_4HalfE", "f").replace("E0ELb0ELi1ELb0", "E1ELb1ELi4ELb1")
    assert readable(other) == "row_kernel LAYER 1 4 1 0"


def test_an_op_goes_where_its_operands_send_it() -> None:
    code = kernel(LINES)
    assert instructions(code, PLAIN, 0x210) == (9, 9, 0)
    assert instructions(code, SCALED, 0x210) == (11, 11, 1)


def test_an_instruction_counts_where_its_predicate_is_false() -> None:
    predicated = LINES.replace("@!P0 BRA `(.L_x_1) ;\nLDG", "@P0 LDG")
    predicated = predicated.replace("\nFMUL R4", "\n@P0 FMUL R4")
    assert instructions(kernel(predicated), PLAIN, 0x210) == (10, 10, 0)


def test_a_way_that_sums_more_is_the_other_count() -> None:
    again = "@P5 BRA `(.L_x_3) ;\nSHFL.BFLY PT, R9, R3, 0x1, 0x1f ;\nFADD R3, R3, R9 ;\n.L_x_3:\n"
    code = kernel(LINES.replace("@!P0 BRA", again + "@!P0 BRA"))
    assert instructions(code, PLAIN, 0x210) == (10, 12, 0)


def test_a_constant_before_the_last_sum_is_not_late() -> None:
    shuffle = "SHFL.BFLY PT, R9, R3, 0x1, 0x1f ;\n"
    early = LINES.replace("FMUL R4", f"{shuffle}FMUL R4")
    assert instructions(kernel(early), SCALED, 0x210) == (12, 12, 0)


def test_a_kernel_that_does_not_do_what_the_op_does_is_refused() -> None:
    with pytest.raises(SystemExit, match="no way through row_kernel RMS 0 1 0 0"):
        instructions(kernel(LINES.replace("STG", "STS")), PLAIN, 0x210)
    with pytest.raises(SystemExit, match="a loop"):
        instructions(
            kernel(LINES.replace("L_x_1) ;", "L_x_0) ;").replace("\nULDC", "\n.L_x_0:\nULDC", 1)),
            PLAIN,
            0x210,
        )


def test_no_kernel_of_the_table_spills() -> None:
    rows = read(RESULTS / "sass.csv")
    assert {row["dtype"] for row in rows} == {"float", "half", "bfloat16"}
    assert all(row["spilled_bytes"] == "0" for row in rows)


def test_constants_are_late_in_blocks_of_few_registers_alone() -> None:
    """Before the sums of a row, but where 4 vectors of elements of 2 bytes leave no registers."""
    for row in read(RESULTS / "sass.csv"):
        tight = row["dtype"] != "float" and row["kernel"].startswith("row_kernel")
        assert int(row["late_constants"]) <= (8 if "LAYER" in row["kernel"] else 1) * tight, row
