"""One rank of a gloo group that runs exported schedules and compares gradients with the unpipelined model.

Started by test_torch_csv.py, once per rank: torch_worker.py RANK WORLD INIT_FILE NUM_MICRO_BATCHES CSV...
Prints "same" per schedule when all gradients of its stages agree, else exits with an error.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

WIDTH = 8


def layers(count: int) -> list[torch.nn.Module]:
    """Return the stages of the model, the same on every rank."""
    torch.manual_seed(7)
    return [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(count)]


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Sum, so that micro-batches simply add up."""
    return ((output - target) ** 2).sum()


def run(rank: int, world: int, micro_batches: int, path: str) -> None:
    """Run one schedule and compare."""
    rows = [line.split(",") for line in open(path).read().split()]  # noqa: SIM115
    num_stages = 1 + max(int(cell.split("F")[0]) for row in rows for cell in row if "F" in cell)
    mine = sorted({int(cell.split("F")[0]) for cell in rows[rank] if "F" in cell})
    torch.manual_seed(11)
    inputs, target = torch.randn(2 * micro_batches, WIDTH), torch.randn(2 * micro_batches, WIDTH)

    reference = torch.nn.Sequential(*layers(num_stages))
    loss(reference(inputs), target).backward()

    modules = layers(num_stages)
    stages = [PipelineStage(modules[s], s, num_stages, torch.device("cpu")) for s in mine]
    runtime = _PipelineScheduleRuntime(stages, micro_batches, loss_fn=loss, scale_grads=False)
    runtime._load_csv(path)
    arguments = (inputs,) if 0 in mine else ()
    if num_stages - 1 in mine:
        runtime.step(*arguments, target=target, losses=[])
    else:
        runtime.step(*arguments)
    for s in mine:
        for got, want in zip(modules[s].parameters(), reference[s].parameters(), strict=True):
            torch.testing.assert_close(got.grad, want.grad, rtol=1e-4, atol=1e-5)
    print("same", flush=True)
    dist.barrier()


if __name__ == "__main__":
    RANK, WORLD, INIT, COUNT = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{INIT}", rank=RANK, world_size=WORLD)
    for csv_path in sys.argv[5:]:
        run(RANK, WORLD, COUNT, csv_path)
    dist.destroy_process_group()
