"""The part that imports MLServer, in a process of its own: tritonclient has the same messages."""

from __future__ import annotations

import subprocess
import sys

from tests.serving.server.extra import demand_extra

demand_extra()

_CHECK = """
import importlib, pkgutil
import onnxfold.serving.host as host
from tests.project import test_public_api as contract

names = [info.name for info in pkgutil.walk_packages(host.__path__, host.__name__ + ".")]
assert len(names) == 9, names
for name in names:
    module = importlib.import_module(name)
    contract.test_what_a_module_offers_exists(module)
    contract.test_what_a_module_defines_without_an_underscore_is_offered(module)
"""


def test_every_module_offers_what_it_says(folder: object) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CHECK], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
