"""Counts what the CUDA kernels issue: registers, spills and instructions, of their machine code.

    python -m benchmarks.sass [--sm 90] [--out benchmarks/results/sass.csv] [--cubins build/sass]

Compiles the kernels as custom_ops/cuda/cuda.cmake does, for one architecture, disassembles them by
nvdisasm, lists every one in sass_kernels.csv, and walks the kernels of CASES like a warp whose
threads all have their vectors: operands that the op lacks are null, and branches on them go where
null sends them. Both ways of any other branch are walked, and the longest counts that loads and
stores what the op does; of LayerNorm, the way that sums least, and the way that sums most. Every
instruction counts once, also where its predicate is false: it takes an issue slot all the same.
Needs no GPU: nvcc, and nvdisasm of a CUDA toolkit or of PyPI's nvidia-cuda-nvdisasm. Exits 1 where
an op is above its bar, or registers are spilled.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace as Row  # without conditions: it depends on nvcc alone
from typing import Any

from benchmarks.harness import arguments
from benchmarks.rows import RESULTS, tell, write

ROOT = Path(__file__).parents[1]
TYPES = ("float", "half", "bfloat16")
# Offsets in onnxfold::Arguments (custom_ops/include/onnxfold/kernels.h), the first parameter.
OPERANDS = {"linear_bias": 16, "scale": 24, "bias": 32, "sum": 48}
NULL, POINTER = (0, 0), (16, 1)  # the words of an address


@dataclass(frozen=True, slots=True)
class Case:
    """An op at a row length: its kernel by the plan for many rows, and its allowed maximum."""

    op: str
    size: int
    kernel: str  # name, statistics, residual, width of short rows, vectors, shifted, extended
    operands: tuple[str, ...] = ()
    bar: int | None = None  # of fewest, in float16


CASES = (
    Case("RMSNormScale", 64, "short_rows_kernel RMS 0 8 1 0 0", ("scale",), 100),
    Case("RMSNormScale", 1024, "short_rows_kernel RMS 0 32 4 0 0", ("scale",)),
    Case("RMSNorm", 4096, "row_kernel RMS 0 4 0 0"),
    Case("RMSNormScale", 4096, "row_kernel RMS 0 4 0 0", ("scale",), 340),
    Case("LayerNormAffine", 64, "short_rows_kernel LAYER 0 8 1 0 0", ("scale", "bias")),
    Case("LayerNorm", 4096, "row_kernel LAYER 0 4 0 0"),
    Case("LayerNormScale", 4096, "row_kernel LAYER 0 4 0 0", ("scale",), 480),
    Case("LayerNormAffine", 4096, "row_kernel LAYER 0 4 0 0", ("scale", "bias")),
    Case("AddRMSNormScale", 4096, "row_kernel RMS 1 4 0 0", ("scale",)),
    Case("AddRMSNormScaleWithSum", 4096, "row_kernel RMS 1 4 0 0", ("scale", "sum"), 530),
    Case("AddBiasLayerNormAffineWithSum", 4096, "row_kernel LAYER 1 4 0 0", tuple(OPERANDS)),
)
STATISTICS = ("RMS", "LAYER", "CENTER", "CRMS", "CRMS_FULL", "ROW")  # kernels.h


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of nvdisasm: predicate ("!P0", or none), name, operands."""

    predicate: str
    name: str
    operands: tuple[str, ...]


@dataclass(slots=True)
class Kernel:
    """The code of a kernel; labels are indices into it."""

    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


# Known predicates and words of registers, sorted.
Facts = tuple[tuple[str, int], ...]
# Loads of x and residual, of constants; stores; shuffles; constants loaded since the last of these.
Traffic = tuple[int, int, int, int, int]


def readable(mangled: str) -> str:
    """The kernel's name and template arguments without its element type, as in CASES."""
    found = re.search(
        r"(short_rows_kernel|row_kernel|loop_kernel|measure_part_kernel|normalise_part_kernel)"
        r"I(?:f|N\w*?(?:Half|BFloat16)E)(.*?)EEv",
        mangled,
    )
    if found is None:
        return mangled
    text = re.sub(
        r"LN\w*?Statistics\w*?E(\d)E", lambda m: f" {STATISTICS[int(m[1])]}", found[2] + "E"
    )
    return found[1] + re.sub(r"L[bi](\d+)E", r" \1", text).removesuffix("E")


LINE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@(!?U?P\w+)\s+)?([\w.]+)\s*(.*?)\s*;?\s*$")


