"""Proofs that travel: problem, solution, schedule, value, bound and witness in one JSON that others
can check.

`tools/check_proof.py`, plain Python that shares no code with this package, recomputes the value and
follows the witness; docs/proofs.md states format and semantics.
"""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

from placeopt.io.serialize import to_dict
from placeopt.model.errors import InputError
from placeopt.model.files import digest, write_bytes
from placeopt.model.objective import objective_of

if TYPE_CHECKING:
    from pathlib import Path

    from placeopt.certify.certificate import Certificate

FORMAT, VERSION = "placeopt-proof", 1

_ENVELOPE = ("format", "version", "tick_seconds", "problem")
"""Entries of the JSON of a problem and of a solution that a proof, in whole ticks, leaves out."""


def prove(
    problem: Any, solution: Any, certificate: Certificate, seconds: float = 60.0
) -> dict[str, Any]:
    """Return the proof of a certificate as plain JSON values.

    Its lower bound is that of the certificate, or as much of it as a witness shows.

    Parameters
    ----------
    solution : the solution that the certificate is about.
    seconds : time to find a witness.

    Raises
    ------
    InputError
        If the solution is not valid, or there are no witnesses of this objective yet.
    """
    objective = objective_of(problem)
    if certificate.value is None:
        raise InputError(
            f"proof of '{problem.name}': the solution is not valid: {certificate.violations[0]}"
        )
    witness = objective.witness(problem, certificate.lower_bound, certificate.bound_method, seconds)
    if witness is None:
        raise InputError(
            f"proof of '{problem.name}': there are no witnesses of bounds on the {objective.name} "
            f"of a {objective.kind} problem yet; leave out --proof"
        )
    return finished(
        {
            "format": FORMAT,
            "version": VERSION,
            "objective": objective.name,
            "problem": _plain(problem),
            "solution": _plain(solution),
            "schedule": objective.timetable(problem, solution, certificate.queue),
            "value": certificate.value,
            "lower_bound": witness.bound,
            "witness": {"method": witness.method, **witness.content},
            "believed": [
                {"statement": belief.statement, "model": belief.model} for belief in witness.beliefs
            ],
            **objective.proof_parts(problem, solution, certificate.value, witness),
        }
    )


def finished(data: dict[str, Any]) -> dict[str, Any]:
    """Return a proof with its digest."""
    content = {key: value for key, value in data.items() if key != "digest"}
    return {**content, "digest": digest(content)}


def write_proof(path: str | Path, data: dict[str, Any]) -> Path:
    """Write a proof; a name that ends in .gz is compressed."""
    content = (json.dumps(data, separators=(",", ":")) + "\n").encode()
    return write_bytes(
        path, gzip.compress(content, mtime=0) if str(path).endswith(".gz") else content
    )


def _plain(value: Any) -> dict[str, Any]:
    """Return the JSON of a problem or a solution without what a proof does not need."""
    return {key: x for key, x in to_dict(value).items() if key not in _ENVELOPE}
