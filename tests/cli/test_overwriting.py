"""What an output may replace, under which names it may be written, and what is said of it."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import pytest

import onnxfold
from onnxfold.errors import UsageError
from onnxfold.model_io.report_files import is_ours
from tests.builders import model_of, pre_norm_model
from tests.cli.command import Cli


def unfoldable(sign: str = "Relu") -> onnx.ModelProto:
    kind = (onnx.TensorProto.FLOAT, ["batch", 4])
    node = onnx.helper.make_node(sign, ["x"], ["y"])
    return model_of([node], {"x": kind}, {"y": kind}, {})


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a.onnx and b.onnx, in which the command runs."""
    onnx.save(pre_norm_model(), tmp_path / "a.onnx")
    onnx.save(unfoldable(), tmp_path / "b.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("optimize", "a.onnx", "b.onnx"),
        ("optimize", "a.onnx", "-o", "b.onnx"),
        ("convert", "a.onnx", "b.onnx", "--to", "rms"),
        ("convert", "a.onnx", "-o", "b.onnx", "--to", "crms"),
    ],
)
def test_a_file_of_somebody_else_is_replaced_only_by_force(
    two: Path, words: tuple[str, ...], cli: Cli
) -> None:
    before = (two / "b.onnx").read_bytes()
    words = (*words, "--no-check")
    assert cli(*words) == 2
    said = cli.readouterr()
    assert said.out == ""
    assert "b.onnx: it exists, and onnxfold did not write it" in said.err
    assert (two / "b.onnx").read_bytes() == before
    assert cli(*words, "--force") == 0
    assert (two / "b.onnx").read_bytes() != before
    assert cli(*words) == 0  # now onnxfold wrote it


@pytest.mark.parametrize(
    "words",
    [
        ("tune", "a.onnx", "-o", "b.onnx", "--budget", "3"),
        ("rotate", "a.onnx", "-o", "b.onnx", "--to", "int8"),
    ],
)
def test_a_search_replaces_no_file_of_somebody_else(
    two: Path, words: tuple[str, ...], cli: Cli
) -> None:
    before = (two / "b.onnx").read_bytes()
    assert cli(*words) == 2
    assert "b.onnx: it exists, and onnxfold did not write it" in cli.readouterr().err
    assert (two / "b.onnx").read_bytes() == before


@pytest.mark.parametrize("content", [b"precious", bytes(100), b"{}"])
def test_a_file_that_is_no_model_is_replaced_only_by_force(two: Path, content: bytes) -> None:
    (two / "notes").write_bytes(content)
    with pytest.raises(UsageError, match="onnxfold did not write it"):
        onnxfold.optimize("a.onnx", "notes", check=None)
    assert (two / "notes").read_bytes() == content
    onnxfold.optimize("a.onnx", "notes", check=None, force=True)
    assert is_ours(two / "notes")


def test_an_empty_file_is_replaced(two: Path) -> None:
    (two / "empty.onnx").touch()
    onnxfold.optimize("a.onnx", "empty.onnx", check=None)
    assert is_ours(two / "empty.onnx")


@pytest.mark.parametrize(
    "words",
    [
        ("optimize", "a.onnx", "link.onnx", "--no-check"),
        ("optimize", "a.onnx", "--output-dir", "out", "--no-check"),
        ("convert", "a.onnx", "link.onnx", "--to", "rms", "--no-check"),
        ("tune", "a.onnx", "-o", "link.onnx", "--budget", "3"),
        ("rotate", "a.onnx", "-o", "link.onnx", "--to", "int8"),
    ],
)
def test_a_link_to_nothing_is_replaced_only_by_force(
    two: Path, words: tuple[str, ...], cli: Cli
) -> None:
    """As of a disk that is not mounted."""
    link = two / ("out/a.onnx" if "out" in words else "link.onnx")
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(two / "unmounted" / "fast.onnx")
    assert cli(*words) == 2
    said = " ".join("".join(cli.readouterr()).split())
    assert "it is a link to" in said
    assert "which does not exist; give that path, or --force to replace the link" in said
    assert link.is_symlink()


def test_force_replaces_a_link_to_nothing(two: Path) -> None:
    (two / "link.onnx").symlink_to("nowhere.onnx")
    onnxfold.optimize("a.onnx", "link.onnx", check=None, force=True)
    assert is_ours(two / "link.onnx")
    assert not (two / "link.onnx").is_symlink()
    assert not (two / "nowhere.onnx").exists()


