"""Options from a file in the working folder: onnxfold.toml, or [tool.onnxfold] of pyproject.toml.

A table for each command, with option names as on the command line, which has priority:

    [optimize]
    target = "ort"
    inputs = ["ids:1,128"]
    no-check = true
"""

from __future__ import annotations

import difflib
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from onnxfold.errors import ModelError, UsageError

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
