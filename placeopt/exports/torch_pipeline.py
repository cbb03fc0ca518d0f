"""`torch-pipeline`: a placement as stages for torch.distributed.pipelining, with the schedule they
run under.

Devices are ranks. The ops of a device become one stage, or several where a path leaves the device
and comes back. The folder holds pipeline.py (the stages as modules, and `build`, which makes the
runtime of a rank), weights.pt, schedule.csv and pipeline.json (what is in each stage, and the split
points for torch's own `pipeline()` where stages begin with a module).

The stages have the sizes of the example inputs: give inputs of one micro-batch. The schedule is
searched for with the times of the problem; where it has no backward pass, one is taken to last
twice as long as the forward pass. A schedule that is there already (`placeopt schedule` writes it
beside the cut) is taken as it is, from its JSON or its CSV.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from placeopt.exports.export import Exported, Job, text_file
from placeopt.exports.torch_module import saved_module
from placeopt.instances.module_groups import families
from placeopt.model.arrays import Ints, true_places, value_ranks
from placeopt.model.errors import InputError
from placeopt.model.files import write_json
from placeopt.model.objective import time_text
from placeopt.model.problem import PlacementProblem
from placeopt.programs.torch_program import Stage, cut_stages, held, stage_of_calls
from placeopt.schedules.files import ranks_of_stages, read_torch_csv, schedule_in, torch_rows
from placeopt.schedules.from_model import (
    PlacedModel,
    in_order,
    lags,
    pieces_of,
    pipeline_of_placement,
    stage_of_ops,
)
from placeopt.schedules.known.chains import chains_of
from placeopt.schedules.problem import Block, PipelineProblem
from placeopt.schedules.solution import PipelineSchedule
from placeopt.schedules.solve import schedule as search

CODE = '''

RANK_OF_STAGE = {ranks!r}
MICRO_BATCHES = {micro_batches}
TIED = {tied!r}
"""Weights of which several stages have a copy: lists of (stage, name)."""
BOUNDARIES = {boundaries!r}
"""What passes into every stage, and out of the last: (shape, type, whether it has a gradient); None if not known."""

_GROUPS = {{}}


def build(rank, loss_fn, device="cpu", folder=None, group=None, scale_grads=False):
    """Return the runtime of a rank and its stage modules by number; call runtime.step(...) on every rank.

    loss_fn(output, target) is called for every micro-batch on the last rank. With scale_grads the gradients are divided
    by the number of micro-batches.
    """
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    folder = os.path.dirname(os.path.abspath(__file__)) if folder is None else folder
    device = torch.device(device)
    modules = {{s: load(f"Stage{{s}}", folder).to(device) for s, home in enumerate(RANK_OF_STAGE) if home == rank}}
    stages = [
        PipelineStage(module, s, len(RANK_OF_STAGE), device, _empty(s), _empty(s + 1), group=group)
        for s, module in modules.items()
    ]
    runtime = _PipelineScheduleRuntime(stages, MICRO_BATCHES, loss_fn=loss_fn, scale_grads=scale_grads)
    runtime._load_csv(os.path.join(folder, "schedule.csv"))
    return runtime, modules


def _empty(boundary):
    """Return tensors without content, like those that pass: torch then need not run the stages to learn their shapes."""
    if BOUNDARIES is None:
        return None
    return tuple(
        torch.empty(shape, dtype=getattr(torch, kind), device="meta", requires_grad=learns)
        for shape, kind, learns in BOUNDARIES[boundary]
    )


def sum_tied_gradients(modules, group=None):
    """Give every copy of a tied weight the sum of the gradients of all copies.

    Call it on every rank after runtime.step(...) and before the optimizer's step: the copies then stay equal.
    """
    import torch.distributed as dist

    for number, places in enumerate(TIED):
        ranks = sorted({{RANK_OF_STAGE[stage] for stage, _ in places}})
        if number not in _GROUPS and len(ranks) > 1:
            _GROUPS[number] = dist.new_group([r if group is None else dist.get_global_rank(group, r) for r in ranks])
        copies = [modules[stage].get_parameter(name) for stage, name in places if stage in modules]
        if not copies:
            continue
        total = torch.zeros_like(copies[0])
        for copy in copies:
            total += 0 if copy.grad is None else copy.grad
        if number in _GROUPS:
            dist.all_reduce(total, group=_GROUPS[number])
        for copy in copies:
            copy.grad = total.clone()
'''


def export(job: Job) -> Exported:
    """Return the stages (`programs.torch_program.Stage`) in order; the files are the folder that
    this module describes.
    """
    # every backward op where its forward op is: autograd runs it there
    device = job.placement.device[families(job.problem)]
    parts = _parts(job, device)
    stage_of_op, homes = stage_of_ops(job.problem, device, parts)
    rank_of_stage = value_ranks(homes).tolist()
    run = _run(job, device, parts, homes, rank_of_stage)
    kept = true_places((stage_of_op >= 0) & ~job.problem.backward)
    numbers = stage_of_calls(
        job.torch.program, {job.problem.op_names[i]: int(stage_of_op[i]) for i in kept}, len(homes)
    )
    stages = cut_stages(job.torch, numbers, len(homes))
    tied = _tied(stages)
    extra = CODE.format(
        ranks=rank_of_stage,
        micro_batches=run.micro_batches,
        tied=tied,
        boundaries=_boundaries(stages),
    )
    files = saved_module(
        "pipeline.py",
        "the stages of a pipeline",
        {f"Stage{s}": stage.module for s, stage in enumerate(stages)},
        extra,
    )
    csv = "".join(",".join(row) + "\n" for row in run.rows)
    table = _manifest(job, stages, rank_of_stage, numbers, run)
    files |= {"schedule.csv": text_file(csv), "pipeline.json": partial(write_json, data=table)}
    return Exported(stages, files, tuple(_notes(numbers, run, tied)))


@dataclass(frozen=True)
class _Run:
    """What the ranks do: cells of the CSV, and the simulated seconds where they are known."""

    rows: list[list[str]]
    micro_batches: int
    seconds: float | None

    @classmethod
    def of(cls, schedule: PipelineSchedule) -> _Run:
        """Return a schedule as the ranks run it."""
        return cls(
            torch_rows(schedule),
            schedule.micro_batches,
            schedule.makespan * schedule.problem.tick_seconds,
        )


def _parts(job: Job, device: Ints) -> Ints:
    """Return the labels that tell the stages of a device apart: those of the cut's file, else there
    are none.
    """
    given = job.options.get("stage")
    if given is None:
        return device
    parts = np.asarray(given, np.int64)
    if parts.shape != device.shape:
        raise InputError(
            f"stage: expected one for each of {len(device)} ops, received {parts.shape}"
        )
    return parts


def _run(job: Job, device: Ints, parts: Ints, homes: list[int], rank_of_stage: list[int]) -> _Run:
    """Return the schedule that was given, or search for one."""
    given = job.options.get("schedule")
    if given is None:
        return _search(job, _pipeline(job.problem, device, parts), len(homes))
    for key in ("micro_batches", "solver", "seconds"):
        if key in job.options:
            raise InputError(
                f"{key}: the schedule that is given says what runs; leave one of the two out"
            )
    if isinstance(given, str | Path) and Path(given).suffix == ".csv":
        return _read_csv(given, rank_of_stage)
    return _Run.of(_read_schedule(given, homes))


def _search(job: Job, problem: PipelineProblem, stages: int) -> _Run:
    """Search for a schedule as the options say."""
    count = int(job.options.get("micro_batches", 2 * stages))
    if count < 1:
        raise InputError(f"micro_batches: expected at least 1, received {count}")
    return _Run.of(
        search(
            problem,
            job.options.get("solver", "repetend"),
            micro_batches=count,
            seconds=float(job.options.get("seconds", 10.0)),
        )
    )


def _read_csv(given: str | Path, rank_of_stage: list[int]) -> _Run:
    """Return what a CSV of torch says, whose stages have to be on the ranks of the placement's."""
    rows = read_torch_csv(given)
    ranks = ranks_of_stages(rows)
    if ranks != rank_of_stage:
        raise InputError(
            f"schedule '{given}': its stages are on the ranks {ranks}, those of the placement on "
            f"{rank_of_stage}; give the cut that the schedule was made for"
        )
    last = max(int(re.split("[FBIW]", cell)[1]) for row in rows for cell in row)
    return _Run(rows, 1 + last, None)