def disassembled(text: str) -> dict[str, Kernel]:
    """The kernels of a listing by nvdisasm, by their readable names."""
    kernels: dict[str, Kernel] = {}
    kernel = Kernel()
    for line in text.splitlines():
        if found := re.match(r"\.text\.(\w+):", line):
            kernel = kernels.setdefault(readable(found[1]), Kernel())
        elif found := re.match(r"\.(L_x_\d+):", line):
            kernel.labels[found[1]] = len(kernel.code)
        elif found := LINE.search(line):
            operands = tuple(part.strip() for part in found[3].split(",")) if found[3] else ()
            kernel.code.append(Instruction(found[1] or "", found[2], operands))
    return kernels


def parameters(operands: tuple[str, ...], base: int) -> dict[int, int]:
    """The words of the parameters that tell which operands an op has, by their offset."""
    words: dict[int, int] = {}
    for name, offset in OPERANDS.items():
        low, high = POINTER if name in operands else NULL
        words |= {base + offset: low, base + offset + 4: high}
    return words


class Walk:
    """All ways through a kernel that an op may take; `ends` has the longest for each traffic."""

    def __init__(self, kernel: Kernel, words: Mapping[int, int]) -> None:
        self.kernel, self.words = kernel, words
        self.ends: dict[Traffic, int] = {}
        self.reached: list[dict[tuple[Facts, Traffic], int]] = [{} for _ in kernel.code]
        self.arrive(0, {"PT": 1, "UPT": 1, "RZ": 0, "URZ": 0}, (0, 0, 0, 0, 0), 0)
        for index, states in enumerate(self.reached):
            for (facts, traffic), count in states.items():
                self.step(index, dict(facts), traffic, count)

    def arrive(self, index: int, facts: Mapping[str, int], traffic: Traffic, count: int) -> None:
        states, key = self.reached[index], (tuple(sorted(facts.items())), traffic)
        states[key] = max(count, states.get(key, 0))

    def step(self, index: int, facts: dict[str, int], traffic: Traffic, count: int) -> None:
        code = self.kernel.code[index]
        count += 1
        taken = self.truth(code.predicate, facts)
        if code.name in ("EXIT", "BRA"):
            if taken is not False:
                self.leave(index, code, facts, traffic, count)
            if taken is not True:
                self.arrive(index + 1, facts, traffic, count)
            return
        if code.name.startswith(("CALL", "BRX", "JMP", "RET")):
            raise SystemExit(f"a kernel has {code.name}, which this does not follow")
        if code.name.startswith(("LDG", "STG", "SHFL")) and taken is not False:
            traffic = counted(code.name, traffic)
        self.learn(code, facts, taken)
        self.arrive(index + 1, facts, traffic, count)

    def leave(
        self, index: int, code: Instruction, facts: dict[str, int], traffic: Traffic, count: int
    ) -> None:
        if code.name == "EXIT":
            self.ends[traffic] = max(count, self.ends.get(traffic, 0))
            return
        label = re.search(r"L_x_\d+", code.operands[-1])
        target = self.kernel.labels[label[0]] if label else -1
        if target <= index:
            raise SystemExit("a kernel has a loop, which this does not follow")
        self.arrive(target, facts, traffic, count)

    def truth(self, predicate: str, facts: Mapping[str, int]) -> bool | None:
        """Return whether it is true; None if unknown."""
        if not predicate:
            return True
        known = facts.get(predicate.lstrip("!"))
        return None if known is None else bool(known) != predicate.startswith("!")

    def value(self, operand: str, facts: Mapping[str, int]) -> int | None:
        if found := re.fullmatch(r"c\[0x0\]\[(0x[0-9a-f]+)\]", operand):
            return self.words.get(int(found[1], 16))
        return facts.get(operand.removesuffix(".reuse"))

    def learn(self, code: Instruction, facts: dict[str, int], taken: bool | None) -> None:
        """What is known after an instruction of registers and predicates."""
        results = self.results(code, facts) if taken is True else {}
        for name in written(code):
            facts.pop(name, None)
        facts |= {k: v for k, v in results.items() if k not in ("PT", "UPT", "RZ", "URZ")}

    def results(self, code: Instruction, facts: Mapping[str, int]) -> dict[str, int]:
        name, operands = code.name, code.operands
        if name in ("ULDC", "ULDC.64", "LDC", "LDC.64"):
            found = re.fullmatch(r"c\[0x0\]\[(0x[0-9a-f]+)\]", operands[1])
            if found is None:
                return {}
            words = [self.words.get(int(found[1], 16) + 4 * i) for i in range(2)]
            names = [operands[0], following(operands[0], 1)]
            pairs = list(zip(names, words, strict=True))[: 2 if name.endswith("64") else 1]
            return {register: word for register, word in pairs if word is not None}
        if re.fullmatch(r"U?ISETP\.(NE|EQ)(\.U32)?\.AND(\.EX)?", name):
            a, b = (self.value(operand, facts) for operand in operands[2:4])
            if a is None or b is None or operands[4] not in ("PT", "UPT"):
                return {}
            result: bool | None = (a == b) == (".EQ" in name)
            if ".EX" in name:
                low = self.truth(operands[5], facts)
                if low is None:
                    return {}
                result = (result and low) if ".EQ" in name else (result or low)
            return {operands[0]: int(bool(result))}
        if re.fullmatch(r"U?ISETP\.\w+(\.U32)?\.OR", name):  # never false where the last one holds
            return {operands[0]: 1} if self.truth(operands[4], facts) else {}
        if (
            re.fullmatch(r"U?ISETP\.\w+(\.U32)?\.AND", name)
            and self.truth(operands[4], facts) is False
        ):
            return {operands[0]: 0}
        if name == "PLOP3.LUT":
            inputs = [self.truth(operand, facts) for operand in operands[2:5]]
            table = int(operands[5], 16)
            possible = {table >> (i & 7) & 1 for i in range(8) if agrees(i, inputs)}
            return {operands[0]: possible.pop()} if len(possible) == 1 else {}
        if name in ("MOV", "UMOV") and (word := self.value(operands[1], facts)) is not None:
            return {operands[0]: word}
        return {}


