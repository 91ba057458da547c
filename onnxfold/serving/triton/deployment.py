"""The options of a model repository of Triton; light to import, as the command line reads them."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from onnxfold.options import Told


class TritonDevice(StrEnum):
    """Where Triton runs the instances of a model."""

    CPU = "cpu"
    GPU = "gpu"


@dataclass(frozen=True, slots=True)
class Deployment:
    """The options of the repository, each declared once with its help."""

    repository: Annotated[
        Path, Told("The model repository; made where it is missing.", metavar="DIR")
    ]
    name: Annotated[str | None, Told("Name of the model in Triton; that of IN when left out.")] = (
        None
    )
    version: Annotated[int, Told("Version of the model.", metavar="V", min=1)] = 1
    max_batch: Annotated[
        int,
        Told("Let Triton join requests up to this batch size; 0: never.", metavar="B", min=0),
    ] = 0
    device: Annotated[TritonDevice, Told("Where Triton runs the model.")] = TritonDevice.CPU
    threads: Annotated[
        int | None,
        Told("Threads within an operator; otherwise Triton's default.", metavar="N", min=1),
    ] = None
    in_server: Annotated[
        str | None,
        Told(
            "Where Triton finds the repository, if not at the path of DIR.",
            metavar="PATH",
            flag="--repository-in-server",
        ),
    ] = None
    keep_config: Annotated[bool, Told("Leave the config.pbtxt that is there.")] = False
    force: Annotated[
        bool, Told("Replace the model of a version, and a config, that are there.")
    ] = False
