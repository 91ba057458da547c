"""The application: its commands, the options before them and in files, and how a failure appears.

Typer 0.29 does neither.

A table for each command, with option names as on the command line, which has priority:

    [optimize]
    target = "ort"
    inputs = ["ids:1,128"]
    no-check = true
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import faulthandler
import logging
import os
import sys
import tomllib
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from onnxfold import __version__
from onnxfold.cli import terminal
from onnxfold.cli.guard import start_quickly
from onnxfold.cli.options import QuietOption, VerboseOption, with_verbosity
from onnxfold.errors import (
    CommandInterruptedError,
    ModelError,
    OnnxfoldError,
    UsageError,
    misfit,
    printable,
)
from onnxfold.wording import naming_flags


class Command(TyperCommand):
    """A command of onnxfold."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the arguments and options."""
        return _without_values(super().get_params(ctx))


class Group(TyperGroup):
    """All commands of onnxfold."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options before the command."""
        return _without_values(super().get_params(ctx))

    def make_context(self, *arguments: Any, **more: Any) -> Any:
        """Read the command line, for which Typer imports more; raises as `invoke`."""
        with _interruptible():
            return super().make_context(*arguments, **more)

    def invoke(self, ctx: Any) -> Any:
        """Run a command.

        Raises CommandInterruptedError instead of KeyboardInterrupt, for which Typer prints nothing.
        """
        with _interruptible():
            return super().invoke(ctx)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        raise CommandInterruptedError from error


def _without_values(parameters: Iterable[Any]) -> list[Any]:
    found = list(parameters)
    for parameter in found:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return found


_OWN, _PROJECT = "onnxfold.toml", "pyproject.toml"
# Verbosity is read elsewhere.
_NOT_HERE = frozenset({"help", "verbose", "quiet"})
# Of two exclusive options, the command line's is used.
_RIVALS = {"check": "no-check", "fuse-affine": "no-fuse-affine"}
_RIVALS |= {second: first for first, second in _RIVALS.items()}


def project_options(commands: Mapping[str, Any]) -> tuple[str, dict[str, dict[str, Any]]] | None:
    """Return the file that was read and, by command, the values of parameters, or None.

    ``commands``: Click commands by name.  Raises UsageError for an unknown command or option, with
    the nearest name, and for an invalid value.
    """
    found = _tables()
    if found is None:
        return None
    where, tables = found
    defaults: dict[str, dict[str, Any]] = {}
    for command, table in tables.items():
        if command not in commands:
            raise UsageError(
                f"{where}: there is no command '{command}'{_nearest(command, commands)}"
            )
        if not isinstance(table, Mapping):
            raise UsageError(f"{where}: '{command}' is a table of options, [{command}]")
        named = _named(commands[command])
        defaults[command] = {}
        for name, value in table.items():
            label = f"{where}: [{command}]"
            if name not in named:
                raise UsageError(f"{label} has no option '{name}'{_nearest(name, named)}")
            if not _is_given(_RIVALS.get(name, "")):
                parameter, positive = named[name]
                defaults[command][parameter.name] = _value(parameter, positive, value, label, name)
    return where, defaults


def _tables() -> tuple[str, Mapping[str, Any]] | None:
    if Path(_OWN).is_file():
        return _OWN, _read(Path(_OWN))
    if Path(_PROJECT).is_file():
        tool = _read(Path(_PROJECT)).get("tool", {})
        if isinstance(tool, Mapping) and "onnxfold" in tool:
            table = tool["onnxfold"]
            if not isinstance(table, Mapping):
                raise UsageError(f"{_PROJECT}: [tool.onnxfold] is a table of tables")
            return f"{_PROJECT}, [tool.onnxfold]", table
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: it cannot be read: {error}; --no-config ignores it") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: it is not TOML: {error}; --no-config ignores it") from error


