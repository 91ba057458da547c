"""Statistics of a model's norms while it trains, as ``onnxfold measure`` reports them.

Hooks read and change nothing: with them training is, bit for bit, the same training.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, distributed, nn
from torch.utils.hooks import RemovableHandle

from onnxfold.errors import UsageError
from onnxfold.geometry.accumulate import Tables, Totals, of_tables
from onnxfold.geometry.instrument import MeasuredNorm, control_vectors
from onnxfold.model_io import write_json
from onnxfold.norms import EpsilonMode, NormKind
from onnxfold.torch.modules import RMSNorm

_KNOWN = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, RMSNorm)


class StreamStatistics:
    """Statistics of every vector that the norms of a model read and write inside its context.

    A vector is the set of elements that a norm normalizes: the last axes of nn.LayerNorm and
    nn.RMSNorm, a group of channels and all positions of nn.GroupNorm. ``norms`` names further
    modules, which normalize the last axis. For each vector x it computes sum x, x.a, x.b and sum
    x^2 in float64, and from these the angles (degrees) to the uniform vector and to the control
    vectors a and b of ``seed``, |x|, the mean, and the error that a norm would make without
    subtracting it.

    Raises UsageError if a name is not a module, norms are missing, or a norm's vectors change size.

    Source: "Geometric interpretation of layer normalization ...", arXiv 2409.12951, section 3.3.
    """

    def __init__(self, model: nn.Module, *, norms: Iterable[str] = (), seed: int = 0):
        modules = dict(model.named_modules())
        further = list(norms)
        for name in further:
            if name not in modules:
                raise UsageError(f"{type(model).__name__} has no module '{name}' to measure")
        self._modules = {
            name: module
            for name, module in modules.items()
            if isinstance(module, _KNOWN) or name in further
        }
        if not self._modules:
            raise UsageError(f"{type(model).__name__} has no known norms; name them with norms=")
        self._model, self._seed = type(model).__name__, seed
        self._handles: list[RemovableHandle] = []
        self.reset()

    def reset(self) -> None:
        """Discard the measurements."""
        self._norms: dict[str, MeasuredNorm] = {}
        self._totals: dict[str, Totals] = {}

    def __enter__(self) -> "StreamStatistics":
        for name, module in self._modules.items():
            hook = torch.compiler.disable(self._hook(name))
            self._handles.append(module.register_forward_hook(hook, with_kwargs=True))
        return self

    def __exit__(self, *_: object) -> None:
        while self._handles:
            self._handles.pop().remove()

    def _hook(self, name: str) -> Callable[..., None]:
        def hook(
            module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], y: Tensor
        ) -> None:
            x = next(iter((*args, *named.values())))
            rows, written = _rows(module, x.detach()), _rows(module, y.detach())
            known = self._norms.setdefault(name, _described(name, module, rows.shape[-1]))
            if known.size != rows.shape[-1]:
                raise UsageError(
                    f"'{name}' normalizes vectors of {known.size} elements and then of "
                    f"{rows.shape[-1]}: measure each by itself"
                )
            directions = np.column_stack(
                [np.ones(known.size), control_vectors(known.size, self._seed)]
            )
            tables = Tables(0, ((_sums(rows, directions), _sums(written, directions)),), (0,))
            found = of_tables([known], [tables], self._seed)
            self._totals[name] = self._totals[name].merged(found) if name in self._totals else found

        return hook

    def merge_ranks(self, group: distributed.ProcessGroup | None = None) -> None:
        """Give every rank of ``group`` the statistics of all ranks, merged in rank order.

        Norms and their order must be the same in all; a norm that a rank has not called is empty
        there. Raises UsageError outside a process group.
        """
        if not distributed.is_initialized():
            raise UsageError("there is no process group: call torch.distributed.init_process_group")
        own = {name: totals.to_state() for name, totals in self._totals.items()}
        gathered: list[Any] = [None] * distributed.get_world_size(group)
        distributed.all_gather_object(gathered, (self._norms, own), group=group)
        self.reset()
        for norms, states in gathered:
            self._norms = {**norms, **self._norms}
            for name, state in states.items():
                totals = Totals.from_state(state)
                earlier = self._totals.get(name)
                self._totals[name] = totals if earlier is None else earlier.merged(totals)

    def report(self) -> dict[str, Any]:
        """Return a report on the model as ``onnxfold measure`` writes it (docs/geometry.md)."""
        entries = [
            entry
            for name in self._modules
            if name in self._totals
            for entry in self._totals[name].report([self._norms[name]])
        ]
        unseen = [name for name in self._modules if name not in self._totals]
        return {
            "schema": 1,
            "model": self._model,
            "data": {"kind": "training", "batch": None, "seed": self._seed},
            "rows": 0,
            "complete": True,
            "norms": entries,
            "refused": [{"name": name, "reason": "it was not called"} for name in unseen],
            "bad_shards": [],
        }


class AnglesCallback:
    """Measures a model at some steps of its training: ``with angles.step(n):`` forward, backward.

    ``every``: measure at multiples of it; other steps cost nothing. ``reports`` are results of
    :meth:`StreamStatistics.report`, each with its ``step``; in a process group they cover all
    ranks, which must all reach the step. ``folder``: the first rank writes each there as
    ``step_00000100.json``, in the format of ``onnxfold measure --report``.

    Raises UsageError as :class:`StreamStatistics` does, and for ``every`` below 1.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        every: int = 1,
        folder: Path | str | None = None,
        norms: Iterable[str] = (),
        seed: int = 0,
    ):
        if every < 1:
            raise UsageError(f"every must be 1 or more, not {every}")
        self._statistics = StreamStatistics(model, norms=norms, seed=seed)
        self._every, self._folder = every, None if folder is None else Path(folder)
        self.reports: list[dict[str, Any]] = []

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Measure what is computed within, if this step is measured."""
        if number % self._every:
            yield
            return
        self._statistics.reset()
        with self._statistics:
            yield
        together = distributed.is_available() and distributed.is_initialized()
        if together:
            self._statistics.merge_ranks()
        report = {**self._statistics.report(), "step": number}
        self.reports.append(report)
        if self._folder is not None and not (together and distributed.get_rank()):
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / f"step_{number:08}.json"
            write_json(path, report)


def _rows(module: nn.Module, x: Tensor) -> Tensor:
    """Return the vectors that a norm normalizes as rows."""
    if isinstance(module, nn.GroupNorm):
        return x.reshape(x.shape[0] * module.num_groups, -1)
    if isinstance(module, RMSNorm):
        return (
            x.reshape(-1, x.shape[-1] // module.groups)
            if module.groups > 1
            else _last(x, len(module.normalized_shape))
        )
    return _last(x, len(getattr(module, "normalized_shape", (0,))))


def _last(x: Tensor, axes: int) -> Tensor:
    return x.flatten(-axes).flatten(0, -2) if x.dim() > axes else x.reshape(1, -1)


def _sums(rows: Tensor, directions: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return sum x, x.a, x.b and sum x^2 of each row, [rows, 4], in float64."""
    wide = (rows.cpu() if rows.device.type == "mps" else rows).double()  # it has no float64
    along = wide @ torch.from_numpy(directions).to(wide.device)
    sums = torch.cat([along, wide.square().sum(1, keepdim=True)], 1)
    found: npt.NDArray[np.float64] = sums.cpu().numpy()
    return found


def _described(name: str, module: nn.Module, size: int) -> MeasuredNorm:
    kinds = {nn.LayerNorm: NormKind.LAYER_NORM, nn.GroupNorm: NormKind.GROUP_NORM}
    kind = next((k for t, k in kinds.items() if isinstance(module, t)), NormKind.RMS_NORM)
    epsilon = getattr(module, "eps", None)
    return MeasuredNorm(
        name=name,
        kind=kind.value,
        size=size,
        subtracts_mean=kind is not NormKind.RMS_NORM,
        epsilon=0.0 if epsilon is None else float(epsilon),
        epsilon_mode=EpsilonMode.INSIDE,
        factor=1.0,
        outputs=("before", "after"),
        row_dims=(),
    )
