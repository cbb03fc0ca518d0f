"""JSON of plans, of problems about plans and about the time of a step, with the cost models that
are made of tables; see `placeopt.io.serialize`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

import numpy as np

from placeopt.io.body import Body, plain
from placeopt.io.serialize import Codec, register
from placeopt.model.errors import Refused
from placeopt.model.files import Data
from placeopt.plans.layer_tables import LayerTable
from placeopt.plans.network_table import FittedNetwork, FlatNetwork, Network
from placeopt.plans.plan import PlanStage, ReplicaGroup, TrainingPlan
from placeopt.plans.predicted_costs import Constants, PredictedStepCosts
from placeopt.plans.published_costs import PublishedStepCosts
from placeopt.plans.sample_problem import SamplePlanProblem, array_shapes
from placeopt.plans.step_problem import DevicePool, StepPlanProblem

if TYPE_CHECKING:
    from placeopt.model.arrays import Floats
    from placeopt.plans.step_costs import StepCosts


def encode_plan(plan: TrainingPlan) -> Data:
    """Return a plan as JSON."""
    stages = [
        {
            "layers": list(stage.layers),
            "replicas": [asdict(group) for group in stage.replicas],
            "recompute": list(stage.recompute),
        }
        for stage in plan.stages
    ]
    return {
        "stages": stages,
        **plain(plan, "micro_batch", "schedule", "sharded"),
        "kept": list(plan.kept),
    }


def decode_plan(body: Body) -> TrainingPlan:
    """Return the plan that `encode_plan` wrote."""
    stages = []
    for item in body.bodies("stages"):
        groups = tuple(group.made(ReplicaGroup) for group in item.bodies("replicas"))
        stages.append(item.made(PlanStage, but=("replicas",), replicas=groups))
    return body.made(TrainingPlan, but=("stages",), stages=tuple(stages))


def _encode_sample(problem: SamplePlanProblem) -> Data:
    arrays = {key: getattr(problem, key).ravel().tolist() for key in array_shapes(0, 0, 0)}
    return {**plain(problem, but=arrays), **arrays}


def _decode_sample(body: Body) -> SamplePlanProblem:
    counts = (len(body.items(key)) for key in ("layers", "tensor_degrees", "source"))
    arrays: Data = {}
    for key, shape in array_shapes(*counts).items():
        values, size = body.integers(key), math.prod(shape)
        if len(values) != size:
            raise body.wrong(key, f"{size} numbers", body.items(key))
        arrays[key] = values.reshape(shape)
    return body.made(SamplePlanProblem, but=arrays, **arrays)


register(Codec("plan", TrainingPlan, encode_plan, decode_plan))
register(Codec("sample-plan-problem", SamplePlanProblem, _encode_sample, _decode_sample))


_MODELS: dict[str, type[PredictedStepCosts | PublishedStepCosts]] = {
    "predicted": PredictedStepCosts,
    "published": PublishedStepCosts,
}
_LISTS = ("micro_batches", "data_degrees", "schedules", "forms")
_PLAIN = ("batch", "max_stages", "recompute", "mixed", "sharded", "name", "tick_seconds")


def _encode_problem(problem: StepPlanProblem) -> Data:
    return {
        **plain(problem, *_PLAIN),
        "pools": [asdict(pool) for pool in problem.pools],
        **{key: list(getattr(problem, key)) for key in _LISTS},
        "costs": _encode_costs(problem.costs),
    }


def _encode_costs(costs: StepCosts) -> Data:
    for word, cls in _MODELS.items():
        if isinstance(costs, cls):
            body = {
                "model": word,
                "name": costs.name,
                "table": _encode_table(costs.table),
                "network": _encode_network(costs.network),
            }
            if isinstance(costs, PredictedStepCosts):
                body["constants"] = _finite(asdict(costs.constants))
            return body
    raise Refused(f"no JSON form for the cost model '{costs.name}'; known: {', '.join(_MODELS)}")


def _finite(body: Data) -> Data:
    """Write no limit as null."""
    return {key: None if value == float("inf") else value for key, value in body.items()}


def _encode_table(table: LayerTable) -> Data:
    return {
        **plain(table, "model", "source", "weights_source", "float_bytes"),
        "outputs": table.outputs.tolist(),
        "weight_part": np.asarray(table.weight_part).tolist(),
        "times": [
            {"kind": kind, "micro_batch": size, "tensor": tensor, "seconds": value.ravel().tolist()}
            for (kind, size, tensor), value in table.times.items()
        ],
        "sizes": [
            {
                "tensor": tensor,
                "parameters": value.tolist(),
                "activations": table.activations[tensor].tolist(),
            }
            for tensor, value in table.parameters.items()
        ],
        "shared": [
            {"tensor": tensor, "parameters": value.tolist()}
            for tensor, value in table.shared.items()
        ],
        "forms": [{"form": name, "table": _encode_table(one)} for name, one in table.forms.items()],
    }


def _encode_network(network: Network) -> Data:
    if isinstance(network, FittedNetwork):
        fits = [{"ends": list(ends), "fit": list(fit)} for ends, fit in network.fits.items()]
        return {"network": "fitted", "source": network.source, "raw": network.raw, "fits": fits}
    if isinstance(network, FlatNetwork):
        return {
            "network": "flat",
            "source": network.source,
            **{
                key: [_finite({"kind": kind, "rate": rate}) for kind, rate in rates.items()]
                for key, rates in (("rates", network.rates), ("near", network.near))
            },
        }
    raise Refused(
        f"no JSON form for a network of type {type(network).__name__}; known: fitted, flat"
    )


def _decode_problem(body: Body) -> StepPlanProblem:
    return body.made(
        StepPlanProblem,
        but=("costs", "pools"),
        costs=_decode_costs(body.body("costs")),
        pools=tuple(pool.made(DevicePool) for pool in body.bodies("pools")),
    )


def _decode_costs(body: Body) -> StepCosts:
    word, table = body.text("model"), _decode_table(body.body("table"))
    network = _decode_network(body.body("network"))
    if word == "published":
        return PublishedStepCosts(table, network, body.text("name"))
    if word != "predicted":
        raise body.wrong("model", f"one of {', '.join(_MODELS)}", word)
    given = body.body("constants")
    numbers = {
        field.name: _rate(given, field.name)
        for field in fields(Constants)
        if field.name != "source"
    }
    return PredictedStepCosts(
        table, network, Constants(**numbers, source=given.text("source")), body.text("name")
    )


def _rate(body: Body, key: str) -> float:
    """Return a number, null standing for no limit."""
    return float("inf") if body.data.get(key, 0) is None else body.number(key)


def _decode_table(body: Body) -> LayerTable:
    outputs = body.numbers("outputs")
    times = {
        (row.text("kind"), row.integer("micro_batch"), row.integer("tensor")): _shaped(
            row, "seconds", len(outputs)
        )
        for row in body.bodies("times")
    }
    sizes = body.bodies("sizes")
    return LayerTable(
        body.text("model"),
        times,
        {row.integer("tensor"): row.numbers("parameters") for row in sizes},
        {row.integer("tensor"): row.numbers("activations") for row in sizes},
        outputs,
        body.integer("float_bytes"),
        body.text("source"),
        body.numbers("weight_part"),
        body.text("weights_source"),
        {row.integer("tensor"): row.numbers("parameters") for row in _known(body, "shared")},
        {row.text("form"): _decode_table(row.body("table")) for row in _known(body, "forms")},
    )


def _known(body: Body, key: str) -> list[Body]:
    """Return a list of objects that may be missing."""
    return body.bodies(key) if key in body.data else []


def _shaped(body: Body, key: str, layers: int) -> Floats:
    values = body.numbers(key)
    if len(values) != 3 * layers:
        raise body.wrong(key, f"{3 * layers} numbers", body.items(key))
    return values.reshape(layers, 3)


def _decode_network(body: Body) -> Network:
    word = body.text("network")
    if word == "flat":
        rates, near = (
            {row.text("kind"): _rate(row, "rate") for row in _known(body, key)}
            for key in ("rates", "near")
        )
        return FlatNetwork(rates, body.text("source"), near)
    if word != "fitted":
        raise body.wrong("network", "one of fitted, flat", word)
    fits = {}
    for row in body.bodies("fits"):
        ends, fit = row.items("ends"), row.numbers("fit").tolist()
        try:
            (one, count, other, size), (c0, c1, c2, largest) = ends, fit
            fits[str(one), int(count), str(other), int(size)] = c0, c1, c2, largest
        except (TypeError, ValueError) as error:
            raise row.wrong(
                "ends", "kind, devices, kind, devices and four numbers of their fit", ends
            ) from error
    return FittedNetwork(fits, body.text("source"), body.flag("raw"))


register(Codec("step-plan-problem", StepPlanProblem, _encode_problem, _decode_problem))
