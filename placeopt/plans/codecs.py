"""JSON of plans and of problems about plans; see `placeopt.io.codec`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placeopt.io.codec import Codec, register
from placeopt.plans import step_codecs  # noqa: F401 (registers the problems about steps)
from placeopt.plans.plan import PlanStage, ReplicaGroup, TrainingPlan
from placeopt.plans.sample_problem import SamplePlanProblem

if TYPE_CHECKING:
    from placeopt.io.body import Body

_SAMPLE_ARRAYS = ("work", "sync", "kept", "fixed", "source", "target", "sent", "received")


def encode_plan(plan: TrainingPlan) -> dict[str, Any]:
    """Return a plan as JSON."""
    stages = [
        {
            "layers": list(stage.layers),
            "replicas": [
                {"kind": g.kind, "tensor": g.tensor, "count": g.count, "form": g.form}
                for g in stage.replicas
            ],
            "recompute": list(stage.recompute),
        }
        for stage in plan.stages
    ]
    return {
        "stages": stages,
        "micro_batch": plan.micro_batch,
        "schedule": plan.schedule,
        "sharded": plan.sharded,
        "kept": list(plan.kept),
    }


def decode_plan(body: Body) -> TrainingPlan:
    """Return the plan that `encode_plan` wrote."""
    stages = []
    for item in body.bodies("stages"):
        groups = tuple(
            ReplicaGroup(
                group.text("kind"),
                group.integer("tensor"),
                group.integer("count"),
                group.text("form", ""),
            )
            for group in item.bodies("replicas")
        )
        layers, again = item.integers("layers"), item.integers("recompute")
        stages.append(PlanStage(tuple(layers.tolist()), groups, tuple(again.tolist())))
    kept = tuple(body.integers("kept").tolist()) if "kept" in body.data else ()
    return TrainingPlan(
        tuple(stages),
        body.integer("micro_batch", 1),
        body.text("schedule", "1f1b"),
        body.flag("sharded", False),
        kept,
    )


def _encode_sample(problem: SamplePlanProblem) -> dict[str, Any]:
    arrays = {key: getattr(problem, key).ravel().tolist() for key in _SAMPLE_ARRAYS}
    return {
        "name": problem.name,
        "layers": list(problem.layers),
        "tensor_degrees": list(problem.tensor_degrees),
        **arrays,
        "devices": problem.devices,
        "samples": problem.samples,
        "capacity": problem.capacity,
        "units_per_byte": problem.units_per_byte,
        "allow_recompute": problem.allow_recompute,
        "tick_seconds": problem.tick_seconds,
    }


def _decode_sample(body: Body) -> SamplePlanProblem:
    layers, degrees = body.texts("layers"), tuple(body.integers("tensor_degrees").tolist())
    n, t, edges = len(layers), len(degrees), len(body.items("source"))
    shapes = {
        "work": (t, 2, n),
        "kept": (t, 2, n),
        "fixed": (t, 2, n),
        "sync": (t, n),
        "sent": (t, edges),
        "received": (t, edges),
        "source": (edges,),
        "target": (edges,),
    }
    arrays = {}
    for key, shape in shapes.items():
        values = body.integers(key)
        size = 1
        for length in shape:
            size *= length
        if len(values) != size:
            raise body.wrong(key, f"{size} numbers", body.items(key))
        arrays[key] = values.reshape(shape)
    return SamplePlanProblem(
        layers=layers,
        tensor_degrees=degrees,
        **arrays,
        devices=body.integer("devices"),
        samples=body.integer("samples"),
        capacity=body.integer("capacity"),
        units_per_byte=body.integer("units_per_byte", 1),
        allow_recompute=body.flag("allow_recompute", True),
        name=body.text("name"),
        tick_seconds=body.number("tick_seconds"),
    )


register(Codec("plan", TrainingPlan, encode_plan, decode_plan))
register(Codec("sample-plan-problem", SamplePlanProblem, _encode_sample, _decode_sample))
