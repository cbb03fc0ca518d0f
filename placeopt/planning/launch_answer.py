"""What `placeopt plan` says of a launchable plan, as JSON."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np

from placeopt.model.arrays import Floats
from placeopt.model.files import Data
from placeopt.planning.launch_files import launch_files
from placeopt.planning.launch_search import (
    NOT_SEARCHED,
    SEARCHED,
    LaunchAnswer,
    LaunchProblem,
    Priced,
    missing,
    why,
)
from placeopt.plans.model_shapes import stage_layers


def regrets(answer: LaunchAnswer) -> Floats | None:
    """Return what each fitting plan loses at most against the best of all, as a part; shape
    (plans,).

    All are plans on as many devices. Over the sampled calibrations: constants that were fitted
    together to a bootstrap of the runs, and no others, so that it certifies nothing about constants
    between and beyond them.
    """
    samples = answer.problem.constants.samples
    if not answer.fitting or not samples:
        return None
    # the model takes arrays of constants as it takes numbers: all samples at once
    drawn: Data = {name: np.array(values) for name, values in samples.items()}
    known = answer.problem.constants
    constants = replace(known, values=known.values | drawn)
    model = replace(answer.problem, constants=constants).model
    count = min(map(len, samples.values()))
    totals = [model.parts(priced.conf).total for priced in answer.fitting]
    times = np.array([np.broadcast_to(total, (count,)) for total in totals])
    return np.asarray((times / times.min(axis=0) - 1).max(axis=1))


def _regret(answer: LaunchAnswer) -> Data:
    """Return the regret of the best plan, and the plan that has the least (Savage, JASA 1951)."""
    found = regrets(answer)
    if found is None:
        return {"regret": None}
    safest = int(np.argmin(found))
    plan = answer.fitting[safest]
    return {
        "regret": float(found[0]),
        "safest": {
            "plan": plan.conf.text(),
            "step_seconds": plan.seconds,
            "regret": float(found[safest]),
        },
    }


def links(problem: LaunchProblem, priced: Priced) -> dict[str, str]:
    """Return the link that each group takes, in words."""
    conf, model = priced.conf, problem.model
    groups = {
        "tensor": (1, conf.tensor),
        "context": (conf.tensor, conf.context),
        "data": (conf.tensor, conf.ranks),
    }
    found = {}
    for name, (stride, count) in groups.items():
        if count > 1:
            rate, _ = model.rate(stride, count, conf.per_host)
            near = stride * count <= problem.machine.gpu.joined(conf.per_host)
            where = "inside a host" if near else "between hosts"
            found[name] = f"{where}, {rate / 1e9:.0f} GB/s"
    return found


DEGREES = ("data", "tensor", "context", "expert")


def stages(problem: LaunchProblem, priced: Priced) -> list[Data]:
    """Return the stages with their layers and devices; those of a device follow each other."""
    conf, name = priced.conf, problem.machine.gpu.name
    width = conf.tensor * conf.context * conf.data
    sizes = stage_layers(problem.shape.layers, conf.pipeline * conf.chunks)
    alike = {
        **{name: getattr(conf, name) for name in DEGREES},
        "recompute": conf.recompute != "none",
        "compute_seconds": priced.parts.to_json()["compute"] / conf.rounds / conf.chunks,
        "memory_bytes": priced.memory.total,
    }
    found: list[Data] = []
    for i, (begin, end) in enumerate(pairwise(accumulate(sizes, initial=0))):
        first = i % conf.pipeline * width
        devices = [f"{name}/{number}" for number in range(first, first + width)]
        found.append({"layers": list(range(begin, end)), "devices": devices, **alike})
    return found


def plan_body(problem: LaunchProblem, priced: Priced) -> Data:
    """Return one plan."""
    conf, machine = priced.conf, problem.machine
    tokens = conf.batch * conf.sequence / priced.seconds
    peak, used = machine.gpu.peak(conf.precision)
    flops = problem.shape.flops(conf.sequence) * tokens / conf.devices
    return {
        "plan": conf.text(),
        "step_seconds": priced.seconds,
        "throughput": conf.batch / priced.seconds,
        "tokens_per_second": tokens,
        "tokens_per_second_per_device": tokens / conf.devices,
        "mfu": flops / peak,
        "peak_flops": peak,
        "peak_precision": used,
        "devices_used": conf.devices,
        **{name: getattr(conf, name) for name in (*DEGREES, "pipeline", "micro_batch")},
        "micro_batches": conf.rounds,
        "schedule": "1f1b" if conf.chunks == 1 else f"interleaved-1f1b:{conf.chunks}",
        "recompute": conf.recompute,
        "sharding": conf.sharding + (f" of {conf.shard_group}" if conf.shard_group else ""),
        "precision": conf.precision,
        "parts_seconds": priced.parts.to_json(),
        "memory_parts_bytes": priced.memory.to_json(),
        "peak_memory_bytes": priced.memory.total,
        "fits": priced.memory.total <= problem.limit,
        "links": links(problem, priced),
        "stages": stages(problem, priced),
    }


def to_json(answer: LaunchAnswer) -> Data:
    """Return what `placeopt plan --json` prints; the plan is the given one, else the best."""
    problem, given, best = answer.problem, answer.given, answer.best
    body, shown = _search_body(answer), given or best
    if shown is None:
        return body
    body |= plan_body(problem, shown)
    bound = answer.lower_bound
    if body["fits"]:
        body["gap"] = (shown.seconds - bound) / shown.seconds if bound else 1.0
    if given is not None:
        body["best"] = None if best is None else plan_body(problem, best) | {"stages": []}
        body["message"] = _against_best(answer, given, best)
    else:
        body |= _measured_interval(problem, shown) | _regret(answer)
    if body["fits"]:
        body["launch"] = {
            name: item.get("refused") or f"written as {item['file']}"
            for name, item in launch_files(problem, shown.conf).items()
        }
    return body


def _search_body(answer: LaunchAnswer) -> Data:
    """Return what was asked, and how far the search went."""
    problem = answer.problem
    return {
        "problem": f"{problem.shape.name} on {problem.machine.devices} {problem.machine.gpu.name}",
        "solver": "all-plans",
        "batch": problem.batch,
        "sequence": problem.sequence,
        "parameters": round(problem.shape.parameters),
        "active_parameters": round(problem.shape.active_parameters),
        "step_seconds": None,
        "lower_bound_seconds": answer.lower_bound,
        "bound_method": "every plan of the space was priced" if answer.complete else "none",
        "gap": None,
        "status": _status(answer),
        "plans_looked_at": answer.looked,
        "plans_that_fit": answer.fits,
        "runtime": answer.runtime,
        "space": [SEARCHED, NOT_SEARCHED],
        "devices_left": answer.left,
        "why_left": answer.why_left,
        "sources": [
            {"what": "devices", "source": problem.machine.gpu.source},
            {"what": "constants", "source": problem.constants.source},
        ],
        "message": missing(answer) if answer.best is None else "",
        "stages": [],
        "runner_ups": [] if answer.best is None else _runner_ups(answer.best, answer.others),
    }


def _runner_ups(best: Priced, others: dict[str, Priced]) -> list[Data]:
    return [
        {
            "what": what,
            "plan": other.conf.text(),
            "step_seconds": other.seconds,
            "reason": why(best.parts, other.parts),
        }
        for what, other in others.items()
    ]


def _status(answer: LaunchAnswer) -> str:
    if answer.given is not None:
        return "given"
    if answer.best is None:
        return "infeasible" if answer.complete else "unknown"
    return "optimal" if answer.complete else "feasible"


def _measured_interval(problem: LaunchProblem, best: Priced) -> Data:
    """Return the interval of measured steps in rows like this one, if any are known."""
    found = problem.constants.interval(best.conf, problem.machine.gpu)
    if found is None:
        return {}
    low, high, rows, key = found
    return {
        "measured_interval_seconds": [best.seconds * low, best.seconds * high],
        "measured_interval": f"eight in ten of {rows} measured rows like it ({key})",
    }


def _against_best(answer: LaunchAnswer, given: Priced, best: Priced | None) -> str:
    """Compare the given plan with the best."""
    if given.memory.total > answer.problem.limit:
        over = (given.memory.total - answer.problem.limit) / 2**30
        return f"the given plan does not fit: {over:.1f} GiB a device too much"
    if best is None or given.seconds <= best.seconds:
        some = "" if answer.complete else ", of which some were not looked at in time"
        return f"the given plan is the best of the space{some}"
    return f"the best plan is {best.conf.text()}; the given one is {why(best.parts, given.parts)}"
