"""Proofs: what is proved of a placement, a period or a sharding is written, and the plain checker
has to accept it; a bound that it accepts is not above the optimum of brute force.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import sys
import tempfile
from contextlib import redirect_stdout
from itertools import product
from pathlib import Path
from unittest import mock

import brute_force
import compare
import family_pipeline
import family_sharding
import numpy as np
from case import draw

import placeopt as po
from placeopt.certify.certificate import finished, prove
from placeopt.certify.verify import verify
from placeopt.io.serialize import to_dict
from placeopt.model.errors import InputError, SolverError
from placeopt.model.objective import objective_of
from placeopt.schedules import schedule
from placeopt.sharding.problem import ShardingSolution

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tampering import load_checker

LARGEST = 2**49
"""Ticks up to which writers look for lemmas in floating point."""


def attack(seed):
    """Return (whether there is a solution, every difference)."""
    rng = random.Random(seed)
    found = rng.choice([_sharding, _placement, _placement, _pipeline])(rng)
    if found is None:
        return False, []
    problem, solution, best = found
    if best >= LARGEST:
        return True, []
    # under the execution in which it is valid and fastest, as brute force values it
    queue = objective_of(problem).finish(problem, solution).queue or None
    certificate = verify(problem, solution, seconds=0.0, queue=queue)
    if certificate.value is None:
        return True, [f"a valid solution is refused: {certificate.violations[:1]}"]
    data = json.loads(json.dumps(prove(problem, solution, certificate, seconds=0.5)))
    claim = f"accepted: value {certificate.value}, lower bound {data['lower_bound']}"
    text, wrong = json.dumps(data), rng.choice(sorted(DAMAGES))
    about = to_dict(problem) if rng.random() < 0.3 else None
    code, said = checked(text.encode(), rng, about)
    if code or claim not in said:
        return True, [f"the checker says {said} of an honest proof, {claim} was written"]
    if data["lower_bound"] > best:
        return True, [f"a proof of {data['lower_bound']} is accepted, the optimum is {best}"]
    if about is not None:
        about = {**about, "name": f"not {about['name']}"}
        code, said = checked(text.encode(), rng, about)
        if code != 1:
            return True, [f"the checker says {said} of a proof about another problem"]
    code, said = checked(DAMAGES[wrong](text, data), rng)
    return True, [] if code else [f"the checker says {said} of a file with {wrong}"]


def _another_value(text, data):
    return json.dumps(finished({**data, "value": data["value"] + 1})).encode()


DAMAGES = {
    "another value": _another_value,
    "a number that is not whole": lambda text, data: text.replace(
        '"version": 1', '"version": 1.0'
    ).encode(),
    "no number": lambda text, data: b'{"value": NaN}',
    "a key twice": lambda text, data: text.replace("{", '{"value": 1, ', 1).encode(),
    "its end missing": lambda text, data: text[:-1].encode(),
    "no text": lambda text, data: b"\xff" + text.encode(),
    "more bytes than allowed": lambda text, data: text.encode() + b" " * MOST,
}
"""What makes a proof none, by name: called with its text and its content."""

MOST = 10**6
"""Bytes that the checker may read here."""


def checked(content, rng, about=None):
    """Return the exit code of the checker's command and what it prints of a file, plain or gzipped,
    that has to be about a problem if one is given.
    """
    with (
        tempfile.NamedTemporaryFile(suffix=".json") as file,
        tempfile.NamedTemporaryFile(suffix=".json") as known,
        io.StringIO() as said,
    ):
        file.write(content if rng.random() < 0.5 else gzip.compress(content, 1))
        file.flush()
        words = ["check_proof", "--max-bytes", str(MOST), file.name]
        if about is not None:
            known.write(json.dumps(about).encode())
            known.flush()
            words[1:1] = ["--problem", known.name]
        with mock.patch("sys.argv", words), redirect_stdout(said):
            try:
                load_checker().command()
            except SystemExit as stop:
                return stop.code, said.getvalue()


def _placement(rng):
    """Return (problem, a placement that is valid, optimum), None where there is none."""
    case = draw(rng, rng.choice(["makespan", "makespan", "period"]))
    while case.objective == "makespan" and case.memory == "static" and rng.random() < 0.6:
        case = draw(rng, "makespan")
    best = brute_force.optimum(case)
    if best is None:
        return None
    try:
        problem = compare.problem_of(case)
    except InputError:
        return None
    every = list(product(range(case.num_devices), repeat=case.num_ops))
    for device in rng.sample(every, len(every)):
        rank = rng.sample(range(case.num_ops), case.num_ops) if rng.random() < 0.5 else None
        if case.objective == "period":
            rank = None
        solution = po.Placement(np.array(device), None if rank is None else np.array(rank))
        if compare.true_value(case, solution) is not None:
            return problem, solution, best
    return None


def _pipeline(rng):
    """Return (problem, a schedule of it, least period of one micro-batch), None where there is
    none.
    """
    blocks, capacity = family_pipeline.draw_blocks(rng)
    try:
        problem = family_pipeline.problem_of(0, blocks, capacity)
        found = schedule(problem, seconds=5.0, num_workers=1, latency_seconds=0)
    except (InputError, SolverError):
        return None
    return problem, found, family_pipeline.least_period(blocks, capacity, 1)


def _sharding(rng):
    """Return (problem, a choice within the limit, least cost), None where there is none."""
    seed = rng.randrange(10**9)
    drawn = family_sharding.draw_tables(random.Random(seed))
    every = list(product(*(range(len(row)) for row in drawn[0])))
    values = {choice: family_sharding.value(drawn, choice) for choice in every}
    good = [choice for choice, value in values.items() if value is not None]
    if not good:
        return None
    problem = family_sharding.problem_of(seed, drawn)
    chosen = rng.choice(good)
    return problem, ShardingSolution(np.array(chosen)), min(values[choice] for choice in good)