def test_a_report_whose_link_leads_to_no_folder_is_refused_at_once(two: Path, cli: Cli) -> None:
    (two / "r.json").symlink_to(two / "unmounted" / "r.json")
    assert cli("optimize", "a.onnx", "-o", "out.onnx", "--report", "r.json") == 3
    assert "cannot write the report 'r.json': no writable folder" in cli.readouterr().err
    assert not (two / "out.onnx").exists()
    (two / "unmounted").mkdir()
    assert cli("optimize", "a.onnx", "-o", "out.onnx", "--report", "r.json") == 0
    assert (two / "unmounted" / "r.json").is_file()


def test_a_copy_of_the_input_is_replaced_by_another_copy_alone(two: Path, cli: Cli) -> None:
    """Somebody keeps the copy, but what is written when nothing changes has the same bytes."""
    for name in ("a", "b"):
        (two / f"{name}.copy").write_bytes((two / f"{name}.onnx").read_bytes())
    assert cli("optimize", "a.onnx", "a.copy", "--no-check") == 2
    assert "a.copy: it exists, and onnxfold did not write it" in cli.readouterr().err
    assert (two / "a.copy").read_bytes() == (two / "a.onnx").read_bytes()
    assert cli("optimize", "b.onnx", "b.copy") == 0
    assert cli("optimize", "a.onnx", "a.copy", "--no-check", "--force") == 0
    assert is_ours(two / "a.copy")


@pytest.mark.parametrize("external", [None, True])
def test_an_output_in_which_nothing_changed_is_replaced(two: Path, external: bool | None) -> None:
    out = two / "out.onnx"
    assert not onnxfold.optimize("b.onnx", out, save_as_external_data=external).changed
    assert is_ours(out)
    onnx.save(unfoldable("Neg"), "b.onnx")  # exported again
    onnxfold.optimize("b.onnx", out, save_as_external_data=external)
    assert onnx.load(out).graph.node[0].op_type == "Neg"


def test_a_copy_that_somebody_wrote_into_is_theirs(two: Path) -> None:
    out = two / "out.onnx"
    onnxfold.optimize("b.onnx", out)
    status = out.stat()
    out.write_bytes(unfoldable("Neg").SerializeToString())
    os.utime(out, ns=(1, status.st_mtime_ns + 1))
    with pytest.raises(UsageError, match="onnxfold did not write it"):
        onnxfold.optimize("b.onnx", out)


@pytest.mark.parametrize(
    "name",
    ["out.ort", "out.ORT", "out.json", "out.onnxjson", "out.pbtxt", "out.onnxtxt", "o.textproto"],
)
@pytest.mark.parametrize(
    "words", [("optimize",), ("convert", "--to", "rms"), ("tune",), ("rotate", "--to", "int8")]
)
def test_a_name_of_another_format_is_refused_at_once(
    two: Path, name: str, words: tuple[str, ...], cli: Cli
) -> None:
    command, *rest = words
    for given in ((name,), ("-o", name), ("-o", name, "--force")):
        assert cli(command, "gone.onnx", *given, *rest) == 2
        said = cli.readouterr()
        assert said.out == ""
        assert "name it .onnx" in said.err
    assert not (two / name).exists()


@pytest.mark.parametrize("name", ["out.pb", "out", "out.bin", ".onnx", "a b.onnx", "ü.onnx"])
@pytest.mark.parametrize("external", [None, True])
def test_what_is_written_can_be_loaded_under_its_name(
    two: Path, name: str, external: bool | None
) -> None:
    onnxfold.optimize("a.onnx", name, save_as_external_data=external, check=None)
    onnx.checker.check_model(onnx.load(two / name))
    onnx.checker.check_model(str(two / name))


