"""Models rewritten by code in which one decision or number is wrong, and what the proof says.

    python -m benchmarks.code_flips [--count 300] [--seed 0] [--modules onnxfold/passes ...]

A flip turns a decision around, moves a number by one, swaps two operators or branches, or leaves
out a call whose name says that it edits. A forked process with the broken function rewrites the
models that reach it with ``check=0``, so that the proof alone may object, and this process compares
the result with the original in float64. The outcomes of a flip are counted: the same function as
before, an error, a model that no runtime takes, a refusal by the proof, and a wrong model that was
proved, which must be 0. Rows go to benchmarks/results/code_flips.csv; a flip that is there is not
tried again.
"""

from __future__ import annotations

import ast
import gc
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import _lru_cache_wrapper
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import onnx

import onnxfold
from benchmarks.decisions import ROOT, Functions, Mutant, living, mutants_of, put_in, turned
from benchmarks.harness import arguments
from benchmarks.mutants import in_a_child
from benchmarks.rows import RESULTS, Row, append, read
from onnxfold.errors import OnnxfoldError
from onnxfold.inputs import InputSpec, make_inputs
from onnxfold.model_io.load import open_source
from tests.graphs import LOOP_OF_STATES, model, weights
from tests.operators.sample import Array
from tests.soundness.checking import ERRORS, compared, line
from tests.soundness.float64 import evaluate
from tests.soundness.random_graphs import RandomGraph, random_graph

