"""Setup of the command that makes it start and end quickly.

``import onnxfold`` does none of this: how a process imports and collects garbage is its owner's
choice, and only the command owns its process.
"""

import atexit
import gc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

# onnx-ir imports sympy for arithmetic with symbolic dimensions, which no command needs; that is
# half of its import time.
_DEFERRED = frozenset({"sympy", "onnx_ir._symbolic_shapes"})
# Nodes and values are many, long-lived and cyclic: collecting garbage at every 700 of them finds
# nothing and takes a tenth of the time. The imports alone create 80,000, and one collection of
# these takes as long as the analysis of a small model.
_COLLECT_EVERY = 300_000
_USUAL = gc.get_threshold()


class _Deferring:
    """Finder of deferred modules; importlib loads them when an attribute is first used."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _DEFERRED:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def start_quickly() -> None:
    """Defer imports that most runs never use, and collect garbage rarely, and not at the end."""
    sys.meta_path.insert(0, _Deferring)
    gc.set_threshold(_COLLECT_EVERY)
    # On exit Python collects twice over everything left, which the process frees anyway.
    atexit.register(gc.freeze)


def go_on_as_usual() -> None:
    """Undo :func:`start_quickly`, for a long-running command with several threads.

    Deferred modules are loaded now: two threads that use one for the first time would find it half
    loaded.
    """
    gc.set_threshold(*_USUAL)
    atexit.unregister(gc.freeze)
    if _Deferring in sys.meta_path:
        sys.meta_path.remove(_Deferring)
    for name in _DEFERRED & sys.modules.keys():
        dir(sys.modules[name])
