"""Proofs that were tampered with: what they claim is false, or their witness shows it no longer.
The digest is made anew.

A change that leaves a proof right is none: whether a schedule still has the claimed value is asked
of the judge of `placeopt.makespan`, which shares no code with the checker, and a witness is changed
only such that a step is missing or wrong, or together with a claim that is false because a schedule
of that length was judged valid.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np

from placeopt.certify.certificate import finished
from placeopt.io.serialize import from_dict, to_dict
from placeopt.makespan.judge import schedule_violations
from placeopt.model.placement import Schedule

KINDS = ("value", "bound", "witness", "placement", "schedule", "problem", "false-claim", "record")


CHECKER = Path(__file__).parents[1] / "tools" / "check_proof.py"

ENVELOPE = ("format", "version", "tick_seconds")


def plain(problem):
    """Return the JSON of a problem, or of a solution, as a proof holds it."""
    return {
        key: x for key, x in json.loads(json.dumps(to_dict(problem))).items() if key not in ENVELOPE
    }


def load_checker():
    """Import the checker from its file: what it names is that of the package beside it."""
    spec = importlib.util.spec_from_file_location("check_proof", CHECKER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def verdict(checker, data):
    """Return what the checker says of a proof: accepted, refused (a statement is false) or no proof
    (it cannot be read).
    """
    try:
        checker.check(checker.parse(json.dumps(data)))
    except checker.FalseStatementError:
        return "refused"
    except (
        Exception
    ):  # as the checker's own main does: whatever a file of the wrong shape runs into
        return "no proof"
    return "accepted"


def judged(data):
    """Return the value of a makespan proof's schedule by the judge, None if it is not valid."""
    problem = from_dict({"format": "placeopt/problem", "version": 1, **data["problem"]})
    device, start = np.array(data["solution"]["device"]), np.array(data["schedule"]["start"])
    rows = np.array(data["schedule"]["transfers"], dtype=np.int64).reshape(-1, 3)
    finish = start + problem.compute[np.arange(len(device)), device]
    ticks = problem.transfer[
        rows[:, 0], problem.link_class[device[problem.producer[rows[:, 0]]], rows[:, 1]]
    ]
    schedule = Schedule(
        device, start, finish, rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 2] + ticks
    )
    return None if schedule_violations(problem, schedule) else schedule.makespan


def holds(data):
    """Whether the schedule of a proof, which may be nonsense, has the claimed value; other
    objectives: by their judge.
    """
    try:
        return judged(data) == data["value"]
    except Exception:
        return False


def tampered(proof, kind, rng):
    """Return a proof of the makespan changed as `kind` says, None where the change left it right.

    Parameters
    ----------
    rng : random.Random.
    """
    data = json.loads(json.dumps(proof))
    changed = globals()["_" + kind.replace("-", "_")](data, rng)
    if changed is None or (kind in ("placement", "schedule", "problem") and holds(data)):
        return None
    return finished(data)


def _value(data, rng):
    data["value"] = max(0, data["value"] + rng.choice([-1000, -7, -1, 1, 5, 1000]))
    return True if not holds(data) else None


def _bound(data, rng):
    """More than the value of a solution that everyone can see."""
    data["lower_bound"] = data["value"] + rng.choice([1, 2, 10, 10**6])
    return True


def _witness(data, rng):
    steps = data["witness"]["steps"]
    way = rng.choice(["none", "first", "name", "index", "type", "words", "stranger"])
    if way == "none":
        data["witness"]["steps"] = []
    elif way == "first":  # only a sweep along the edges, where the proof needs more
        if len(steps) < 2 and not steps[0][2]:
            return None
        data["witness"]["steps"] = [["same", 0, len(data["problem"]["compute"])]]
    elif way == "name":
        rng.choice(steps)[0] = rng.choice(["", "trust", "prove", 3, None])
        return True if steps[0][0] not in ("sweep", "branch") else None
    elif way == "index":
        steps.insert(0, ["ends", [len(data["problem"]["compute"])]])
    elif way == "type":
        steps.insert(0, ["window", 0, rng.choice([1.5, True, "3", None, [1], -1]), [1], [0]])
    elif way == "words":
        steps.insert(0, steps[0][:-1])
    else:
        v = rng.randrange(len(data["problem"]["compute"]))
        steps.insert(0, ["sweep", 0, [[v, 0, data["lower_bound"], [v]]]])
        if len(data["problem"]["producer"]) and not any(
            v in row for row in data["problem"]["consumers"]
        ):
            return True
        return True
    return True