def _named(command: Any) -> dict[str, tuple[Any, bool]]:
    """Return the options of a command by name, and whether the name turns them on or off."""
    return {
        option.removeprefix("--"): (parameter, positive)
        for parameter in command.params
        if parameter.param_type_name == "option" and parameter.name not in _NOT_HERE
        for options, positive in ((parameter.opts, True), (parameter.secondary_opts, False))
        for option in options
        if option.startswith("--")
    }


def _value(parameter: Any, positive: bool, value: Any, label: str, name: str) -> Any:
    """Return a value as Click accepts it from a command line; raises UsageError otherwise."""
    if parameter.is_flag != isinstance(value, bool):
        kind = "true or false" if parameter.is_flag else "a value"
        raise UsageError(f"{label} {name} takes {kind}, not {_shown(value)}")
    if parameter.is_flag:
        return value is positive
    several = value if isinstance(value, list) else [value]
    if any(not isinstance(each, str | int | float) or isinstance(each, bool) for each in several):
        raise UsageError(f"{label} {name} takes strings or numbers, not {_shown(value)}")
    if parameter.multiple:
        return [str(each) for each in several]
    if isinstance(value, list):
        raise UsageError(f"{label} {name} takes one value, not {len(value)}")
    return str(value)


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _nearest(name: str, names: Iterable[str]) -> str:
    (*_, nearest) = ["", *difflib.get_close_matches(name.replace("_", "-"), list(names), n=1)]
    return f"; did you mean '{nearest}'?" if nearest else f"; there are {', '.join(sorted(names))}"


def _is_given(option: str) -> bool:
    return any(word.partition("=")[0] == f"--{option}" for word in sys.argv[1:])


_LONGEST_MESSAGE = 2000
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
_UNFIT_PATH = (errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.EROFS)
# By name, in the order of the help, where a command is: the parts beside the core bring their own.
_COMMANDS = {
    "optimize": "cli.optimize",
    "tune": "cli.tune",
    "convert": "cli.convert",
    "rotate": "cli.convert",
    "inspect": "cli.inspect",
    "explain": "cli.inspect",
    "diff": "cli.inspect",
    "measure": "geometry.measure_commands",
    "plot": "geometry.measure_commands",
    "verify": "cli.inspect",
    "bench": "cli.bench",
    "checkpoint": "checkpoint.checkpoint_commands",
    "serve": "serving.serve_commands",
    "triton": "serving.serve_commands",
    "doctor": "cli.installation",
    "lib_path": "cli.installation",
}
_NO_READER = 141  # 128 + SIGPIPE, as a shell sees from other tools too

