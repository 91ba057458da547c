"""A hook of mkdocs: the site links to its sources, by ONNXFOLD_SOURCES or the clone's remote."""

import re
import subprocess
from pathlib import Path
from typing import Any

# https://host/owner/name.git, git@host:owner/name.git and ssh://git@host/owner/name.git
_REMOTE = re.compile(
    r"(?:https://(?:[^@/]+@)?|(?:ssh://)?git@)([\w.-]+\.\w+)[:/](.+?)(?:\.git)?/?\n?"
)


def on_config(config: Any) -> None:
    """Take the address of the remote where none is given; a folder or nothing is no address."""
    config.repo_url = config.repo_url or address(Path(config.config_file_path).parent)


def address(folder: Path) -> str:
    """Return the address at which a browser finds the remote of a clone; "" where it has none."""
    asked = ["git", "-C", str(folder), "remote", "get-url", "origin"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, check=False)  # noqa: S603
    except FileNotFoundError:  # git itself
        return ""
    found = _REMOTE.fullmatch(said.stdout)
    return f"https://{found[1]}/{found[2]}" if found else ""
