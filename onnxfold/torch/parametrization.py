"""Column-based weight centering (CBWC): train W, compute with V = (I - 11'/m) W.

V is W without its mean over the output channels, so the layer's output has mean 0 over them, and a
downstream LayerNorm is an RMSNorm. Autograd projects the gradient by the same symmetric map, dL/dW
= P dL/dV, so the outputs and the gradients equal the ones with W and a LayerNorm.

Source: "Enjoy your Layer Normalization with the computational efficiency of RMSNorm", section 3.2,
Proposition 2, appendix C (grouped: C.3; weight decay acts on W: C.4).
"""

from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from onnxfold.errors import UsageError

M = TypeVar("M", bound=nn.Module)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_CELLS = (nn.RNNCell, nn.LSTMCell, nn.GRUCell)
_NARROW = (torch.float16, torch.bfloat16)


def centred(W: Tensor, dim: int, groups: int = 1, dtype: torch.dtype | None = None) -> Tensor:
    """Return P W: W minus its mean along ``dim``, in each of ``groups`` equal blocks of that axis.

    The mean is computed in ``dtype``, by default the type of W and at least float32; the result has
    the type and shape of W and is rounded once.
    """
    wide = dtype or (torch.float32 if W.dtype in _NARROW else W.dtype)
    axis = dim % W.dim() + 1
    # torch.compile does not support the method unflatten under a mode (norm_calls.py).
    blocks = W.to(wide).reshape(*W.shape[: axis - 1], groups, -1, *W.shape[axis:])
    return (blocks - blocks.mean(axis, keepdim=True)).flatten(axis - 1, axis).to(W.dtype)


class CentredWeight(nn.Module):
    """The parametrization W -> P W along ``dim``; a value assigned to the weight becomes W.

    ``order``: the original names of the layer's parameters, for undoing it. ``short``: the last
    output is left out, which the others determine (compression.py).
    """

    def __init__(
        self,
        dim: int,
        groups: int = 1,
        dtype: torch.dtype | None = None,
        order: tuple[str, ...] = (),
    ):
        super().__init__()
        self.dim, self.groups, self.dtype, self.order = dim, groups, dtype, order
        self.short = False

    def forward(self, W: Tensor) -> Tensor:
        V = centred(W, self.dim, self.groups, self.dtype)
        return V.narrow(self.dim, 0, V.shape[self.dim] - 1) if self.short else V

    def right_inverse(self, V: Tensor) -> Tensor:
        return V

    def extra_repr(self) -> str:
        return f"dim={self.dim}, groups={self.groups}"


