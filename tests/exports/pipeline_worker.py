"""One rank of a gloo group that runs an exported pipeline: pipeline_worker.py RANK WORLD INIT_FILE FOLDER DATA.

The last rank prints the sum of the losses of all micro-batches; every rank saves the gradients of its stages.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import torch
import torch.distributed as dist


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Sum, so that micro-batches simply add up."""
    return torch.nn.functional.cross_entropy(output.flatten(0, -2), target.flatten(), reduction="sum")


def run(rank: int, folder: Path, data: Path) -> None:
    """Run one step."""
    spec = importlib.util.spec_from_file_location("pipeline", folder / "pipeline.py")
    assert spec is not None
    assert spec.loader is not None
    pipeline = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pipeline)
    given = torch.load(data)
    runtime, modules = pipeline.build(rank, loss)
    losses: list[torch.Tensor] = []
    arguments = (given["inputs"],) if pipeline.RANK_OF_STAGE[0] == rank else ()
    if pipeline.RANK_OF_STAGE[-1] == rank:
        runtime.step(*arguments, target=given["target"], losses=losses)
        print(float(torch.stack(losses).sum()), flush=True)
    else:
        runtime.step(*arguments)
    gradients = {name: p.grad for module in modules.values() for name, p in module.named_parameters() if p.grad is not None}
    torch.save(gradients, folder / f"gradients{rank}.pt")


if __name__ == "__main__":
    RANK, WORLD, INIT = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{INIT}", rank=RANK, world_size=WORLD)
    run(RANK, Path(sys.argv[4]), Path(sys.argv[5]))
    dist.barrier()
    dist.destroy_process_group()