def _placement(data, rng):
    devices, device = len(data["problem"]["capacity"]), data["solution"]["device"]
    for _ in range(rng.choice([1, 1, 2, len(device)])):
        device[rng.randrange(len(device))] = rng.randrange(devices + 1)
    return True


def _schedule(data, rng):
    start, moves = data["schedule"]["start"], data["schedule"]["transfers"]
    way = rng.choice(["earlier", "earlier", "later", "drop", "twice", "moved"])
    if way in ("drop", "twice", "moved") and not moves:
        return None
    if way == "drop":
        moves.pop(rng.randrange(len(moves)))
    elif way == "twice":
        moves.append(rng.choice(moves))
    elif way == "moved":
        rng.choice(moves)[rng.randrange(3)] += rng.choice([-1, 1])
    else:
        v = rng.randrange(len(start))
        start[v] = start[v] + rng.choice([1, 100]) * (-1 if way == "earlier" else 1)
    return True


def _problem(data, rng):
    problem = data["problem"]
    key = rng.choice(["compute", "transfer", "capacity", "colocation", "consumers", "channel"])
    if key == "compute":
        row = rng.choice(problem["compute"])
        for d in range(len(row)):
            row[d] = max(0, row[d] + rng.choice([1, -1, 100]))
    elif key == "transfer":
        for row in problem["transfer"]:
            row[:] = [x + rng.choice([1, 50]) for x in row]
    elif key == "capacity":
        problem["capacity"] = [rng.choice([0, -1, "1"])] * len(problem["capacity"])
    elif key == "colocation":
        problem["colocation"] = [0] * len(problem["colocation"])
    elif key == "consumers":
        rng.choice(problem["consumers"]).append(rng.randrange(len(problem["compute"])))
    else:
        problem["channel"] = [[0] * len(row) for row in problem["channel"]]
    return True


def _false_claim(data, rng):
    """A schedule one or more ticks longer, and the bound that this length is optimal, with numbers
    of the witness changed.
    """
    if data["lower_bound"] != data["value"]:
        return None
    more = rng.choice([1, 1, 2, 9])
    data["schedule"]["start"] = [s + more for s in data["schedule"]["start"]]
    data["schedule"]["transfers"] = [[t, d, s + more] for t, d, s in data["schedule"]["transfers"]]
    data["value"] += more
    data["lower_bound"] += more
    assert holds(data), "the longer schedule is valid, so that its length is no bound"
    spots = list(_numbers(data["witness"]["steps"]))
    for _ in range(rng.choice([0, 1, 2, 5]) if spots else 0):
        where, i = rng.choice(spots)
        where[i] = max(0, where[i] + rng.choice([-1, 1, 1, more]))
    return True


def _record(data, rng):
    """Entries that are missing, of other types, or unknown."""
    key = rng.choice(sorted(set(data) - {"digest"}))
    way = rng.choice(["missing", "type", "extra", "believed"])
    if way == "missing":
        del data[key]
    elif way == "type":
        data[key] = rng.choice([None, 1.5, True, [], "1", {}, -1])
        if (
            data[key] == []
            and key == "believed"
            and not json.dumps(data["witness"]).count('"front"')
        ):
            return None
    elif way == "extra":
        data["trust"] = 1
    else:
        data["believed"] = [*data["believed"], {"statement": "trust me", "model": {}}]
    return True


def _numbers(value):
    for i, x in enumerate(value):
        if isinstance(x, list):
            yield from _numbers(x)
        elif isinstance(x, int):
            yield value, i
