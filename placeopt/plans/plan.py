"""TrainingPlan: how a model is trained on a set of devices, whatever priced it; and plans that
were measured, as their files say.

A plan is a pipeline of stages. A stage holds some layers and is run by replicas, each of which
spreads every layer of the stage over `tensor` devices of one kind; the replicas of a stage share
the micro-batches (data parallelism).

A measured plan is read from JSON, in the format of the published ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from placeopt.io.body import Body
from placeopt.model.errors import InputError
from placeopt.model.files import read_json
from placeopt.model.shown import Shown
from placeopt.plans.step_schedules import parse_schedule

SEQUENCE, EXPERT = "sequence", "expert"
FORMS = (SEQUENCE, EXPERT)
"""Further ways in which the devices of a replica split layers; "" is plain tensor parallelism."""


@dataclass(frozen=True)
class ReplicaGroup:
    """Equal replicas of a stage.

    Attributes
    ----------
    kind : device type, as in the problem. tensor : devices of one replica. count : replicas.
    form : how the devices of a replica split the layers. "": every matrix. "sequence": the
    activations between matrices too,
        along the sequence. "expert": each device has some experts of every layer, all else as a
        whole, and a share of the samples.
    """

    kind: str
    tensor: int
    count: int
    form: str = ""

    def __post_init__(self) -> None:
        if self.tensor < 1 or self.count < 1:
            raise InputError(
                f"replicas of '{self.kind}': expected a tensor degree and a count of at least 1, "
                f"received {self.tensor} and {self.count}"
            )

    def text(self) -> str:
        """Return it in words."""
        return f"{self.count}x{self.tensor} {self.kind}" + (f" by {self.form}" if self.form else "")


@dataclass(frozen=True)
class PlanStage:
    """One stage of a plan.

    Attributes
    ----------
    layers : indices of its layers, ascending.
    replicas : groups of equal replicas, in the order in which replicas of neighbouring stages are
    paired.
    recompute : the layers whose activations are computed again in the backward pass.
    """

    layers: tuple[int, ...]
    replicas: tuple[ReplicaGroup, ...]
    recompute: tuple[int, ...] = ()

    @property
    def data(self) -> int:
        """Data degree: the number of replicas."""
        return sum(group.count for group in self.replicas)

    def each_replica(self) -> list[ReplicaGroup]:
        """Return the group of every replica, in order."""
        return [group for group in self.replicas for _ in range(group.count)]


@dataclass(frozen=True, repr=False)
class TrainingPlan(Shown):
    """A pipeline of stages in order.

    Attributes
    ----------
    micro_batch : samples per micro-batch and replica.
    schedule : the pipeline schedule that the prices assume, see `placeopt.plans.step_schedules`.
    With v stages per device
        stage i runs on the devices of stage i mod (S / v), and the groups of both are equal.
    sharded : whether the replicas of a stage share the optimizer's states out among themselves.
    kept : of a repetend, the micro-batches that each stage keeps; empty for other schedules.
    """

    stages: tuple[PlanStage, ...]
    micro_batch: int = 1
    schedule: str = "1f1b"
    sharded: bool = False
    kept: tuple[int, ...] = ()

    @property
    def on_devices(self) -> tuple[PlanStage, ...]:
        """The stages that come first on their devices: all but the later ones of interleaved
        schedules.
        """
        return self.stages[: -(-len(self.stages) // parse_schedule(self.schedule).chunks)]

    def devices(self) -> dict[str, int]:
        """Return the devices used of each kind."""
        used: dict[str, int] = {}
        for stage in self.on_devices:
            for group in stage.replicas:
                used[group.kind] = used.get(group.kind, 0) + group.count * group.tensor
        return used

    def shown(self) -> dict[str, str]:
        """Return the plan in one line."""
        return {"of": f"{len(self.stages)} stages", "plan": self.text()}

    def text(self) -> str:
        """Return the plan in one line."""
        how = "" if self.schedule == "1f1b" else f", {self.schedule}"
        how += f" keeping {', '.join(map(str, self.kept))}" if self.kept else ""
        how += ", sharded states" if self.sharded else ""
        return (
            " | ".join(_stage_text(stage) for stage in self.stages)
            + f" (micro-batch {self.micro_batch}{how})"
        )


def _stage_text(stage: PlanStage) -> str:
    layers = f"{stage.layers[0]}-{stage.layers[-1]}" if stage.layers else "none"
    groups = " + ".join(group.text() for group in stage.replicas)
    again = f", {len(stage.recompute)} recomputed" if stage.recompute else ""
    return f"layers {layers} on {groups}{again}"


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
            f"{len(layers)} and {len(replicas)}"
        )
    stages = tuple(
        PlanStage(_layers(held, pipeline.where), _groups(given, pipeline.where))
        for held, given in zip(layers, replicas, strict=True)
    )
    for key in ("mbs", "gbs"):
        if body.integer(key) < 1:
            raise body.wrong(key, "at least 1", body.integer(key))
    seconds = body.number("real") if body.has("real") else None
    memory = body.integer("max_mem") if body.has("max_mem") else None
    name = Path(path).stem.replace("-OPT-350-", "-")
    return MeasuredPlan(
        name, TrainingPlan(stages, body.integer("mbs")), body.integer("gbs"), seconds, memory
    )


def _layers(held: object, where: str) -> tuple[int, ...]:
    """Return the layers of a stage."""
    if not isinstance(held, list) or {type(layer) for layer in held} != {int}:
        raise InputError(f"{where}: expected lists of whole numbers, received {held!r:.60}")
    return tuple(held)


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
