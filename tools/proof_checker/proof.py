"""A whole proof: its envelope, its digest, the value of its solution, and its bound."""

import hashlib
import json

from proof_checker.derivation import placement_bound
from proof_checker.makespan_value import makespan
from proof_checker.period_value import period
from proof_checker.pipeline import Pipeline
from proof_checker.pipeline_period import pattern_period, work_bound
from proof_checker.placement import Placement
from proof_checker.reading import choice, demand, entries, fields, name, require, texts, whole
from proof_checker.sharding import Sharding, sharding_cost
from proof_checker.sharding_bound import sharding_bound

FIELDS = (
    "believed digest format lower_bound objective problem schedule solution value version witness"
)

OBJECTIVES = {
    "makespan": (Placement, makespan, placement_bound, "steps", "islands unit"),
    "period": (Placement, period, placement_bound, "steps", "unit"),
    "cost": (Sharding, sharding_cost, sharding_bound, "bits prices messages", "stars squares"),
    "pipeline-period": (Pipeline, pattern_period, work_bound, "device"),
}
"""What reads a problem, values a solution and verifies a bound, and the fields that its witness has
and may have."""


def check(data, problem=None):
    """Check one proof, which has to be about a problem if one is given; return what it claims, and
    the statements that had to be believed.
    """
    fields(data, FIELDS)
    known = data["format"], whole(data["version"])
    require(known == ("placeopt-proof", 1), "format: expected a placeopt-proof, version 1")
    check_digest(data)
    right = problem is None or data["problem"] == problem
    demand(right, "the proof is about the problem that is given")
    objective = choice(data["objective"], " ".join(OBJECTIVES))
    reader, value_of, verify_bound, content, *more = OBJECTIVES[objective]
    method = name(fields(data["witness"], f"method {content}", *more)["method"])
    problem, believed = reader(data["problem"]), []
    require(problem.objective == objective, f"expected a problem of the objective {objective}")
    value, bound = whole(data["value"]), whole(data["lower_bound"])
    found = value_of(problem, data["solution"], data["schedule"])
    demand(found == value, f"the value is {found}, not {value}")
    demand(bound <= value, f"the bound {bound} is above the value {value}")
    verify_bound(problem, bound, data["witness"], believed, data["solution"])
    demand(
        believed == stated(data["believed"]),
        "what has to be believed is written out, and nothing else",
    )
    return f"value {value}, lower bound {bound} by {method}", believed


def check_digest(data):
    """Refuse a file that is not as it was written: a guard against accidents, not against liars."""
    content = {key: x for key, x in data.items() if key != "digest"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    right = hashlib.sha256(text.encode()).hexdigest() == data["digest"]
    demand(right, "the digest is that of the content")


def stated(believed):
    """Return the statements that a file says have to be believed."""
    rows = [fields(x, "statement model") for x in entries(believed)]
    return texts([x["statement"] for x in rows], len(rows))
