"""One of two ranks: what DDP, FSDP and the statistics of streams do there (test_distributed.py)."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from onnxfold.torch import AnglesCallback, cbwc, fold

WIDTH, ROWS, STEPS = 8, 6, 3


class Called(nn.Module):
    """A linear layer and the call of a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.gain = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(self.layer(x), (WIDTH,), self.gain)


def model() -> nn.Sequential:
    """A model with a layer that is centered by hand, and one that is folded."""
    torch.manual_seed(0)
    layers = (nn.Linear(4, WIDTH), nn.RMSNorm(WIDTH), Called(), nn.Linear(WIDTH, 2))
    made = nn.Sequential(*layers).double()
    cbwc(made[0])
    report = fold(made, (batch(0),))
    if report.folded != ("2",):
        raise AssertionError(str(report))
    return made


def batch(step: int) -> torch.Tensor:
    return torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(step)).double()


def trained(made: nn.Module, rows: slice, angles: AnglesCallback | None = None) -> None:
    optimizer = torch.optim.AdamW(made.parameters(), lr=0.1, weight_decay=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        if angles is None:
            made(batch(step)[rows]).square().mean().backward()
        else:
            with angles.step(step):
                made(batch(step)[rows]).square().mean().backward()
        optimizer.step()


def main(rank: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    own = slice(rank * ROWS // 2, (rank + 1) * ROWS // 2)
    parallel = DistributedDataParallel(model())
    angles = AnglesCallback(parallel.module, folder=folder / "angles")
    trained(parallel, own, angles)
    torch.save(parallel.module.state_dict(), folder / f"ddp{rank}.pt")
    sharded = model()
    for layer in (sharded[0], sharded[2], sharded):
        fully_shard(layer, mesh=distributed.init_device_mesh("cpu", (2,)))
    trained(sharded, own)
    whole = {name: part.full_tensor() for name, part in sharded.state_dict().items()}
    torch.save(whole, folder / f"fsdp{rank}.pt")
    (folder / f"reports{rank}.json").write_text(json.dumps(angles.reports))
    distributed.barrier()  # neither leaves while the other still reads
    # Gloo's threads may abort the exit of an interpreter that still holds groups (those in a mesh).
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
