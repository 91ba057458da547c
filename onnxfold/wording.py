"""How a sentence names an option: as an argument in Python, as a flag on the command line.

Sentences are written with flags. For Python the flags are replaced by arguments.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# The option values that a sentence names without quotation marks.
CHOICES = frozenset(
    "all always auto cosine cpu crms cuda decomposed kernels kl layer never off onnx op ort "
    "relative rms top1".split()
)
# The arguments of flags without a value, and those with another name.
_ARGUMENTS = {
    "blame": "blame=True",
    "chain": "chains=",
    "change-readers": "change_readers=True",
    "defer-means": "defer_means=True",
    "fail-if-unchanged": "fail_if_unchanged=True",
    "force": "force=True",
    "keep-config": "keep_config=True",
    "no-check": "check=None",
    "no-fuse-affine": "fuse_affine='never'",
    "no-optimize": "optimize=False",
    "share-weights": "share_weights=True",
    "skip-bad": "skip_bad=True",
}
# Not within a word or quotation marks, as of a name in a model, nor of another command.
_FLAG = re.compile(
    r"(?<!pip install )(?<![\w'/-])--(?P<flag>[a-z]+(?:-[a-z]+)*)"
    r"(?: (?P<value>'[^']*'|\d[\w.]*|[A-Z]+\b|(?:" + "|".join(sorted(CHOICES)) + r")\b))?"
)
_INPUT = re.compile(r"--inputs (?P<name>\S+):(?P<value>file\.npy|\.\.\.)")


@dataclass(slots=True)
class _Speaker:
    """Whether sentences name flags, as they do in the process of a command."""

    flags: bool = False


_SPEAKER = _Speaker()


@contextmanager
def naming_flags() -> Iterator[None]:
    """Make sentences name flags, as on the command line."""
    before, _SPEAKER.flags = _SPEAKER.flags, True
    try:
        yield
    finally:
        _SPEAKER.flags = before


def worded(sentence: str) -> str:
    """Return a sentence that names flags in the words of its reader."""
    if _SPEAKER.flags or "--" not in sentence:
        return sentence
    return _FLAG.sub(_argument, _INPUT.sub(_input, sentence))


def _argument(found: re.Match[str]) -> str:
    flag, value = found["flag"], found["value"]
    if flag in _ARGUMENTS:
        argument = _ARGUMENTS[flag]
        return argument if value is None else f"{argument} {value}"
    name = f"{flag.replace('-', '_')}="
    if value is None:
        return name
    return f"{name}{value!r}" if value in CHOICES else f"{name}{value}"


def _input(found: re.Match[str]) -> str:
    value = "array" if found["value"] == "file.npy" else "(...)"
    return f"inputs={{{found['name']!r}: {value}}}"
