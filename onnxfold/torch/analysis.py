"""Analysis of the norms of a PyTorch model that fold, by its export, in the model's own names.

The model is exported as it is traced, without optimization: an initializer is then a parameter in
its own layout and under its own name, and every node knows the module that it comes from.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir
import torch
from torch import nn

from onnxfold.errors import escaped
from onnxfold.graph import Fiber
from onnxfold.norms import NormSite
from onnxfold.passes.centring.cheapest import Demand, cheapest_plan
from onnxfold.passes.centring.plan import CentringPlan, WeightCentring
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.recognition import find_norms
from onnxfold.streams.model_transfers import ModelTransfers
from onnxfold.targets.costs import Costs
from onnxfold.torch.exporting import Arguments, exported
from onnxfold.torch.modules import HandwrittenNorm
from onnxfold.torch.norm_calls import NormCalls

_SCOPES = "pkg.torch.onnx.name_scopes"
_GAIN_PS = 1000
# No centering is inserted: in a model that is trained, only weights are centered.
_COSTS = Costs(layer_norm=0, rms_norm=0, centring=1 << 40)
_ALWAYS_SPLIT = 1 << 62
_INSERTED = "; an inserted centering would cost more than it saves"
_IN_FORWARD = (
    "its forward normalizes in its own operations, which cannot be replaced: call "
    "torch.nn.functional.layer_norm there, or make the norm a module"
)


@dataclass(frozen=True, slots=True)
class Writer:
    """A parameter or buffer ``name`` of the module ``module``, to be centered along ``dim``."""

    module: str
    name: str
    dim: int
    groups: int

    def __str__(self) -> str:
        return f"{self.module}.{self.name}" if self.module else self.name


@dataclass(frozen=True, slots=True)
class Changes:
    """The norms that become RMSNorms, the weights centered for them, and why the others stay.

    ``tables``: embeddings whose output is centered, because their table has other readers.
    ``written``: the structure of norms that are handwritten modules. ``called``: the norms that are
    calls in the forward of a module, and ``kept`` the modules within these whose own calls stay.
    """

    norms: tuple[str, ...]
    writers: tuple[Writer, ...]
    tables: tuple[str, ...]
    left: Mapping[str, str]
    written: Mapping[str, HandwrittenNorm]
    called: frozenset[str]
    kept: frozenset[str]


class Analysis:
    """The export of a model, which is planned again whenever some of its norms must stay.

    ``calls``: how often each module calls a LayerNorm directly in its forward.
    """

    def __init__(self, model: nn.Module, program: ir.Model, calls: Mapping[str, int]):
        self._modules = dict(model.named_modules(remove_duplicate=False))
        self._norms = {
            name for name, m in self._modules.items() if isinstance(m, nn.LayerNorm | nn.GroupNorm)
        }
        _name_nodes(program)
        self._info = prepare(program).info
        self._sites = find_norms(self._info)
        self._written = self._written_by_hand()
        self._norms |= self._written.keys()
        self._calls = calls
        self._called, self._unfit = self._in_forwards()
        self._norms |= self._called | self._unfit.keys()
        self._module_of = {
            self._info.ref(site.output): self._site_module(site) for site in self._sites
        }

    def changes(self, excluded: Mapping[str, str]) -> Changes:
        """Return the changes without the norms ``excluded``, each with the reason."""
        unmapped: dict[str, str] = {}
        forbidden = {**self._unfit, **excluded}
        while True:
            plan = self._plan(forbidden, unmapped)
            partly = self._partly_folded(plan)
            if partly - forbidden.keys():
                again = "it is called more than once, and not every call folds"
                forbidden |= dict.fromkeys(partly, again)
                continue
            found, more = self._mapped(plan.weights)
            if not more.keys() - unmapped.keys():
                return self._result(plan, found, forbidden, unmapped)
            unmapped |= more

    def _plan(self, forbidden: Mapping[str, str], unmapped: Mapping[str, str]) -> CentringPlan:
        demands = [
            Demand(site, _GAIN_PS)
            for site in self._sites
            if site.refusal is None
            and site.subtracts_mean
            and self._module_of[self._info.ref(site.output)] not in {None, *forbidden}
        ]
        return cheapest_plan(
            ModelTransfers(self._info, self._sites),
            demands,
            _COSTS,
            allow_split_bytes=_ALWAYS_SPLIT,
            overflowing=frozenset(unmapped),
        )

    def _site_module(self, site: NormSite) -> str | None:
        """Return the module of the model that is a given norm of the graph, if there is one."""
        name = _module(site.last)
        return name if name in self._norms else None

    def _written_by_hand(self) -> dict[str, HandwrittenNorm]:
        """Return the modules that consist only of a norm over the last axis."""
        sites: dict[str, list[NormSite]] = {}
        for site in self._sites:
            sites.setdefault(_module(site.last), []).append(site)
        found = {}
        for name, mine in sites.items():
            module = self._modules.get(name)
            if module is None or name in self._norms:
                continue
            forms = {self._form(name, site) for site in mine}
            form = forms.pop() if len(forms) == 1 and self._alone(name, mine) else None
            if form is None:
                continue
            own = {*module._parameters, *module._buffers, *module._modules}
            if own == {each for each in form.names if each is not None}:
                found[name] = form
        return found

    def _alone(self, name: str, sites: list[NormSite]) -> bool:
        """Whether a module's results are only norms, with no reader inside it."""
        results = {site.output for site in sites}
        for node in self._info.model.graph:
            if _module(node) != name or node.op_type == "Constant":  # which modules share
                continue
            for value in node.outputs:
                readers = {_module(user) for user, _ in value.uses()}
                leaves = value.is_graph_output() or bool(readers - {name})
                if (name in readers) if value in results else leaves:
                    return False
        return True

    def _form(self, name: str, site: NormSite) -> HandwrittenNorm | None:
        """Return the formula of a norm of the graph if it is over the last axis."""
        shape = self._info.shape(site.input)
        last = [block.axis for block in site.fiber.blocks if block.whole]
        if not site.subtracts_mean or not site.size or shape is None or last != [len(shape) - 1]:
            return None
        names: list[str | None] = []
        for part in (site.gamma, site.beta):
            label = part.name or "" if isinstance(part, ir.Value) else ""
            if part is not None and label.rpartition(".")[0] != name:
                return None
            names.append(None if part is None else label.rpartition(".")[2])
        return HandwrittenNorm(
            site.size, site.epsilon, site.epsilon_mode, site.factor, (names[0], names[1])
        )

    def _in_forwards(self) -> tuple[set[str], dict[str, str]]:
        """Return the modules whose forward calls its norms, and those that cannot fold that way."""
        sites: dict[str, list[NormSite]] = {}
        for site in self._sites:
            if site.subtracts_mean and _module(site.last) not in self._norms:
                sites.setdefault(_module(site.last), []).append(site)
        called = {name for name, mine in sites.items() if self._calls.get(name) == len(mine)}
        unfit = {}
        for name in sites.keys() - called:
            refusals = (site.refusal.sentence for site in sites[name] if site.refusal is not None)
            unfit[name] = next(refusals, _IN_FORWARD)
        return called, unfit

    def _partly_folded(self, plan: CentringPlan) -> set[str]:
        calls = Counter(name for name in self._module_of.values() if name is not None)
        folds = Counter(self._module_of[fold.output] for fold in plan.folds)
        return {n for n, count in folds.items() if n is not None and count < calls[n]}

    def _mapped(
        self, weights: tuple[WeightCentring, ...]
    ) -> tuple[tuple[list[Writer], list[str]], dict[str, str]]:
        """Return the writers and tables of a plan, and the other weights with reasons."""
        writers: dict[Writer, None] = {}
        tables: dict[str, None] = {}
        unmapped: dict[str, str] = {}
        values = self._info.by_ref()
        for weight in weights:
            value = values[weight.value]
            owners = self._owners(value)
            place = _dim_and_groups(weight.fiber)
            if not owners or place is None:
                label = escaped(value.name or weight.value)
                unmapped[weight.value] = f"'{label}', which writes the stream, is not a parameter"
            elif weight.split:
                found = self._tables(weight, values)
                tables |= dict.fromkeys(found)
                if not found:
                    unmapped[weight.value] = f"'{value.name}' is read where it must keep its mean"
            else:
                for module, name in owners:
                    writers[Writer(module, name, *place)] = None
        return (list(writers), list(tables)), unmapped

    def _owners(self, value: ir.Value) -> list[tuple[str, str]]:
        """Return every (module, attribute) of the parameter of an initializer."""
        module, _, name = (value.name or "").rpartition(".")
        held = getattr(self._modules.get(module), name, None)
        if value.producer() is not None or not isinstance(held, torch.Tensor):
            return []
        if value.shape is None or tuple(value.shape.numpy()) != tuple(held.shape):
            return []
        found: dict[tuple[int, str], tuple[str, str]] = {}
        for owner, each in self._modules.items():
            for attribute, tensor in (*each._parameters.items(), *each._buffers.items()):
                if tensor is held:
                    found.setdefault((id(each), attribute), (owner, attribute))
        return list(found.values())

    def _tables(self, weight: WeightCentring, values: Mapping[str, ir.Value]) -> set[str]:
        """Return the embeddings if only their rows are to be centered, otherwise nothing."""
        nodes = [values[reader.node].producer() for reader in weight.readers]
        names = {"" if n is None or n.op_type != "Gather" else _module(n) for n in nodes}
        tables = all(isinstance(self._modules.get(name), nn.Embedding) for name in names)
        return names if tables and not weight.norms else set()

    def _result(
        self,
        plan: CentringPlan,
        found: tuple[list[Writer], list[str]],
        forbidden: Mapping[str, str],
        unmapped: Mapping[str, str],
    ) -> Changes:
        folded = dict.fromkeys(
            name for fold in plan.folds if (name := self._module_of[fold.output]) is not None
        )
        left: dict[str, str] = {}
        for output, refusal in plan.refusals:
            name = self._module_of[output]
            if name is not None:
                left[name] = refusal.sentence.removesuffix(_INSERTED)
        if unmapped:
            left = {name: _with_cause(why, unmapped) for name, why in left.items()}
        for site in self._sites:
            name = self._module_of[self._info.ref(site.output)]
            if name is not None and site.refusal is not None:
                left[name] = site.refusal.sentence
        left |= forbidden
        unseen = "it was not found in the export: not called, or not as a norm"
        reasons = {
            name: left.get(name, unseen)
            for name in self._modules
            if name in self._norms and name not in folded
        }
        called = frozenset(self._called & folded.keys())
        kept = frozenset(
            name
            for name in self._calls.keys() - folded.keys()
            if any(not outer or name.startswith(f"{outer}.") for outer in called)
        )
        return Changes(
            tuple(folded), tuple(found[0]), tuple(found[1]), reasons, self._written, called, kept
        )