@pytest.mark.parametrize("command", ["optimize", "convert", "verify", "checkpoint"])
def test_a_quiet_command_says_its_warnings(two: Path, command: str, cli: Cli) -> None:
    words: dict[str, tuple[str, ...]] = {
        "optimize": ("optimize", "a.onnx", "out.onnx", "--exclude", "typo", "--no-check"),
        "convert": ("convert", "a.onnx", "out.onnx", "--to=rms", "--exclude", "typo", "--no-check"),
        "verify": ("verify", "nan.onnx", "nan.onnx"),
    }
    if command == "checkpoint":
        transformers = pytest.importorskip("transformers")
        settings = {"vocab_size": 64, "n_positions": 16, "n_embd": 32, "n_layer": 1, "n_head": 2}
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**settings))
        model.save_pretrained(two / "gpt2")
        cli.readouterr()
        words["checkpoint"] = ("checkpoint", "gpt2", "-o", "new", "--exclude", "typo")
    if command == "verify":
        onnx.save(unfoldable("Sqrt"), "root.onnx")
        proto = onnx.load("root.onnx")
        proto.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["c"], value_float=-1.0))
        proto.graph.node[1].input[0] = "negative"
        proto.graph.node.insert(1, onnx.helper.make_node("Mul", ["x", "c"], ["n"]))
        proto.graph.node.insert(2, onnx.helper.make_node("Abs", ["n"], ["a"]))
        proto.graph.node.insert(3, onnx.helper.make_node("Sub", ["c", "a"], ["negative"]))
        onnx.save(proto, "nan.onnx")
    expected = (
        "nothing was compared" if command == "verify" else "--exclude 'typo' matches the name"
    )
    for quiet in (True, False):
        assert cli(*(("-q",) if quiet else ()), *words[command]) == 0
        said = cli.readouterr()
        assert (said.out == "") == quiet
        assert (said.err + said.out).count(expected) == 1
        if quiet:
            assert said.err.startswith("onnxfold: warning: ")
            assert len(said.err.splitlines()) == 1
        if command == "checkpoint":
            (two / "new").rename(two / f"old{quiet}")


# None is a report, though each looks like one: by its keys, by its words, by its program's name.
_PRECIOUS = (
    b"my notes",
    b"[]",
    b'{"schema": 1, "inspect": {}, "norms": [], "models": []}',
    b'{"generator": "another", "schema": 1, "norms": []}',
    b"<!doctype html><html><head></head><body>Written by onnxfold.</body></html>",
    b'<html><head><meta name="generator" content="another"></head><body>'
    b'<meta name="generator" content="onnxfold"></body></html>',
    b"<svg><metadata>onnxfold</metadata><title>onnxfold</title></svg>",
    b"\x89PNG\r\n\x1a\n a note on Software\0onnxfold",
)
_FOLDED = ("optimize", "a.onnx", "--no-check")
_CONVERTED = ("convert", "a.onnx", "--to", "rms", "--no-check")
_DRAWN = ("measure", "a.onnx", "--rows", "2")


@pytest.mark.parametrize(
    ("words", "file"),
    [
        ((*_FOLDED, "-o", "c.onnx", "--report", "notes.json"), "notes.json"),
        ((*_FOLDED, "-o", "c.onnx", "--report", "notes.html"), "notes.html"),
        ((*_FOLDED, "--output-dir", "d", "--report", "notes.json"), "notes.json"),
        ((*_CONVERTED, "-o", "c.onnx", "--report", "n.json"), "n.json"),
        ((*_DRAWN, "--report", "notes.json"), "notes.json"),
        ((*_DRAWN, "--report", "notes.html"), "notes.html"),
        ((*_DRAWN, "--plot", "."), "angles.svg"),
        ((*_DRAWN, "--plot", "."), "angles.png"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[:2]),
)
def test_a_report_or_figure_of_somebody_else_is_replaced_only_by_force(
    two: Path, words: tuple[str, ...], file: str, cli: Cli
) -> None:
    if file.endswith((".html", ".svg", ".png")) and words[0] == "measure":
        pytest.importorskip("matplotlib")
    for precious in _PRECIOUS[:: 1 if file.endswith((".html", ".svg")) else 4]:
        (two / file).write_bytes(precious)
        assert cli(*words) == 2
        assert f"{file}: it exists, and onnxfold did not write it" in cli.readouterr().err
        assert (two / file).read_bytes() == precious
    assert not (two / "c.onnx").exists()
    assert cli(*words, "--force") == 0
    assert (two / file).read_bytes() != precious
    assert cli(*words) == 0  # now onnxfold wrote it, whatever the file system notes
    written = (two / file).read_bytes()
    (two / file).write_bytes(written[: len(written) * 9 // 10])
    assert cli(*words) == (0 if file.endswith(".png") else 2)  # part of one is not one


def test_an_empty_file_may_become_a_report(two: Path, cli: Cli) -> None:
    """As tempfile and `touch` leave one."""
    (two / "r.json").touch()
    assert cli(*_FOLDED, "-o", "c.onnx", "--report", "r.json") == 0
