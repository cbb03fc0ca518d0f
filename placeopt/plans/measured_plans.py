"""Reader of measured training plans (JSON), in the format of the published ones, as TrainingPlan
and what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from placeopt.io.body import Body
from placeopt.model.errors import InputError
from placeopt.model.files import read_json
from placeopt.plans.plan import PlanStage, ReplicaGroup, TrainingPlan


@dataclass(frozen=True)
class MeasuredPlan:
    """A plan that was run.

    Attributes
    ----------
    batch : samples of a step. seconds : mean of a step, memory : bytes of the fullest device; None
    where not measured.
    """

    name: str
    plan: TrainingPlan
    batch: int
    seconds: float | None
    memory: int | None

    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of devices in the plan, sorted."""
        return tuple(sorted(self.plan.devices()))


def read_measured_plan(path: str | Path) -> MeasuredPlan:
    """Read one plan.

    Raises
    ------
    InputError
        If the file is malformed.
    """
    body = Body(read_json(path), f"file '{path}'")
    pipelines = body.bodies("pipeline_list")
    if len(pipelines) != 1:
        raise InputError(f"{body.where}: expected one pipeline, received {len(pipelines)}")
    pipeline = pipelines[0]
    layers, replicas = pipeline.items("layers_per_stage"), pipeline.items("tmp_per_stage")
    if len(layers) != len(replicas) or not layers:
        raise InputError(
            f"{pipeline.where}: expected as many layers_per_stage as tmp_per_stage, received "
            f"{len(layers)} "
            f"and {len(replicas)}"
        )
    stages = tuple(
        PlanStage(tuple(int(layer) for layer in held), _groups(given, pipeline.where))
        for held, given in zip(layers, replicas, strict=True)
    )
    seconds = body.number("real") if body.has("real") else None
    memory = body.integer("max_mem") if body.has("max_mem") else None
    name = Path(path).stem.replace("-OPT-350-", "-")
    return MeasuredPlan(
        name, TrainingPlan(stages, body.integer("mbs")), body.integer("gbs"), seconds, memory
    )


def _groups(given: object, where: str) -> tuple[ReplicaGroup, ...]:
    """Join neighbouring replicas that are equal into groups."""
    found: list[ReplicaGroup] = []
    for replica in given if isinstance(given, list) else []:
        try:
            ((kind, _, _),), tensor = replica
            group = ReplicaGroup(str(kind), int(tensor), 1)
        except (TypeError, ValueError) as error:
            wanted = "replicas as [[[kind, devices, zone]], degree]"
            raise InputError(f"{where}: expected {wanted}, received {replica!r:.60}") from error
        if found and (found[-1].kind, found[-1].tensor) == (group.kind, group.tensor):
            found[-1] = ReplicaGroup(group.kind, group.tensor, found[-1].count + 1)
        else:
            found.append(group)
    if not found:
        raise InputError(f"{where}: expected a list of replicas, received {given!r:.60}")
    return tuple(found)