def agrees(index: int, inputs: list[bool | None]) -> bool:
    """Whether the row of a table of three inputs is one that they may select."""
    bits = (index >> 2 & 1, index >> 1 & 1, index & 1)
    return all(known is None or known == bool(bit) for known, bit in zip(inputs, bits, strict=True))


def following(register: str, by: int) -> str:
    return re.sub(r"\d+", lambda m: str(int(m[0]) + by), register)


def written(code: Instruction) -> Iterator[str]:
    """Every register that an instruction may write: up to four from its first operand on."""
    if code.name.startswith(("STG", "STS", "BAR", "BSSY", "BSYNC", "NOP", "WARPSYNC")):
        return
    for operand in code.operands[:2]:
        if re.fullmatch(r"U?P\d", operand):
            yield operand
    if code.operands and re.fullmatch(r"U?R\d+", code.operands[0]):
        words = 4 if ".128" in code.name else 2 if re.search(r"\.64|WIDE|^CS2R", code.name) else 1
        for by in range(words):
            yield following(code.operands[0], by)


def counted(name: str, traffic: Traffic) -> Traffic:
    loads, constants, stores, shuffles, late = traffic
    if name.startswith("STG"):
        return loads, constants, stores + 1, shuffles, late
    if name.startswith("SHFL"):
        return loads, constants, stores, shuffles + 1, 0
    constant = "CONSTANT" in name
    return loads + (not constant), constants + constant, stores, shuffles, late + constant


def instructions(kernel: Kernel, case: Case, base: int) -> tuple[int, int, int]:
    """Of a warp whose threads have all their vectors: where it shuffles least, and most.

    And the constants that it loads after the last sum, where it shuffles least.
    """
    words = case.kernel.split()
    vectors, residual = int(words[-3]), words[2] == "1"
    ends = Walk(kernel, parameters(case.operands, base)).ends
    constants = vectors * len({"linear_bias", "scale", "bias"} & set(case.operands))
    stores = vectors * (1 + ("sum" in case.operands))
    full = {
        traffic: count
        for traffic, count in ends.items()
        if traffic[0] == vectors * (1 + residual)
        and traffic[1] >= constants
        and traffic[2] >= stores
    }
    if not full:
        raise SystemExit(f"{case.op}: no way through {case.kernel} does what the op does: {ends}")
    # Kernels that load what they do not need, by a false predicate, are not walked for free.
    least = min((traffic[1], traffic[2]) for traffic in full)
    ways = {traffic[3:]: count for traffic, count in full.items() if traffic[1:3] == least}
    return ways[min(ways)], ways[max(ways)], min(ways)[1]


