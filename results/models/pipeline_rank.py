"""One rank of a pipeline that `placeopt export --to torch-pipeline` wrote, as a gloo process.

Arguments: RANK RANKS INIT_FILE FOLDER. The folder holds the exported files and batch.pt, the
tensors that the first stage takes. Every rank saves what it has: losses, the last output and the
gradients of its stages.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def loss_of(output: Any, target: torch.Tensor | None = None) -> torch.Tensor:
    """Sum of squares of the first result, so that micro-batches add up."""
    first = output[0] if isinstance(output, tuple) else output
    return (first.float() ** 2).sum()


def main(rank: int, ranks: int, init: str, folder: Path) -> None:
    """Run one step."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{init}", rank=rank, world_size=ranks)
    spec = importlib.util.spec_from_file_location("pipeline", folder / "pipeline.py")
    assert spec is not None
    assert spec.loader is not None
    pipeline = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pipeline)
    batch = torch.load(folder / "batch.pt")
    runtime, modules = pipeline.build(rank, loss_of)
    losses: list[torch.Tensor] = []
    last = len(pipeline.RANK_OF_STAGE) - 1 in modules
    given = {"target": torch.zeros(len(batch[0])), "losses": losses} if last else {}
    runtime.step(*(batch if 0 in modules else ()), **given)
    pipeline.sum_tied_gradients(modules)
    found = {
        "losses": [float(x) for x in losses],
        "gradients": {
            name: p.grad
            for module in modules.values()
            for name, p in module.named_parameters()
            if p.grad is not None
        },
    }
    torch.save(found, folder / f"rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