def _read_schedule(given: Any, homes: list[int]) -> PipelineSchedule:
    """Return a schedule, or that of a result or a file, whose stages have to be on the devices of
    the placement's.
    """
    found = schedule_in(given, "schedule")
    chains = chains_of(found.problem)
    if len(chains) != 1 or list(chains[0].device) != homes:
        shown = "; ".join(str(list(chain.device)) for chain in chains)
        raise InputError(
            f"schedule: its stages are on devices {shown}, those of the placement on {homes}; "
            "export the placement that the schedule was made for (cut.json beside it)"
        )
    return found


def _pipeline(problem: PlacementProblem, device: Ints, parts: Ints) -> PipelineProblem:
    """Return the pipeline problem of the placement, on the devices that it uses."""
    if problem.backward.any():
        return pipeline_of_placement(problem, device, parts=parts)
    model = PlacedModel(problem, device, parts, False, False, "infer")
    pieces = pieces_of(model)
    edges = lags(model, pieces)
    order = in_order(pieces, edges)
    rank = np.argsort(order).tolist()
    used = sorted({piece.place for piece in pieces})
    blocks = []
    # Time of a backward pass over its forward pass, where the problem has none
    backward_ratio = 2
    for s, i in enumerate(order):
        ticks = int(problem.compute[pieces[i].ops, pieces[i].place].sum())
        after = [(f"F{rank[u]}", lag) for (u, v), lag in sorted(edges.items()) if v == i]
        back = [(f"B{rank[v]}", lag) for (u, v), lag in sorted(edges.items()) if u == i]
        where = (used.index(pieces[i].place),)
        blocks.append(Block(f"F{s}", "F", where, max(1, ticks), (1,), tuple(after), s))
        blocks.append(
            Block(
                f"B{s}", "B", where, max(1, backward_ratio * ticks), (-1,), (*back, (f"F{s}", 0)), s
            )
        )
    return PipelineProblem.from_blocks(
        problem.name,
        blocks,
        [problem.device_names[d] for d in used],
        tick_seconds=problem.tick_seconds,
    )


