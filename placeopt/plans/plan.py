"""TrainingPlan: how a model is trained on a set of devices, whatever priced it.

A plan is a pipeline of stages. A stage holds some layers and is run by replicas, each of which
spreads every layer of the stage over `tensor` devices of one kind; the replicas of a stage share
the micro-batches (data parallelism).
"""

from __future__ import annotations

from dataclasses import dataclass

from placeopt.model.errors import InputError
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
                "received "
                f"{self.tensor} and {self.count}"
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

    @property
    def num_devices(self) -> int:
        """Devices of all replicas."""
        return sum(group.count * group.tensor for group in self.replicas)

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
