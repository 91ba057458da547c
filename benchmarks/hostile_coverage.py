"""Coverage-guided mutants (atheris): `python -m benchmarks.hostile_coverage FOLDER -runs=20000`.

FOLDER contains the corpus, which starts with the seeds of `tests/hostile`; the other arguments are
libFuzzer's. Loading, inspecting and optimizing (without the check, which runs other code) run in
this process; any exception but ours, and any file left by a failure, ends the run, and libFuzzer
then keeps the input. Mutations of messages alternate with libFuzzer's own mutations of bytes.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["onnxfold"]):
    import onnxfold
    from onnxfold import api  # noqa: F401  # instrumented now, for inspect imports it late
    from onnxfold.errors import OnnxfoldError

from tests.hostile.campaign import seeds
from tests.hostile.mutation import MODEL, message_mutant

_FOLDER = Path(tempfile.mkdtemp(prefix="hostile-"))


def _try(data: bytes) -> None:
    path, output = _FOLDER / MODEL, _FOLDER / "out" / MODEL
    path.write_bytes(data)
    output.parent.mkdir()
    try:
        onnxfold.inspect(path)
        onnxfold.optimize(path, output, check=None)
    except OnnxfoldError as error:
        if not str(error):
            raise ValueError("a refusal without a sentence") from error
        if any(output.parent.iterdir()):
            raise ValueError("a failure left files") from error
    finally:
        shutil.rmtree(output.parent)


def _mutate(data: bytes, limit: int, seed: int) -> bytes:
    rng = random.Random(seed)  # noqa: S311 # no secret
    if rng.random() < 0.5 or not data:
        return bytes(atheris.Mutate(data, limit))
    changed = message_mutant(bytes(data), rng).files[MODEL]
    return changed if len(changed) <= limit else bytes(data)


def main() -> None:
    corpus = Path(sys.argv[1])
    corpus.mkdir(parents=True, exist_ok=True)
    for number, raw in enumerate(seeds()):
        if len(raw) < 20_000:
            (corpus / f"seed_{number:04}.onnx").write_bytes(raw)
    arguments = [sys.argv[0], str(corpus), "-max_len=20000", "-timeout=60", *sys.argv[2:]]
    atheris.Setup(arguments, _try, custom_mutator=_mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
