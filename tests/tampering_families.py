"""Proofs of pipelines and shardings that were tampered with: what they claim is false by the judges
of the package, which share no code with the checker. The digest is made anew.
"""

from __future__ import annotations

import json

import numpy as np
from tampering import _record

from placeopt.certify.certificate import finished
from placeopt.io.serialize import from_dict
from placeopt.model.objective import objective_of
from placeopt.schedules.judge import pattern_violations, pipeline_violations
from placeopt.sharding.problem import ShardingSolution

PIPELINE = ("value", "bound", "pattern", "completion", "problem", "device", "false-claim", "record")
SHARDING = ("value", "bound", "choice", "problem", "false-claim", "record")
KINDS = {"pipelines": PIPELINE, "shardings": SHARDING}


def tampered(family, proof, kind, rng):
    """Return a proof changed as `kind` says, None where the change left it right."""
    data = json.loads(json.dumps(proof))
    if kind == "record":
        changed = _record(data, rng)
    else:
        change = {"pipelines": _pipeline, "shardings": _sharding}[family]
        changed = change(data, kind, rng)
        holds = {"pipelines": pipeline_holds, "shardings": sharding_holds}[family]
        if changed and kind != "false-claim" and holds(data):
            return None
    return finished(data) if changed else None


def _problem_of(data, kind):
    """Return the problem of a proof; ticks mean what they mean."""
    return from_dict({"format": f"placeopt/{kind}", "version": 1, **data["problem"]})


def pipeline_holds(data):
    """Whether all that a proof of a pipeline claims is so, by the judge and the bounds."""
    try:
        problem = _problem_of(data, "pipeline")
        period, starts = data["solution"]["period"], np.array(data["solution"]["starts"])
        whole = np.array(data["schedule"]["start"])
        if pattern_violations(problem, period, starts) or pipeline_violations(problem, whole):
            return False
        makespan, least = int((whole + problem.span).max()), data["schedule"]["least"]
        return (
            data["value"] == period
            and data["schedule"]["makespan"] == makespan
            and least <= _between_ends(problem)
            and data["lower_bound"] <= len(starts) * int(problem.work[data["witness"]["device"]])
        )
    except Exception:  # nonsense claims nothing
        return False


def _between_ends(problem):
    """Return the most ticks of a device: its work, and the longest ways before and after it."""
    head, tail = [0] * problem.num_blocks, [0] * problem.num_blocks
    order, span = problem.topological_order.tolist(), problem.span.tolist()
    edges = sorted(problem.edges, key=lambda edge: order.index(edge[0]))
    for u, v, lag in edges:
        head[v] = max(head[v], head[u] + span[u] + lag)
    for u, v, lag in sorted(edges, key=lambda edge: -order.index(edge[1])):
        tail[u] = max(tail[u], lag + span[v] + tail[v])
    n = problem.micro_batches
    return max(
        min(head[b] for b in here) + n * sum(span[b] for b in here) + min(tail[b] for b in here)
        for here in map(list, problem.on_device)
        if here
    )


def _pipeline(data, kind, rng):
    blocks = data["problem"]["blocks"]
    if kind == "value":
        data["value"] = max(0, data["value"] + rng.choice([-7, -1, 1, 5, 1000]))
    elif kind == "bound":
        data["lower_bound"] = data["value"] + rng.choice([1, 2, 10**6])
    elif kind == "pattern":
        if rng.random() < 0.3:
            data["solution"]["period"] -= 1
            data["value"] = data["lower_bound"] = data["solution"]["period"]
        else:
            row = rng.choice(data["solution"]["starts"])
            row[rng.randrange(len(row))] += rng.choice([-3, -1, 1, 1, 2])
    elif kind == "completion":
        row = rng.choice(data["schedule"]["start"])
        way = rng.choice(["start", "start", "makespan", "least", "drop"])
        if way == "start":
            row[rng.randrange(len(row))] += rng.choice([-5, -1, 1, 3])
        elif way == "drop":
            data["schedule"]["start"].pop()
        else:
            data["schedule"][way] += rng.choice([-1, 1, 9]) if way == "makespan" else 1
    elif kind == "problem":
        block, key = rng.choice(blocks), rng.choice(["span", "memory", "after", "capacity"])
        if key == "span":
            block["span"] = max(0, block["span"] + rng.choice([-1, 1, 2]))
        elif key == "memory":
            block["memory"] = [x + rng.choice([0, 1, 5]) for x in block["memory"]]
        elif key == "after":
            block["after"] = [{"block": rng.choice(blocks)["name"], "lag": rng.choice([0, 1, 50])}]
        else:
            data["problem"]["capacity"] = [rng.choice([0, 1])] * len(data["problem"]["devices"])
    elif kind == "device":
        data["witness"]["device"] = rng.choice([-1, 0, 1, 99, None, 10**6])
    else:
        more = rng.choice([1, 2, 9])  # a longer pattern that is valid, called optimal
        for where, key in ((data["solution"], "period"), (data, "value"), (data, "lower_bound")):
            where[key] += more
    return True


def sharding_holds(data):
    """Whether the choice of a proof has the claimed cost, by the judge, and the bound is not above
    it.
    """
    try:
        problem = _problem_of(data, "sharding")
        choice = ShardingSolution(np.array(data["solution"]["strategies"]))
        value = objective_of(problem).finish(problem, choice).value
        return value == data["value"] and data["lower_bound"] <= data["value"]
    except Exception:
        return False


def _sharding(data, kind, rng):
    chosen = data["solution"]["strategies"]
    if kind == "value":
        data["value"] = max(0, data["value"] + rng.choice([-1000, -7, -1, 1, 5, 1000]))
    elif kind == "bound":
        data["lower_bound"] = data["value"] + rng.choice([1, 2, 10**6])
    elif kind == "choice":
        chosen[rng.randrange(len(chosen))] += rng.choice([-1, 1, 2])
    elif kind == "problem":
        key = rng.choice(["cost", "usage", "edge_cost", "interval", "usage_limit"])
        if key == "usage_limit":
            data["problem"][key] = rng.choice([0, 1000, -1])
        elif key == "interval":
            rng.choice(data["problem"][key]).reverse()
        else:
            row = data["problem"][key]
            for _ in range(rng.choice([1, 5, 50])):
                row[rng.randrange(len(row))] += rng.choice([1, 50, -(2**70)])
    else:
        return _dearer(data, rng)
    return True


def _dearer(data, rng):
    """Another choice, which costs more, claimed to be the best, with numbers of the witness changed;
    as the best choice is known to cost less, the claim is false.
    """
    best, chosen = data["value"], data["solution"]["strategies"]
    problem = _problem_of(data, "sharding")
    for _ in range(5):
        v = rng.randrange(len(chosen))
        chosen[v] = rng.randrange(int(problem.num_choices[v]))
        value = objective_of(problem).finish(problem, ShardingSolution(np.array(chosen))).value
        if value is not None and value > best:
            data["value"] = data["lower_bound"] = int(value)
            for message in rng.sample(data["witness"]["messages"], rng.choice([0, 1, 3])):
                row = rng.choice(message[2:])
                row[rng.randrange(len(row))] += rng.choice([-1, 1, 1000, 2**50])
            return True
    return None