def _manifest(
    job: Job,
    stages: Sequence[Stage],
    rank_of_stage: Sequence[int],
    numbers: Sequence[int],
    run: _Run,
) -> dict[str, Any]:
    calls = job.torch.program.calls
    rows = []
    for s, stage in enumerate(stages):
        own = [call for call, number in zip(calls, numbers, strict=True) if number == s]
        rows.append(
            {
                "rank": rank_of_stage[s],
                "split_point": stage.split_point,
                "inputs": stage.inputs,
                "outputs": stage.outputs,
                "modules": list(dict.fromkeys(call.module for call in own)),
                "calls": [call.name for call in own],
            }
        )
    return {
        "model": job.torch.program.name,
        "micro_batches": run.micro_batches,
        "stages": rows,
        "split_points": {stage.split_point: "BEGINNING" for stage in stages if stage.split_point},
        "simulated_seconds": run.seconds,
    }


def _boundaries(stages: Sequence[Stage]) -> list[list[tuple[Any, ...]]] | None:
    """Return what passes into every stage and out of the last, by a run on tensors without content.

    None where such a run is impossible: torch then finds out by itself, on arbitrary numbers, which
    is wrong where a stage looks them up in a table.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True), torch.enable_grad():
        nodes = stages[0].module.graph.nodes
        metas = [node.meta.get("val") for node in nodes if node.op == "placeholder"]
        if not _are_tensors(metas):
            return None
        values: Any = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in metas]
        found = [values]
        for stage in stages:
            try:
                values = stage.module(*values)
            except Exception:  # whatever an op raises that needs numbers
                return None
            found.append(list(values) if isinstance(values, tuple | list) else [values])
            if not _are_tensors(found[-1]):
                return None
            values = [x.detach().requires_grad_(x.requires_grad) for x in found[-1]]
    return [list(map(_described, row)) for row in found]


def _described(tensor: Any) -> tuple[Any, ...]:
    """Return shape, type and whether there is a gradient."""
    kind = str(tensor.dtype).removeprefix("torch.")
    return tuple(map(int, tensor.shape)), kind, tensor.requires_grad


def _are_tensors(values: Sequence[Any]) -> bool:
    import torch

    return all(isinstance(x, torch.Tensor) for x in values)


def _tied(stages: Sequence[Stage]) -> list[list[tuple[int, str]]]:
    """Return the learned weights of which several stages have a copy, as (stage, name)."""
    import torch

    places: dict[int, dict[int, str]] = {}
    for s, stage in enumerate(stages):
        for name, value in held(stage.module).items():
            if isinstance(value, torch.nn.Parameter):
                places.setdefault(id(value), {}).setdefault(s, name)
    return [list(found.items()) for found in places.values() if len(found) > 1]


def _notes(numbers: Sequence[int], run: _Run, tied: list[list[tuple[int, str]]]) -> list[str]:
    simulated = "" if run.seconds is None else f", simulated {time_text(run.seconds)}"
    notes = [f"{max(numbers) + 1} stages, {run.micro_batches} micro-batches{simulated}"]
    if tied:
        shown = ", ".join(str(stage) for stage, _ in tied[0])
        more = f" and {len(tied) - 1} more" if len(tied) > 1 else ""
        notes.append(
            f"weight '{tied[0][0][1]}'{more}: stages {shown} have a copy each; call "
            "sum_tied_gradients(modules) after every step"
        )
    return notes