def cbwc(
    module: M,
    name: str = "weight",
    dim: int | None = None,
    groups: int = 1,
    *,
    dtype: torch.dtype | None = None,
) -> M:
    """Center a layer's weight and its bias over the output channels, and return the layer.

    The output of the layer then has mean 0 over its channels (in each of ``groups`` equal blocks of
    them, for a norm over groups), and a downstream RMSNorm computes what LayerNorm computed, with
    the same gradients. W itself stays the parameter that is trained, decayed, averaged and pruned,
    as ``module.parametrizations.weight.original``; means are computed in ``dtype``, at least
    float32.

    ``dim`` is the output axis of the tensor ``name``. By default it is 0 for Linear, Bilinear and
    Conv, 1 for ConvTranspose and Embedding, 0 for ``weight_ih`` and ``weight_hh`` of recurrent
    cells (``groups`` counts their gates: 4 for LSTM, 3 for GRU) and ``in_proj_weight`` of
    MultiheadAttention (3); MultiheadAttention itself is centered in its output projection. The bias
    of the tensor is centered too; in other kinds of layers, a bias as long as the axis.

    Raises UsageError, and changes nothing, if the tensor is missing or already centered, the blocks
    do not divide the axis, or the layer cannot compute P W.
    """
    if isinstance(module, nn.MultiheadAttention) and name == "weight":
        cbwc(module.out_proj, dim=dim, groups=groups, dtype=dtype)
        return module
    weight = _tensor(module, name)
    usual = _output_axis(module, name)
    axis = usual if dim is None else dim
    if axis is None:
        raise UsageError(f"give the output axis of {_label(module, name)} as dim")
    if not -weight.dim() <= axis < weight.dim():
        raise UsageError(f"{_label(module, name)} of shape {tuple(weight.shape)} has no axis {dim}")
    axis %= weight.dim()
    within = groups
    if isinstance(module, _CONVOLUTIONS + _TRANSPOSED):
        within = _groups_of_weight(module, name, groups)
    _check_blocks(module, name, weight.shape[axis], within)
    _check_gates(module, name, groups)
    order = tuple(module._parameters)
    targets = [(name, CentredWeight(axis, within, dtype, order))]
    bias = _bias(module, name, weight.shape[axis] // within * groups)
    if bias is not None and usual in (None, axis):
        targets.append((bias, CentredWeight(0, groups, dtype, order)))
    for tensor, parametrization in targets:
        parametrize.register_parametrization(module, tensor, parametrization)
    return module


def _label(module: nn.Module, name: str) -> str:
    return f"'{name}' of {type(module).__name__}"


def _tensor(module: nn.Module, name: str) -> Tensor:
    if isinstance(module, nn.RNNBase):
        raise UsageError(
            f"{type(module).__name__} keeps copies of its weights, which a parametrization does "
            "not reach: use the cell of the same name"
        )
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
        raise UsageError(f"{_label(module, name)} is written by max_norm whenever it is read")
    tensor = getattr(module, name, None)
    known = [key for key, _ in module.named_parameters(recurse=False)]
    if not isinstance(tensor, Tensor):
        raise UsageError(
            f"{_label(module, name)} is not a parameter; there are {', '.join(known) or 'none'}"
        )
    if parametrize.is_parametrized(module, name):
        parametrizations = module.parametrizations[name]
        if any(isinstance(each, CentredWeight) for each in parametrizations):
            raise UsageError(f"{_label(module, name)} is already centered")
    elif name not in module._parameters and name not in module._buffers:
        raise UsageError(
            f"{_label(module, name)} is computed from another tensor (as by pruning): center "
            "first, then prune 'original' of its parametrization"
        )
    if not tensor.is_floating_point():
        raise UsageError(f"{_label(module, name)} is {tensor.dtype}, which cannot be centered")
    return tensor


def _output_axis(module: nn.Module, name: str) -> int | None:
    if isinstance(module, _TRANSPOSED) and name == "weight":
        return 1
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return 1
    known = (nn.Linear, nn.Bilinear, *_CONVOLUTIONS, nn.MultiheadAttention, *_CELLS)
    return 0 if isinstance(module, known + _TRANSPOSED) else None


def _groups_of_weight(module: nn.Module, name: str, groups: int) -> int:
    """Return the blocks of the output axis of a convolution's weight for ``groups`` of its output.

    Outputs of different groups of the convolution read different inputs, so no weight determines
    the mean over several of them.
    """
    own = int(module.groups)
    if groups % own:
        raise UsageError(
            f"{_label(module, name)} has {own} groups that read different inputs: their outputs "
            f"have a common mean that no weight determines; groups must be a multiple of {own}"
        )
    return groups // own if isinstance(module, _TRANSPOSED) and name == "weight" else groups


def _check_blocks(module: nn.Module, name: str, size: int, groups: int) -> None:
    if groups < 1 or size % groups:
        raise UsageError(
            f"{groups} groups do not divide the {size} outputs of {_label(module, name)}"
        )


def _check_gates(module: nn.Module, name: str, groups: int) -> None:
    """Refuse a mean over tensors that are merely concatenated."""
    gates = 1
    if isinstance(module, nn.MultiheadAttention) and name == "in_proj_weight":
        gates = 3
    elif isinstance(module, _CELLS):
        gates = module.weight_hh.shape[0] // module.hidden_size
    if groups % gates:
        raise UsageError(
            f"{_label(module, name)} holds {gates} weights, each to be centered by itself: "
            f"groups must be a multiple of {gates}"
        )


def _bias(module: nn.Module, name: str, outputs: int) -> str | None:
    """Return the name of the bias of a weight, if it has one."""
    bias = name.replace("weight", "bias")
    if bias == name or bias not in dict(module.named_parameters(recurse=False)):
        return None
    return bias if tuple(getattr(module, bias).shape) == (outputs,) else None