app = typer.Typer(
    name="onnxfold",
    cls=Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Give an ONNX model the same function with cheaper normalization.

    Every LayerNorm that can **exactly** become an RMSNorm does: the weights before it are
    centered once, in the file, so that nothing has to subtract a mean at run time. The result is
    proved from the weights, checked against a float64 run of the original, and only then written.

    `onnxfold optimize model.onnx -o fast.onnx` folds, proves, checks and writes.

    `onnxfold tune model.onnx -o fast.onnx` tries whole chains of tools and keeps the fastest.

    `onnxfold inspect model.onnx` shows every norm: whether it folds, or why not.

    `onnxfold measure model.onnx --data texts.jsonl` measures what every norm reads and writes.

    `onnxfold checkpoint DIR -o OUT` folds a Hugging Face checkpoint instead of an ONNX model.

    Exit codes: **0** done and checked, also when there was nothing to do; **1** the check or the
    proof failed and nothing was written, or `--fail-if-unchanged` is set and nothing changed;
    **2** bad usage; **3** a file cannot be read or written, the model is not supported, a package
    is missing, or a defect; **130** interrupted, as by Ctrl-C; **141** whoever read what is printed
    has gone. Of several models: that of the worst.""",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        terminal.say(f"onnxfold {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    context: typer.Context,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    no_config: Annotated[
        bool,
        typer.Option(
            "--no-config",
            help="Read no options from onnxfold.toml or [tool.onnxfold] of pyproject.toml.",
        ),
    ] = False,
) -> None:
    asks = {"-h", "--help"}.isdisjoint(sys.argv[1:]) and not context.resilient_parsing
    if asks and not no_config:
        _read_project_file(context)
    context.obj = terminal.chosen_verbosity(verbose=verbose, quiet=quiet)


def _read_project_file(context: typer.Context) -> None:
    """Read options from a file in the working folder, and report in a line which apply."""
    commands = getattr(context.command, "commands", {})  # the group of all commands
    found = project_options(commands)
    if found is None:
        return
    where, context.default_map = found
    names = ", ".join(context.default_map.get(str(context.invoked_subcommand), ()))
    if names and {"-q", "--quiet"}.isdisjoint(sys.argv[1:]):
        terminal.tell(f"options from {where}: {names.replace('_', '-')}", err=True)


for _name, _home in _COMMANDS.items():
    _command = getattr(import_module(f"onnxfold.{_home}"), _name)
    app.command(cls=Command)(with_verbosity(_command))


def fail(error: OnnxfoldError) -> NoReturn:
    """End with a failure in one line and its exit code."""
    text = printable(error.sentence)  # names in a model may have any length
    if len(text) > _LONGEST_MESSAGE:
        text = f"{text[: _LONGEST_MESSAGE // 2]}...{text[-_LONGEST_MESSAGE // 2 :]}"
    terminal.tell(f"onnxfold: {text}", err=True)
    sys.exit(error.exit_code)


def _is_nowhere() -> bool:
    """Whether the working folder was removed, so that relative paths are invalid."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _verbose() -> bool:
    return not {"-v", "--verbose"}.isdisjoint(sys.argv[1:])


def main() -> None:
    """Run the command line; every expected failure is one line and an exit code.

    If the reader of the output has gone, as `head` does, it ends silently.
    """
    try:
        with naming_flags():
            _command_line()
    except BrokenPipeError:
        _end_unread()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # so Typer and Rich end then
            _end_unread()
        raise


def _end_unread() -> NoReturn:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # Python would write the rest of its buffer on exit
        os.dup2(nowhere, stream)
    sys.exit(_NO_READER)


def _command_line() -> None:
    # ONNX Runtime 1.29 and later report their use and keep files in the home folder by default.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    terminal.prepare_streams()
    start_quickly()
    # Warnings of libraries about a damaged model are not our messages.
    warnings.simplefilter("ignore")
    logging.getLogger("onnx_ir").setLevel(logging.CRITICAL)
    if _verbose() and sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)
    try:
        app(prog_name="onnxfold")  # also as `python -m onnxfold`, and in the guarded process
    except OnnxfoldError as error:
        fail(error)
    except BrokenPipeError:
        raise
    except MemoryError as error:
        fail(ModelError(f"not enough memory for this model: {error or 'none is left'}"))
    except Exception as error:  # the last resort: a defect is one line too, and never exit code 0
        if isinstance(error, OSError) and error.errno in _FULL:
            what = error.filename or "what there is to say"
            fail(ModelError(f"{what} cannot be written: {error.strerror}"))
        if isinstance(error, OSError) and error.errno in _UNFIT_PATH and error.filename:
            fail(ModelError(f"{error.filename}: {error.strerror}; choose another path"))
        if isinstance(error, FileNotFoundError) and _is_nowhere():
            fail(ModelError("the current folder was removed; change to one that exists"))
        if _verbose():
            terminal.say(traceback.format_exc().rstrip(), err=True)
            sys.exit(3)
        unfit = misfit(error)
        if unfit is not None:
            fail(unfit)
        sentence = str(error).splitlines()[0] if str(error) else ""
        terminal.tell(
            f"onnxfold: internal error, {type(error).__name__}: {sentence}; this is a defect: "
            "please report it with the traceback that --verbose shows",
            err=True,
        )
        sys.exit(3)
    except KeyboardInterrupt:
        fail(CommandInterruptedError())