_MODULES = (
    "onnxfold/passes",
    "onnxfold/graph/edit.py",
    "onnxfold/operators/facets.py",
    "onnxfold/operators/bodies.py",
    "onnxfold/operators/functions.py",
    "onnxfold/pipeline/finalize.py",
    "onnxfold/pipeline/folding.py",
    "onnxfold/targets",
    "onnxfold/weights",
)
_OPERATORS: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
}
_EDITS = (
    "add",
    "append",
    "extend",
    "insert",
    "put",
    "redirect",
    "remove",
    "replace",
    "set_",
    "update",
)
_LIMIT_S = 60  # of processor time, for a rewrite of a second
_RANDOM = 10
_OUTCOMES = "same", "error", "invalid", "refused", "wrong"
_FILES: Sequence[tuple[str, dict[str, Any]]] = (
    ("models/digits_vit/digits_vit.onnx", {}),
    ("tests/recipes/bloom-560m.onnx", {"target": "kernels"}),
    ("tests/recipes/convnext-t.onnx", {"target": "kernels", "fuse_affine": "always"}),
    ("tests/recipes/dinov2-small.onnx", {"target": "ort"}),
    ("tests/recipes/gpt2.onnx", {"target": "ort", "fuse_affine": "always"}),
    ("tests/recipes/swin-t.onnx", {"fold": "always"}),
    ("tests/recipes/whisper-tiny-encoder.onnx", {"norm_form": "op"}),
    ("tests/recipes/llama-small.onnx", {"fuse_affine": "always"}),
    ("tests/recipes/opt-125m.onnx", {"defer": "all", "fuse_affine": "always"}),
    ("tests/recipes/gpt2.onnx", {"rotate": "random"}),
    ("tests/recipes/pythia-160m.onnx", {"split_gamma": 0.5}),
    ("tests/recipes/vit-b16.onnx", {"scale_streams": 2}),
    ("tests/recipes/vit-b16.onnx", {"to": "crms", "change_readers": True}),
    ("tests/recipes/vit-b16.onnx", {"to": "crms"}),
)
_MATRICES = {"W": (8, 8), "V": (8, 8), "H": (8, 4), "K": (8, 4), "words": (5, 8), "kinds": (4, 8)}
_SIZES = _MATRICES | {"c": (8,), "g": (8,), "gamma": (8,), "beta": (8,)}
_LAST = "n = LayerNormalization<epsilon=0.01>(h, gamma, beta) y = MatMul(n, V)"
# Inputs beside x, and nodes: what a working copy has otherwise.
_TEXTS: Mapping[str, tuple[str, str]] = {
    "skip": ("", "p = MatMul(x, W) n, , , s = com.microsoft.SkipLayerNormalization<epsilon=0.01>"
             "(p, x, gamma, beta, c) m = MatMul(n, V) y = Add(m, s)"),
    "skip rms": ("", "p = MatMul(x, W) n, , , s = com.microsoft.SkipSimplifiedLayerNormalization"
                 "<epsilon=0.01>(p, x, gamma, c) m = MatMul(n, V) y = Add(m, s)"),
    "embed": ("", "n, i = com.microsoft.EmbedLayerNormalization<epsilon=0.01>(ids, ids, words, W, "
              "kinds, gamma, beta) m = MatMul(n, V) y = Add(m, x)"),
    "joined": ("", "p = MatMul(x, H) q = MatMul(x, K) h = Concat<axis=-1>(p, q) " + _LAST),
    "factors": ("", "a = Mul(g, x) b = Mul(a, c) p = MatMul(b, W) q = Add(p, c) h = Add(q, g) "
                + _LAST),
    "parts": ("", "v, w = Split<axis=1>(W, halves) p = MatMul(x, v) q = MatMul(x, w) "
              "h = Concat<axis=-1>(p, q) " + _LAST),
    "constants": ("", "o = Mul(g, c) p = MatMul(x, W) q = Mul(p, o) i = Identity(q) h = Add(i, o) "
                  + _LAST),
    "sequence": ("", "q = SplitToSequence<axis=0, keepdims=0>(x) s = SequenceAt(q, one) "
                 "p = MatMul(s, W) r = Add(x, p) h = MatMul(r, W) " + _LAST),
    "states": ("", LOOP_OF_STATES.format("k", "l")),
    "changed states": ("", LOOP_OF_STATES.format("l", "k")),
    "gather": ("", "p = MatMul(x, W) q = ReduceMean<axes=[1], keepdims=1>(p) r = Gather<axis=2>"
               "(q, places) h = Identity(r) " + _LAST),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Subject:
    """A model with options, its outputs in float64, and what the code as it is makes of it."""

    name: str
    graph: RandomGraph
    options: dict[str, Any]
    expected: Sequence[Array] = ()
    rewritten: bytes = b""
    lines: Set[tuple[str, int]] = frozenset()
    seconds: float = 0.0


def wrong(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what an expression may be turned into, beside what ``turned`` makes of decisions."""
    yield from turned(node)
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        yield ast.BinOp(node.left, _OPERATORS[type(node.op)](), node.right)
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.Call) and _is_an_edit(node):
        yield ast.Constant(None)


def _is_an_edit(call: ast.Call) -> bool:
    """Whether a call's name says that it changes something."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name.lstrip("_").startswith(_EDITS)


def subjects() -> list[Subject]:
    """Return the models, with what the code as it is makes of them, the quick first."""
    made = [Subject(name, graph, options) for name, graph, options in _drawn()]
    return sorted(map(_as_it_is, made), key=lambda subject: subject.seconds)


def _drawn() -> Iterator[tuple[str, RandomGraph, dict[str, Any]]]:
    for path, options in _FILES:
        yield f"{path} {options}", _fed(onnx.load(ROOT / path)), options
    called = onnxfold.optimize(onnx.load(ROOT / _FILES[-1][0]), check=0, target="kernels").model
    for conversion in ("rms", "layer"):
        compressed = onnxfold.convert(called, check=0, to="crms", target="kernels").model
        yield f"back to {conversion}", _fed(compressed), {"to": conversion}
    yield "calls of ours", _fed(called), {"target": "onnx"}
    for name, (inputs, body) in _TEXTS.items():
        typed = f"float[2,3,8] x{inputs}"
        graph = model(body, typed, "float[A,B,C] y", _weights(), 17, dtype=np.float32)
        yield name, _fed(graph), {"fuse_affine": "always"}
    for seed in range(_RANDOM):
        target = ("onnx", "kernels", "ort")[seed % 3]
        options = {"target": target, "fold": "always", "fuse_affine": "always"}
        yield f"random {seed}", random_graph(seed), options | {"defer": ("off", "all")[seed % 2]}


def _fed(proto: onnx.ModelProto) -> RandomGraph:
    return RandomGraph(proto, _feeds(proto), Counter())


def _feeds(proto: onnx.ModelProto) -> dict[str, Array]:
    return make_inputs(open_source(proto).model, InputSpec(), count=1, seed=0)[0]


def _weights() -> dict[str, np.ndarray]:
    made: dict[str, np.ndarray] = dict(weights(**_SIZES))
    whole = {"halves": [4, 4], "places": range(8), "all": [-1], "ids": [[0, 2, 1], [3, 1, 0]]}
    made |= {name: np.array(numbers) for name, numbers in whole.items()}
    return made | {
        "steps": np.array(3),
        "one": np.array(1),
        "yes": np.array(True),
        "ids": np.array(whole["ids"], "i4"),
    }


def _as_it_is(subject: Subject) -> Subject:
    """Note what the code as it is makes of a subject, and which lines it runs for it."""
    lines: set[tuple[str, int]] = set()

    def note(frame: FrameType, _event: str, _arg: object) -> Any:
        path = frame.f_code.co_filename
        if not path.startswith(f"{ROOT}/onnxfold"):
            return None
        lines.add((path.removeprefix(f"{ROOT}/"), frame.f_lineno))
        return note

    start = time.process_time()
    _rewritten(subject)
    seconds = time.process_time() - start
    sys.settrace(note)
    said, rewritten = _rewritten(subject)
    sys.settrace(None)
    expected = evaluate(subject.graph.model, subject.graph.feeds, subject.graph.operators)
    made = onnx.ModelProto.FromString(rewritten)
    failure, error = compared(subject.graph, made, expected)
    print(
        f"{subject.name:60} {seconds:5.2f} s, off by {error:.0e} {said} {failure or ''}", flush=True
    )
    return replace(subject, expected=expected, rewritten=rewritten, lines=lines, seconds=seconds)


def _rewritten(subject: Subject) -> tuple[str, bytes]:
    """Return what the report says of parts that were left out, and the model."""
    call = onnxfold.convert if "to" in subject.options else onnxfold.optimize
    result = call(subject.graph.model, check=0, **subject.options)
    left = result.report.get("left_out") or ()
    return "; ".join(each["reason"] for each in left), result.model.SerializeToString()


class Judge:
    """Counts the outcomes of flips on the subjects that reach them."""

    def __init__(self, of: list[Subject], each: int) -> None:
        self._subjects, self._each = of, each
        self._functions: Functions = living()
        caches = [one for one in gc.get_objects() if type(one) is _lru_cache_wrapper]
        self._caches = [one for one in caches if one.__module__.startswith("onnxfold.")]
        gc.freeze()

    def row(self, flip: Mutant) -> Row | None:
        """Return the row of a flip, or None where no subject reaches it."""
        reach = [each for each in self._subjects if (flip.module, flip.line) in each.lines]
        tally: Counter[str] = Counter()
        seen = ""
        for subject in reach[: self._each]:
            outcome, why = self._outcome(flip, subject)
            tally[outcome] += 1
            if outcome == "wrong":
                seen = f"{subject.name}: {why}"
                break
        if not tally or "import" in tally:
            return None
        counts = {word: tally[word] for word in _OUTCOMES}
        columns = {"module": flip.module, "line": flip.line, "before": flip.before}
        return Row(**columns, after=flip.after, **counts, seen=seen)

    def _outcome(self, flip: Mutant, subject: Subject) -> tuple[str, str]:
        with tempfile.NamedTemporaryFile() as file:
            said = in_a_child(lambda: self._child(flip, subject, Path(file.name)), _LIMIT_S)
            made = Path(file.name).read_bytes()
        word, _, why = said.partition(": ")
        if word not in ("same", "refused"):
            return ("import" if word == "import" else "error"), said
        if made == subject.rewritten:
            return word, why
        rewritten = onnx.ModelProto.FromString(made)
        failure, _ = compared(subject.graph, rewritten, subject.expected)
        if failure is None:
            return word, why
        return ("wrong" if failure.startswith("numbers") else "invalid"), failure

    def _child(self, flip: Mutant, subject: Subject, path: Path) -> str:
        for one in self._caches:
            one.cache_clear()
        if not put_in(flip.codes, self._functions):
            return "import"
        try:
            said, made = _rewritten(subject)
        except (OnnxfoldError, *ERRORS, MemoryError) as error:
            return f"error: {line(error)}"
        path.write_bytes(made)
        return f"refused: {said}" if said else "same"


def _place(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    return row["module"], str(row["line"]), row["before"], row["after"]


def _flips(modules: Sequence[str]) -> list[Callable[[], Mutant]]:
    """Return the makers of all flips of these modules, which are imported."""
    every: list[Callable[[], Mutant]] = []
    for path in sorted((ROOT / "onnxfold").rglob("*.py")):
        name = path.relative_to(ROOT)
        if str(name).startswith(tuple(modules)):
            every += mutants_of(path, len(every), wrong)
            import_module(".".join(name.with_suffix("").parts))
    print(f"{len(every)} flips", flush=True)
    return every


def main() -> int:
    options = arguments(
        __doc__,
        {
            "--count": 300,
            "--seed": 0,
            "--each": {"type": int, "default": 6, "help": "of how many subjects for each flip"},
            "--modules": {"nargs": "+", "default": _MODULES, "help": "what their paths begin with"},
            "--keep": {"type": Path, "default": RESULTS / "code_flips.csv"},
        },
    )
    flips = _flips(options.modules)
    judge = Judge(subjects(), options.each)
    known = {_place(row) for row in (read(options.keep) if options.keep.exists() else ())}
    tally: Counter[str] = Counter()
    for index in np.random.default_rng(options.seed).permutation(len(flips)):
        flip = flips[index]()
        if tuple(map(str, flip.place)) in known:
            continue
        row = judge.row(flip)
        if row is None:
            continue
        append(options.keep, [row])
        worst = next(word for word in _OUTCOMES[::-1] if getattr(row, word))
        tally[worst] += 1
        print(f"{worst:8} {flip} {row.seen}", flush=True)
        if sum(tally.values()) == options.count:
            break
    print(dict(tally))
    return 1 if tally["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
