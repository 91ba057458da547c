"""Every module says what it offers, and offers what it says."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType

import pytest

import onnxfold

# These import a package of an extra when they are loaded (test_host.py, tests/training).
_APART = ("onnxfold.__main__", "onnxfold.serving.host", "onnxfold.torch")
_NAMES = sorted(
    info.name
    for info in pkgutil.walk_packages(onnxfold.__path__, "onnxfold.")
    if not info.name.startswith(_APART)
)


# Functions that a decorator registers: kernels by operator, commands by name.
_REGISTERING = ("onnxfold.check.reference.kernels", "onnxfold.cli")


@pytest.fixture(params=["onnxfold", *_NAMES])
def module(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(request.param)


def test_what_a_module_offers_exists(module: ModuleType) -> None:
    offered = module.__all__
    assert len(set(offered)) == len(offered)
    missing = [name for name in offered if not hasattr(module, name)]
    assert not missing


def test_what_a_module_defines_without_an_underscore_is_offered(module: ModuleType) -> None:
    if module.__name__.startswith(_REGISTERING):
        return
    own = {
        name
        for name, item in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(item) or inspect.isfunction(item))
        and item.__module__ == module.__name__
    }
    assert own <= set(module.__all__)


def test_the_package_lists_what_it_offers() -> None:
    assert dir(onnxfold) == sorted(onnxfold.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = onnxfold.nothing
