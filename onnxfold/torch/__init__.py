"""Training with centered weights in PyTorch; importing this needs the extra ``onnxfold[torch]``."""

try:
    import torch as _torch  # noqa: F401  # whether it is there
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "onnxfold.torch needs PyTorch: pip install 'onnxfold[torch]'", name="torch"
    ) from error

from onnxfold.torch.compression import CRMSNorm, compress, decompress
from onnxfold.torch.folding import DropoutChoice, FoldReport, bake, fold, unfold
from onnxfold.torch.modules import RMSNorm
from onnxfold.torch.parametrization import CentredWeight, cbwc, centred
from onnxfold.torch.streams import AnglesCallback, StreamStatistics

__all__ = [
    "AnglesCallback",
    "CRMSNorm",
    "CentredWeight",
    "DropoutChoice",
    "FoldReport",
    "RMSNorm",
    "StreamStatistics",
    "bake",
    "cbwc",
    "centred",
    "compress",
    "decompress",
    "fold",
    "unfold",
]