def _with_cause(why: str, unmapped: Mapping[str, str]) -> str:
    """Explain in the model's words why a weight is not centered, if that is the reason."""
    for ref, reason in unmapped.items():
        if f"'{ref}'" in why:
            return reason
    return why


def _module(node: ir.Node) -> str:
    """Return the innermost module that a node comes from."""
    scopes = node.metadata_props.get(_SCOPES, "[]")
    names = [part.strip().strip("'\"") for part in scopes.strip("[]").split(",")]
    return names[-2] if len(names) > 1 else ""


def _name_nodes(program: ir.Model) -> None:
    """Name nodes after their modules, so that reasons refer to places in the model."""
    seen: Counter[str] = Counter()
    for node in program.graph:
        name = f"{_module(node) or 'model'}/{node.op_type}"
        seen[name] += 1
        node.name = name if seen[name] == 1 else f"{name}_{seen[name]}"


def _dim_and_groups(fiber: Fiber) -> tuple[int, int] | None:
    if len(fiber.blocks) != 1:
        return None
    (block,) = fiber.blocks
    return (block.axis, block.outer) if block.inner == 1 and block.outer is not None else None


def analyse(model: nn.Module, arguments: Arguments) -> Analysis:
    """Export a model in evaluation mode and find its norms.

    Raises ModelError if it cannot be exported.
    """
    return Analysis(model, exported(model, arguments), NormCalls.counted(model, arguments.call))
