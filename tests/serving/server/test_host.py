"""The part that imports MLServer, in a process of its own: tritonclient has the same messages."""

from __future__ import annotations

import subprocess
import sys

from tests.serving.server.extra import demand_extra

demand_extra()

_CHECK = """
import importlib, pkgutil
import onnxfold.serving.host as host

names = [info.name for info in pkgutil.walk_packages(host.__path__, host.__name__ + ".")]
assert len(names) == 11, names
for name in names:
    assert not hasattr(importlib.import_module(name), "__all__"), name  # all without an underscore
"""


def test_every_module_can_be_imported(folder: object) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CHECK], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
