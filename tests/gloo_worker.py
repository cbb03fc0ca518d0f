"""The ranks of a gloo group, started by gloo_ranks.py: gloo_worker.py RANKS FOLDER JOB ARGUMENT...

torch is imported once, and every rank is a fork of that process, which ends with the first exit
code that is not 0. A rank writes what it says to FOLDER/RANK.out and FOLDER/RANK.err.

exported FOLDER DATA : run an exported pipeline; the last rank prints the sum of the losses of all
micro-batches, every rank saves the gradients of its stages.
sharded FOLDER MODEL.py:NAME [backward] : distribute a module by the dtensor_plan.py of a folder, and
compare its results (and gradients) with those of the whole module; prints "same", the number of
parameters that are cut, and the collectives of the forward pass by kind.
ways FOLDER : run every way of some ops by the dtensor_plan.py of a folder; prints "same" and the
number of ways.
schedules MICRO_BATCHES CSV... : run schedules on a chain of small layers; prints "same" per
schedule when all gradients of the rank's stages are those of the unpipelined model.
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import multiprocessing.connection
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

WIDTH = 8


def step(
    runtime, mine: list[int], count: int, inputs: torch.Tensor, target: torch.Tensor
) -> list[torch.Tensor]:
    """Run one step on a rank with the stages `mine` of `count`; return the losses, which the last
    stage's rank has.
    """
    losses: list[torch.Tensor] = []
    given = {"target": target, "losses": losses} if count - 1 in mine else {}
    runtime.step(*((inputs,) if 0 in mine else ()), **given)
    return losses


def cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Sum, so that micro-batches simply add up."""
    return torch.nn.functional.cross_entropy(
        output.flatten(0, -2), target.flatten(), reduction="sum"
    )


def imported(path: Path) -> Any:
    """Import a Python file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sharded(folder: Path, source: str, backward: bool) -> None:
    """Run a distributed module, and its backward pass if asked."""
    from torch.distributed.tensor.debug import CommDebugMode
    from torch.utils._pytree import tree_leaves

    path, _, name = source.rpartition(":")
    module, inputs, *rest = getattr(imported(Path(path)), name)()
    named = rest[0] if rest else {}
    plan = imported(folder / "dtensor_plan.py")
    expected = tree_leaves(module(*inputs, **named))
    wanted = gradients(module, expected) if backward else {}
    mesh, counted = plan.make_mesh(), CommDebugMode()
    plan.distribute(module, mesh)
    with torch.no_grad(), counted:
        plan.forward(module, mesh, *inputs, **named)
    found = tree_leaves(plan.call(module, mesh, *inputs, **named))
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    for key, got in (gradients(module, found) if backward else {}).items():
        close = 1e-5 * float(wanted[key].abs().max())
        torch.testing.assert_close(got.full_tensor(), wanted[key], rtol=1e-3, atol=close)
    cut = sum(any(p.is_shard() for p in value.placements) for value in module.state_dict().values())
    kinds = {"all_reduce": 0, "all_gather": 0, "reduce_scatter": 0, "all_to_all": 0}
    for op, count in counted.get_comm_counts().items():
        kinds[next(kind for kind in kinds if kind[:9] in str(op) or "alltoall" in str(op))] += count
    print(f"same {cut} {json.dumps(kinds, separators=(',', ':'))}", flush=True)


def ways(folder: Path) -> None:
    """Run the ways of ops on a mesh of all ranks: nothing is communicated, the placements are those
    that the rules say, and the results are right.
    """
    from torch._subclasses import FakeTensorMode
    from torch.distributed.tensor.debug import CommDebugMode

    from placeopt.sharding.torch_calls import TorchRules, placement, traced

    torch.manual_seed(0)
    plan, ranks, count = imported(folder / "dtensor_plan.py"), dist.get_world_size(), 0
    mesh, rules = plan.make_mesh(), TorchRules((ranks,))
    for op, inputs in samples():
        with torch.no_grad(), FakeTensorMode() as fake:
            _, call = traced(op, tuple(map(fake.from_tensor, inputs)), {})
        expected = op(*inputs)
        for way in rules.ways(call, ranks):
            plan.LAYOUTS["call"] = [[placement(place)] for place in way.inputs]
            with CommDebugMode() as counted, torch.no_grad():
                result = plan.run(mesh, "call", op, tuple(inputs), {})
            assert counted.get_total_counts() == 0, way
            assert list(result.placements) == [placement(way.outputs[0])], way
            torch.testing.assert_close(result.full_tensor(), expected, rtol=1e-4, atol=1e-5)
            count += 1
    print(f"same {count}", flush=True)


def samples() -> list[tuple[Any, list[torch.Tensor]]]:
    """Return calls as torch.export writes them, and their operands."""
    aten, randn = torch.ops.aten, torch.randn
    x = randn(4, 6, 8)
    return [
        (aten.linear.default, [x, randn(12, 8), randn(12)]),
        (aten.linear.default, [x, randn(12, 8)]),
        (lambda x, w, b: aten.layer_norm.default(x, [8], w, b), [x, randn(8), randn(8)]),
        (lambda x, w: aten.rms_norm.default(x, [8], w), [x, randn(8)]),
        (aten.scaled_dot_product_attention.default, [randn(2, 4, 6, 8) for _ in range(3)]),
        (aten.embedding.default, [randn(10, 8), torch.randint(0, 10, (4, 6))]),
        (lambda x: aten.view.default(x, [4, 6, 2, 4]), [x]),
        (lambda x: aten.transpose.int(x, 1, 2), [x]),
        (aten.add.Tensor, [x, randn(4, 6, 8)]),
        (aten.mul.Tensor, [x, randn(8)]),
        (aten.matmul.default, [randn(2, 4, 6, 8), randn(2, 4, 8, 6)]),
        (lambda x: aten.mean.dim(x, [-1], True), [x]),
        (lambda x: aten.amax.default(x, [1]), [x]),
        (lambda x: aten.softmax.int(x, -1), [x]),
        (lambda x, y: aten.cat.default([x, y], -1), [x, randn(4, 6, 8)]),
        (aten.conv2d.default, [randn(2, 4, 8, 8), randn(6, 4, 3, 3), randn(6)]),
    ]


def gradients(module: torch.nn.Module, results: list[Any]) -> dict[str, Any]:
    """Return the gradients of the sum of squares of the results that are numbers."""
    module.zero_grad()
    sum(x.square().sum() for x in results if x.is_floating_point()).backward()
    return {key: x.grad for key, x in module.named_parameters() if x.grad is not None}


def exported(rank: int, folder: Path, data: Path) -> None:
    """Run one step of an exported pipeline."""
    pipeline = imported(folder / "pipeline.py")
    given = torch.load(data)
    runtime, modules = pipeline.build(rank, cross_entropy)
    losses = step(
        runtime, list(modules), len(pipeline.RANK_OF_STAGE), given["inputs"], given["target"]
    )
    pipeline.sum_tied_gradients(modules)
    if losses:
        print(float(torch.stack(losses).sum()), flush=True)
    gradients = {
        name: p.grad
        for module in modules.values()
        for name, p in module.named_parameters()
        if p.grad is not None
    }
    torch.save(gradients, folder / f"gradients{rank}.pt")


def layers(count: int) -> list[torch.nn.Module]:
    """Return the stages of the model, the same on every rank."""
    torch.manual_seed(7)
    return [
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(count)
    ]


def squares(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Sum, so that micro-batches simply add up."""
    return ((output - target) ** 2).sum()


