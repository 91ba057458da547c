"""docs/adding_a_target.md names one file: with its two entries, the package has a new target."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import onnx

ROOT = Path(__file__).resolve().parents[2]
_MODEL = ROOT / "models/digits_vit/digits_vit.onnx"


def _package(place: Path, member: str, row: str) -> None:
    """Copy the package, with the entries of a target as the page prints them."""
    shutil.copytree(ROOT / "onnxfold", place / "onnxfold", ignore=shutil.ignore_patterns("__pyc*"))
    module = place / "onnxfold" / "target.py"
    text = module.read_text(encoding="utf-8")
    text = re.sub(r'(    KERNELS = "kernels"\n)', lambda found: found[1] + member, text)
    assert text.endswith("}\n")
    module.write_text(text[:-2] + row + "}\n", encoding="utf-8")
    # An editable installation puts a finder before every path: without it the copy is imported.
    finders = (
        "import sys\nsys.meta_path = [each for each in sys.meta_path if isinstance(each, type)]\n"
    )
    (place / "sitecustomize.py").write_text(finders, encoding="utf-8")


def _run(place: Path, *arguments: str) -> str:
    run = [sys.executable, "-m", "onnxfold", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(place)}
    done = subprocess.run(
        run, check=False, cwd=place, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_target_is_two_entries_of_one_file(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "adding_a_target.md").read_text(encoding="utf-8")
    _, member, row = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    _package(tmp_path, member, row)
    printed = _run(tmp_path, "optimize", "--help").replace("│", " ")
    assert "for an engine in which means are dear" in " ".join(printed.split())
    given = ("optimize", str(_MODEL), "-o", "out.onnx", "--target", "engine", "--json")
    report = json.loads(_run(tmp_path, *given))
    assert report["verification"]["passed"]
    assert report["inspect"]["summary"]["folded"] > 0
    notes = {each.key: each.value for each in onnx.load(tmp_path / "out.onnx").metadata_props}
    assert json.loads(notes["onnxfold"])["target"] == "engine"
