"""Export a schedule to PyTorch's pipelining runtime (`_PipelineScheduleRuntime._load_csv`, format `compute_only`).

No header, row i is rank i (device i), cells in execution order, each `<stage><action><micro-batch>` with the actions F,
B (whole backward), I (inputs) and W (weights). Sends and receives are added by PyTorch's own lowering.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from placeopt.model.errors import InputError
from placeopt.schedules.known.chains import chains_of

if TYPE_CHECKING:
    import os

    from placeopt.schedules.known.chains import Chain
    from placeopt.schedules.problem import PipelineProblem
    from placeopt.schedules.solution import PipelineSchedule


def torch_rows(schedule: PipelineSchedule) -> list[list[str]]:
    """Return the cells of every rank in execution order.

    Raises
    ------
    InputError
        With the reason, if PyTorch's runtime cannot run the schedule.
    """
    problem = schedule.problem
    chain = _runnable_chain(problem)
    label: dict[int, str] = {}
    for stage in range(chain.num_stages):
        label[chain.forward[stage]] = f"{stage}F"
        label[chain.backward[stage]] = f"{stage}{'I' if chain.weight[stage] >= 0 else 'B'}"
        if chain.weight[stage] >= 0:
            label[chain.weight[stage]] = f"{stage}W"
    return [
        [f"{label[block]}{micro_batch}" for micro_batch, block in schedule.device_order(rank)]
        for rank in range(problem.num_devices)
    ]


def write_torch_csv(schedule: PipelineSchedule, path: str | os.PathLike[str]) -> None:
    """Write the `compute_only` CSV that PyTorch loads; refuses what `torch_rows` refuses."""
    Path(path).write_text("".join(",".join(row) + "\n" for row in torch_rows(schedule)))


def _runnable_chain(problem: PipelineProblem) -> Chain:
    refusal = f"'{problem.name}' cannot run in PyTorch's pipeline runtime"
    if "F" not in problem.kind or not set(problem.kind) & {"B", "I"}:
        raise InputError(f"{refusal}: it is forward-only, and the runtime executes training schedules")
    for i, name in enumerate(problem.block_names):
        if len(problem.devices_of(i)) > 1:
            raise InputError(f"{refusal}: block '{name}' runs on {len(problem.devices_of(i))} ranks at once, and a stage "
                             "lives on one rank")  # fmt: skip
    try:
        chains = chains_of(problem)
    except InputError as error:
        raise InputError(f"{refusal}: {error}") from error
    if len(chains) > 1:
        raise InputError(f"{refusal}: it has {len(chains)} independent chains (directions), and the runtime runs one; "
                         "export each direction alone")  # fmt: skip
    idle = sorted(set(range(problem.num_devices)) - set(chains[0].device))
    if idle:
        raise InputError(f"{refusal}: '{problem.device_names[idle[0]]}' has no stage, and every rank needs one")
    return chains[0]