def compiled(folder: Path, dtype: str, sm: int) -> tuple[Path, dict[str, tuple[int, int]]]:
    """The cubin of one element type; registers and spilled bytes of each kernel."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise SystemExit("needs nvcc")
    cubin = folder / f"{dtype}_{sm}.cubin"
    source = ROOT / "custom_ops" / "cuda" / f"kernels_{dtype}.cu"
    command = [nvcc, "-std=c++17", "-O3", f"-I{ROOT / 'custom_ops' / 'include'}", "-Xptxas=-v"]
    command += [f"-gencode=arch=compute_80,code=sm_{sm}", "-cubin", str(source), "-o", str(cubin)]
    log = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    pattern = r"Compiling entry function '(\S+)'.*?(\d+) bytes spill stores.*?Used (\d+) registers"
    facts = {readable(m[0]): (int(m[2]), int(m[1])) for m in re.findall(pattern, log, re.DOTALL)}
    return cubin, facts


def nvcc_version() -> str:
    told = subprocess.run(["nvcc", "--version"], check=True, capture_output=True, text=True)  # noqa: S607
    found = re.search(r"release [\d.]+, V([\d.]+)", told.stdout)
    return found[1] if found else ""


Listing = tuple[dict[str, Kernel], dict[str, tuple[int, int]]]


def listed(dtype: str, sm: int, folder: Path, nvdisasm: str) -> Listing:
    """The kernels of one element type, and the registers and spilled bytes of each."""
    cubin, facts = compiled(folder, dtype, sm)
    listing = subprocess.run([nvdisasm, "-c", cubin], check=True, capture_output=True, text=True)
    return disassembled(listing.stdout), facts


def every_kernel(about: Mapping[str, Any], listing: Listing) -> Iterator[Row]:
    """Yield each kernel: its registers, spilled bytes, and instructions on all ways together."""
    kernels, facts = listing
    for name in sorted(facts):
        used = sum(1 for line in kernels[name].code if line.name != "NOP")
        registers, spilled = facts[name]
        counts = {"registers": registers, "spilled_bytes": spilled, "instructions": used}
        yield Row(**about, kernel=name, **counts)


def rows_of(about: Mapping[str, Any], listing: Listing) -> Iterator[Row]:
    """Yield each op: the kernel's registers and spilled bytes, and the instructions of a warp.

    ``late_constants``: vectors of scale and bias that a thread loads after the last sum of the row.
    """
    kernels, facts = listing
    base = 0x210 if about["sm"] >= 90 else 0x160  # where the parameters begin in constant bank 0
    for case in CASES:
        registers, spilled = facts[case.kernel]
        fewest, most, late = instructions(kernels[case.kernel], case, base)
        yield Row(
            **about,
            op=case.op,
            size=case.size if about["dtype"] != "float" else case.size // 2,
            kernel=case.kernel,
            registers=registers,
            spilled_bytes=spilled,
            fewest=fewest,
            most=most,
            late_constants=late,
            bar=case.bar if about["dtype"] == "half" else None,
        )


def main() -> int:
    """Count, write the tables; 1 where a bar is missed."""
    options = arguments(
        __doc__,
        {
            "--sm": 90,
            "--types": TYPES,
            "--out": RESULTS / "sass.csv",
            "--cubins": ROOT / "build" / "sass",
            "--nvdisasm": {"default": shutil.which("nvdisasm")},
        },
    )
    if options.nvdisasm is None:
        raise SystemExit("needs nvdisasm: pip install nvidia-cuda-nvdisasm, and --nvdisasm PATH")
    options.cubins.mkdir(parents=True, exist_ok=True)
    rows, kernels = list[Row](), list[Row]()
    for dtype in options.types:
        listing = listed(dtype, options.sm, options.cubins, options.nvdisasm)
        about = {"nvcc": nvcc_version(), "sm": options.sm, "dtype": dtype}
        rows += rows_of(about, listing)
        kernels += every_kernel(about, listing)
    write(options.out, rows)
    write(options.out.with_stem(f"{options.out.stem}_kernels"), kernels)
    tell(rows)
    spilling = [row for row in kernels if row.spilled_bytes]
    missed = [row for row in rows if row.fewest > (row.bar or row.fewest)]
    print(f"{len(spilling)} kernels spill, {len(missed)} bars are missed")
    tell([*spilling, *missed])
    return int(bool(missed or spilling))


if __name__ == "__main__":
    sys.exit(main())
