"""What the command does before anything else, so that it starts and ends quickly.

None of this happens in ``import onnxfold``: how a process imports and collects is its owner's
choice, and only here is that the command.
"""

import atexit
import gc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

# onnx-ir imports sympy for arithmetic with symbolic dimensions, which no command needs; that is
# half of the time of its import.
_DEFERRED = frozenset({"sympy", "onnx_ir._symbolic_shapes"})
# Nodes and values are many, long-lived and full of cycles: looking for garbage at every 700 of
# them finds none and takes a tenth of the time.  The imports alone make 80,000, and one look at
# these takes as long as the analysis of a small model.
_COLLECT_EVERY = 300_000
_USUAL = gc.get_threshold()


class _Deferring:
    """Finds the deferred modules; importlib loads them when an attribute is first asked for."""

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
    """Defer imports that most runs never use, and collect garbage seldom, and not at the end."""
    sys.meta_path.insert(0, _Deferring)
    gc.set_threshold(_COLLECT_EVERY)
    # Python ends by looking for garbage, twice, in all that is left, which goes with the process.
    atexit.register(gc.freeze)


def go_on_as_usual() -> None:
    """Undo :func:`start_quickly`, for a command that goes on for long and in several threads.

    What was deferred is loaded here and now: two threads that first use it at once would find it
    half loaded.
    """
    gc.set_threshold(*_USUAL)
    atexit.unregister(gc.freeze)
    if _Deferring in sys.meta_path:
        sys.meta_path.remove(_Deferring)
    for name in _DEFERRED & sys.modules.keys():
        dir(sys.modules[name])
