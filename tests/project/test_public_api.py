"""A package that hands names on lists them; a module offers every name without an underscore."""

from __future__ import annotations

import importlib
import pkgutil
import re

import pytest

import onnxfold
from onnxfold import api
from tests.project.test_readme import ROOT

# These import a package of an extra when they are loaded (test_host.py, tests/training).
_APART = (
    *("onnxfold.__main__", "onnxfold.serving.host"),
    *("onnxfold.torch", "onnxfold.flax", "onnxfold.keras"),
)
_NAMES = sorted(
    info.name
    for info in pkgutil.walk_packages(onnxfold.__path__, "onnxfold.")
    if not info.name.startswith(_APART)
)


def _packages() -> list[str]:
    """Return the packages that hand on names of their modules, and so list them."""
    return [name for name in _NAMES if hasattr(importlib.import_module(name), "__all__")]


@pytest.mark.parametrize("name", ["onnxfold", *_packages()])
def test_what_a_package_lists_exists(name: str) -> None:
    package = importlib.import_module(name)
    assert hasattr(package, "__path__"), "a module offers what has no underscore"
    assert len(set(package.__all__)) == len(package.__all__)
    assert not [each for each in package.__all__ if not hasattr(package, each)]


def test_the_package_lists_what_it_offers() -> None:
    assert dir(onnxfold) == sorted(onnxfold.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = onnxfold.nothing


def test_the_page_on_python_names_what_the_package_offers() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    page = re.sub(
        "## Training and checkpoints.*?(?=^## )", "", page, flags=re.DOTALL | re.MULTILINE
    )
    listed = ", ".join(re.findall(r"members: \[(.*?)\]", page)).split(", ")
    named = {*listed, *re.findall(r"^::: .*\.([A-Z]\w+)$", page, re.MULTILINE)}
    assert named <= {*onnxfold.__all__}
    assert {name for name in onnxfold.__all__ if hasattr(api, name)} <= named