def scheduled(rank: int, micro_batches: int, path: str) -> None:
    """Run one schedule and compare."""
    rows = [line.split(",") for line in Path(path).read_text().split()]
    num_stages = 1 + max(int(cell.split("F")[0]) for row in rows for cell in row if "F" in cell)
    mine = sorted({int(cell.split("F")[0]) for cell in rows[rank] if "F" in cell})
    torch.manual_seed(11)
    inputs, target = torch.randn(2 * micro_batches, WIDTH), torch.randn(2 * micro_batches, WIDTH)
    reference = torch.nn.Sequential(*layers(num_stages))
    squares(reference(inputs), target).backward()
    modules = layers(num_stages)
    stages = [PipelineStage(modules[s], s, num_stages, torch.device("cpu")) for s in mine]
    runtime = _PipelineScheduleRuntime(stages, micro_batches, loss_fn=squares, scale_grads=False)
    runtime._load_csv(path)
    step(runtime, mine, num_stages, inputs, target)
    for s in mine:
        for got, want in zip(modules[s].parameters(), reference[s].parameters(), strict=True):
            torch.testing.assert_close(got.grad, want.grad, rtol=1e-4, atol=1e-5)
    print("same", flush=True)
    dist.barrier()


def work(rank: int, ranks: int, folder: Path, job: str, arguments: list[str]) -> None:
    """Do the job of one rank."""
    for stream, name in ((1, "out"), (2, "err")):
        with open(folder / f"{rank}.{name}", "wb") as file:
            os.dup2(file.fileno(), stream)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'init'}", rank=rank, world_size=ranks
    )
    if job == "exported":
        exported(rank, Path(arguments[0]), Path(arguments[1]))
    elif job == "sharded":
        sharded(Path(arguments[0]), arguments[1], "backward" in arguments)
    elif job == "ways":
        ways(Path(arguments[0]))
    else:
        for csv_path in arguments[1:]:
            scheduled(rank, int(arguments[0]), csv_path)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Fork the ranks and wait for them; the others end with the first that fails."""
    ranks, folder, job, *arguments = sys.argv[1:]
    torch.set_num_threads(1)
    if job in ("sharded", "ways"):
        importlib.import_module("torch.distributed.tensor.debug")
    group = multiprocessing.get_context("fork")
    members = [
        group.Process(target=work, args=(rank, int(ranks), Path(folder), job, arguments))
        for rank in range(int(ranks))
    ]
    for member in members:
        member.start()
    waiting = {member.sentinel: member for member in members}
    while waiting:
        for ended in multiprocessing.connection.wait(list(waiting)):
            code = waiting.pop(ended).exitcode
            if code:
                for member in members:
                    member.kill()
                sys.exit(abs(code))


if __name__ == "__main__":
    main()
