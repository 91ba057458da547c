"""Folding of a checkpoint from one folder into another: read, decide, write."""

from dataclasses import dataclass
from pathlib import Path

from onnxfold.checkpoint.files import open_checkpoint
from onnxfold.checkpoint.plan import CheckpointForm, CheckpointPlan, decide, form_named
from onnxfold.checkpoint.write import check_output, other_files, write_checkpoint
from onnxfold.errors import WeightOverflowError
from onnxfold.passes.base import exclusion
from onnxfold.pipeline.stage_timer import Stages, StageTimer


@dataclass(frozen=True, slots=True)
class CheckpointResult:
    """The result for a checkpoint.

    ``folded``: the norms that are now weightless, each with the layers that absorbed its gamma and
    beta, or the LayerNorms whose stream now has mean 0. ``centred``: the modules that write that
    stream. ``left``: the norms that stay, with the reason. ``not_copied``: subfolders, and files
    with the weights in another format.
    """

    architecture: str
    form: CheckpointForm
    folded: dict[str, tuple[str, ...]]
    centred: tuple[str, ...]
    left: dict[str, str]
    tensors: int
    changed: int
    not_copied: tuple[str, ...]
    nbytes: int | None

    def to_json(self) -> dict[str, object]:
        """Return the report's form; ``bytes`` is None if nothing was written."""
        return {
            "schema": 1,
            "architecture": self.architecture,
            "form": self.form.value,
            "folded": {norm: list(layers) for norm, layers in self.folded.items()},
            "centred": list(self.centred),
            "left": self.left,
            "tensors": self.tensors,
            "changed": self.changed,
            "not_copied": list(self.not_copied),
            "bytes": self.nbytes,
        }


def fold_checkpoint(
    folder: str | Path,
    output: str | Path | None = None,
    *,
    to: CheckpointForm | str = CheckpointForm.WEIGHTLESS,
    exclude: str | None = None,
    progress: Stages | None = None,
) -> CheckpointResult:
    """Fold a Hugging Face checkpoint: the same function with weightless norms or a centered stream.

    ``folder`` contains config.json and model.safetensors or its shards; ``output`` is a new folder,
    or None to plan and write nothing. WEIGHTLESS: W* = W diag(gamma), b* = b + W beta, gamma* = 1,
    beta* = 0, if only linear layers read a norm. RMS: everything that adds to the stream of
    LayerNorms is centered, V = P W. Products and means are float64 and are rounded once. Only one
    tensor is in memory at a time.

    Raises ModelError for a checkpoint that cannot be read or is unknown, UsageError for invalid
    options. Source: FlashNorm (Graef et al., 2024); Pre-RMSNorm (Jiang et al., 2023).
    """
    form, names = form_named(to), exclusion(exclude)
    source, target = Path(folder), None if output is None else Path(output)
    timer = StageTimer(progress)
    if target is not None:
        check_output(source, target)
    with timer.stage("load"):
        checkpoint = open_checkpoint(source)
    unfit: dict[str, str] = {}
    while True:
        with timer.stage("analyse"):
            plan = decide(checkpoint, form, exclude=names, unfit=unfit)
        try:
            nbytes = None
            if target is not None:
                with timer.stage("save"):
                    show = timer.part("save")
                    nbytes = write_checkpoint(checkpoint, plan.tensors, target, show)
        except WeightOverflowError as error:
            unfit |= _leave(plan, error)
            continue
        return CheckpointResult(
            str(checkpoint.config["model_type"]),
            form,
            plan.merged,
            tuple(plan.centred),
            plan.left,
            len(checkpoint.tensors),
            len(plan.tensors),
            tuple(other_files(checkpoint)[1]),
            nbytes,
        )


def _leave(plan: CheckpointPlan, error: WeightOverflowError) -> dict[str, str]:
    """Return the norms that change the tensor of an error, with the reason to leave them."""
    for name, norms in plan.cause.items():
        if f"'{name}'" in str(error):
            return dict.fromkeys(norms, str(error))
    raise error
