"""The command in a process of its own: shells, terminals, full devices, unfit packages."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

import onnxfold
from tests.builders import chain_model


def ran(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python with these words."""
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_chain_of_every_target_runs_from_a_shell(tmp_path: Path) -> None:
    """One real process, so that entry point, imports and exit code are the shipped ones."""
    onnx.save(chain_model(), tmp_path / "m.onnx")
    words = "-m onnxfold optimize m.onnx -o o.onnx --fold always".split()
    done = ran(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 of 1 LayerNorm folds" in done.stdout
    assert done.stderr == ""


def test_help_teaches_without_loading_anything_heavy() -> None:
    code = (
        "import sys; sys.argv = ['onnxfold', '--help']\n"
        "from onnxfold.cli.application import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = ('numpy', 'onnx', 'onnx_ir', 'onnxruntime', 'scipy')\n"
        "print([module for module in heavy if module in sys.modules])"
    )
    done = ran("-c", code)
    assert done.returncode == 0
    assert "Usage: onnxfold [OPTIONS]" in done.stdout
    assert "optimize" in done.stdout
    assert "Exit codes" in done.stdout
    assert done.stdout.strip().endswith("[]")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full here")
def test_an_output_that_takes_nothing_is_one_line(model: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "onnxfold", "inspect", str(model), "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 3
    assert done.stderr.splitlines()[0] == (
        "onnxfold: what there is to say cannot be written: No space left on device"
    )
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="a shell that closes streams")
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_stream_gets_nothing(model: Path, closed: str) -> None:
    words = f"{sys.executable} -m onnxfold optimize {model} -o {model.parent}/out.onnx {closed}"
    done = subprocess.run(words, shell=True, capture_output=True, text=True, check=False)  # noqa: S602
    assert (done.returncode, done.stderr) == (0, "")
    assert (model.parent / "out.onnx").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of another kind")
@pytest.mark.parametrize(
    "words",
    ["--help", "inspect {}", "inspect {} --json", "optimize {} --dry-run", "inspect no.onnx"],
)
def test_a_pipe_that_nobody_reads_ends_it_without_a_word(model: Path, words: str) -> None:
    """As `onnxfold ... | head -1` does; of an error the stream of errors is the pipe."""
    reader, writer = os.pipe()
    os.close(reader)
    streams = {"stdout": writer, "stderr": subprocess.PIPE}
    if "no.onnx" in words:
        streams = {"stdout": subprocess.PIPE, "stderr": writer}
    command = [sys.executable, "-m", "onnxfold", *words.format(model).split()]
    with subprocess.Popen(command, **streams, cwd=model.parent) as process:
        os.close(writer)
        said = process.communicate(timeout=60)
    assert (process.returncode, b"".join(filter(None, said))) == (141, b"")
    assert os.listdir(model.parent) == ["model.onnx"]


def test_an_encoding_without_a_character_escapes_it(model: Path) -> None:
    words = ("-m", "onnxfold", "measure", str(model), "--rows", "1")
    done = ran(*words, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert "\\xb1" in done.stdout


@pytest.mark.parametrize("arguments", [("measure", "--data"), ("triton", "--repository")])
def test_a_name_that_is_too_long_is_no_defect(model: Path, arguments: tuple[str, str]) -> None:
    command, option = arguments
    name = f"{'a' * 300}.npz"
    done = ran("-m", "onnxfold", command, str(model), option, name, cwd=model.parent)
    assert done.returncode == 3
    assert name in done.stderr
    assert done.stderr.splitlines()[-1].endswith("File name too long; choose another path")


@pytest.mark.skipif(sys.platform == "win32", reason="a folder in use stays there")
@pytest.mark.parametrize("words", ["optimize {} -o out.onnx", "measure {} --plot figures"])
def test_a_removed_folder_is_no_defect(model: Path, words: str) -> None:
    folder = model.parent / "gone"
    folder.mkdir()
    command = f"rmdir {folder}; {sys.executable} -m onnxfold {words.format(model)}"
    done = subprocess.run(  # noqa: S602  # a shell that removes its folder
        command, shell=True, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    sentence = "onnxfold: the current folder was removed; change to one that exists"
    assert done.stderr.splitlines()[-1] == sentence


def test_times_are_told_to_the_microsecond(model: Path) -> None:
    seconds = onnxfold.optimize(model, dry_run=True).report["timing_s"]
    assert seconds
    assert all(spent == round(spent, 6) for spent in seconds.values())


@pytest.mark.parametrize("colour", [True, False])
def test_a_terminal_gets_colour_and_width_unless_it_asks_for_none(
    model: Path, monkeypatch: pytest.MonkeyPatch, colour: bool
) -> None:
    green = b"\x1b[32m"
    names = {"TERM": "xterm", "COLUMNS": "60"} | ({} if colour else {"NO_COLOR": "1"})
    said = on_terminal(model, names)
    assert (green in said) == colour
    plain = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", said)
    assert max(len(line) for line in re.split(rb"[\r\n]+", plain)) <= 60


def on_terminal(model: Path, names: dict[str, str]) -> bytes:
    """Return what `inspect` writes to a terminal of its own."""
    ours, theirs = os.openpty()
    inherited = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    words = [sys.executable, "-m", "onnxfold", "inspect", str(model), "--fold", "always"]
    with subprocess.Popen(words, env=inherited | names, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # the other end was closed
            while piece := os.read(ours, 1024):
                said += piece
        assert process.wait(timeout=60) == 0
    os.close(ours)
    return said


_OLD_PROTOBUF = """
import sys
import google.protobuf.runtime_version as version
version.MAJOR = version.OSS_MAJOR = 4
sys.argv = ["onnxfold", "inspect", "model.onnx"]
from onnxfold.__main__ import run
run()
"""


_NO_ML_DTYPES = """
import sys
sys.modules["ml_dtypes"] = None
sys.argv = ["onnxfold", "inspect", "model.onnx"]
from onnxfold.__main__ import run
run()
"""


@pytest.mark.parametrize(
    ("program", "what"), [(_OLD_PROTOBUF, "runtime 4."), (_NO_ML_DTYPES, "ml_dtypes")]
)
def test_packages_that_do_not_fit_together_are_named_with_the_remedy(
    program: str, what: str
) -> None:
    done = ran("-c", program)
    assert done.returncode == 3
    assert done.stderr.startswith("onnxfold: the installed packages do not fit together: ")
    assert what in done.stderr
    assert "pip install --upgrade" in done.stderr
    assert "defect" not in done.stderr


@pytest.mark.parametrize(
    ("program", "what"), [(_OLD_PROTOBUF, "runtime 4."), (_NO_ML_DTYPES, "ml_dtypes")]
)
def test_python_says_the_same_of_packages(program: str, what: str) -> None:
    names = ("optimize", "Plan", "verify")
    used = program[: program.index("sys.argv")] + (
        "import onnxfold\n"
        f"for name in {names}:\n"
        "    try: getattr(onnxfold, name)\n"
        "    except onnxfold.DependencyError as e: print(e, isinstance(e, ImportError))\n"
    )
    done = ran("-c", used)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(names)
    for line in lines:
        assert line.startswith("the installed packages do not fit together: ")
        assert what in line
        assert line.endswith("pip install --upgrade onnxfold onnx protobuf True")


def test_a_fault_of_our_own_stays_what_it_is() -> None:
    program = (
        "import sys\nsys.modules['onnxfold.model_io'] = None\nimport onnxfold\nonnxfold.optimize"
    )
    done = ran("-c", program)
    assert done.returncode == 1
    assert "fit together" not in done.stderr
