"""The records of what is proved about one solution: certificates, and proofs that travel.

A certificate states whether the solution is valid, its value, a proven lower bound and hence its
gap. It carries the hashes of the problem and of the solution and the versions used, so that it can
be checked again later. What it claims is under a digest; what follows from its claims is recomputed
when it is read.

A proof holds problem, solution, schedule, value, bound and witness in one JSON that others can
check: `tools/check_proof.py`, plain Python that shares no code with this package, recomputes the
value and follows the witness; docs/proofs.md states format and semantics.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from fractions import Fraction
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from placeopt.io.body import CLAIM, FRACTION
from placeopt.io.serialize import to_dict
from placeopt.model.bound import plain_number
from placeopt.model.errors import InputError
from placeopt.model.files import Data, digest, write_bytes
from placeopt.model.objective import objective_of
from placeopt.model.result import gap_of
from placeopt.model.shown import Shown

FORMAT, FORMAT_VERSION = "placeopt-certificate", 2
PROOF_FORMAT, PROOF_VERSION = "placeopt-proof", 1

_ENVELOPE = ("format", "version", "tick_seconds", "problem")
"""Entries of the JSON of a problem and of a solution that a proof, in whole ticks, leaves out."""
LIBRARIES = ("placeopt", "ortools", "numpy", "scipy", "numba")
Ticks = int | Fraction

_TICKS = ("value", "lower_bound", "better")
"""Fields of a certificate that may be fractions, which are written exactly beside a float."""


@dataclass(frozen=True, repr=False)
class Certificate(Shown):
    """Validity, value, lower bound and gap of one solution, to be checked again by anyone.

    Attributes
    ----------
    problem_hash, names_hash : of what decides values, and of the names of ops and devices.
    objective : what is minimised, as the problem names it.
    feasible : whether the solution meets every constraint; `violations` lists those it breaks, in
    words.
    value : ticks under the execution `queue` ("" where there is no choice), None if invalid.
    lower_bound,
    bound_method : ticks that no solution beats, and the method that proved it. bounds : ticks per
    method that was run.
    better : value of a better solution found on the way, None if none was. problem_infeasible : why
    no solution of the problem can be valid, "" unless that is proved.
    """

    problem: str
    problem_hash: str
    names_hash: str
    solution_hash: str
    objective: str
    violations: tuple[str, ...]
    value: Ticks | None
    queue: str
    lower_bound: Ticks
    bound_method: str
    bounds: dict[str, Ticks]
    better: Ticks | None = None
    problem_infeasible: str = ""
    tick_seconds: float = 1e-9
    runtime: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in _TICKS:
            object.__setattr__(self, key, plain_number(getattr(self, key)))

    @property
    def feasible(self) -> bool:
        """Whether the solution breaks no constraint."""
        return not self.violations

    @property
    def status(self) -> str:
        """Whether value and bound meet: "optimal" or "feasible"; "infeasible" for a solution that
        is not valid.
        """
        if self.value is None:
            return "infeasible"
        return "optimal" if self.lower_bound == self.value else "feasible"

    @property
    def seconds(self) -> float | None:
        """The value in seconds."""
        return None if self.value is None else float(self.value) * self.tick_seconds

    @property
    def gap(self) -> float | None:
        """(value - lower_bound) / value, 0 when optimal; None for an invalid solution."""
        return None if self.value is None else gap_of(self.value, self.lower_bound)

    def shown(self) -> dict[str, str]:
        """Return the value, its bound and gap, or the first violation."""
        if self.value is None:
            more = f" and {len(self.violations) - 1} more" if len(self.violations) > 1 else ""
            return {"of": f"'{self.problem}'", "not valid": f"{self.violations[0]}{more}"}
        return {
            "of": f"'{self.problem}'",
            self.objective: f"{self.value} ticks",
            "lower bound": f"{self.lower_bound} ticks ({self.bound_method})",
            "gap": f"{self.gap:.2%}",
            "status": self.status,
        }

    def to_dict(self) -> Data:
        """Return the certificate as plain JSON values, with its digest."""
        data: Data = {"format": FORMAT, "version": FORMAT_VERSION}
        for item in fields(self):
            data[item.name] = _plain(getattr(self, item.name))
        data.update({key: getattr(self, key) for key in DERIVED})
        for key in _TICKS:
            if isinstance(getattr(self, key), Fraction):
                data[f"{key}_exact"] = str(getattr(self, key))
        return finished(data)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "certificate") -> Certificate:
        """Read a certificate back; `alterations` says whether it is as it was written.

        Raises
        ------
        InputError
            If it is not a certificate, of another version, or a field is missing, unknown or of the
            wrong type.
        """
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise InputError(
                f'{where}: expected "format": "{FORMAT}"; write one with placeopt verify --out FILE'
            )
        if data.get("version") != FORMAT_VERSION:
            raise InputError(
                f"{where}: expected version {FORMAT_VERSION}, received "
                f"{data.get('version')!r:.20}: write it again with placeopt verify --out FILE"
            )
        values = _fields(data, where)
        for key in _TICKS:
            exact = f"{key}_exact"
            if exact in data:
                values[key] = _exact(data[exact], f"{where}: field '{exact}'")
            elif isinstance(values[key], float):
                raise InputError(
                    f"{where}: field '{key}': expected whole ticks or '{exact}', received "
                    f"{values[key]}"
                )
        values["violations"] = tuple(str(x) for x in values["violations"])
        values["bounds"] = {
            method: _exact(x, f"{where}: field 'bounds'") for method, x in values["bounds"].items()
        }
        return cls(**values)


DERIVED = ("feasible", "status", "seconds", "gap")
"""What follows from the other fields; it is written for the reader's convenience and recomputed."""
_EXACT = {f"{key}_exact" for key in _TICKS}

_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "float": (float, int),
    "Ticks": (int, float),
    "Ticks | None": (int, float, type(None)),
    "tuple[str, ...]": (list,),
    "dict[str, Ticks]": (dict,),
    "dict[str, str]": (dict,),
}
"""What a field is in JSON, by its annotation."""
_FIELDS = {item.name: _JSON_TYPES[str(item.type)] for item in fields(Certificate)}


def alterations(data: Mapping[str, Any]) -> list[str]:
    """Return, in words, what in the JSON of a certificate is not as it was written."""
    certificate = Certificate.from_dict(data)
    found = []
    if data.get("digest") != finished(data)["digest"]:
        found.append("digest: the certificate was changed after it was written")
    for key, right in certificate.to_dict().items():
        if key != "digest" and data.get(key) != right:
            found.append(
                f"{key}: certified {data.get(key)!r:.40}, its own numbers say {right!r:.40}"
            )
    strongest = max(certificate.bounds.values(), default=0)
    if (
        certificate.bounds.get(certificate.bound_method, 0) < certificate.lower_bound
        or strongest < certificate.lower_bound
    ):
        found.append(
            f"lower bound: certified {certificate.lower_bound}, its own bounds say {strongest}"
        )
    if certificate.value is not None and certificate.violations:
        found.append("value: certified for a solution that is not valid")
    return found


def solution_hash(solution: Any) -> str:
    """SHA-256 of a solution, whatever it is made of: of what was decided, not of who decided it or
    of what is claimed of it.
    """
    found = hashlib.sha256()
    for part in _parts(solution):
        found.update(part)
    return found.hexdigest()


def _parts(value: Any, around: tuple[int, ...] = ()) -> Iterator[bytes]:
    """Yield what tells a value from others, the same in every process; of a problem its hash.

    Parameters
    ----------
    around : identities of what holds the value; of what holds itself the class is told.
    """
    around, holds_itself = (*around, id(value)), id(value) in around
    if holds_itself:
        yield f"{type(value)!r},".encode()
    elif isinstance(value, type):
        yield f"{value!r},".encode()
    elif hasattr(value, "__array__"):
        array = np.asarray(value)
        array = array.astype(_NUMBERS.get(array.dtype.kind, array.dtype))
        if array.ndim and array.dtype.kind in _NUMBERS:
            yield from (f"{array.dtype.kind}{array.shape}".encode(), array.tobytes())
        else:
            yield from _parts(array.tolist(), around)
    elif isinstance(getattr(value, "hash", None), str):
        yield value.hash.encode()
    elif isinstance(value, list | tuple):
        yield f"[{len(value)}]".encode()
        for x in value:
            yield from _parts(x, around)
    elif isinstance(value, dict):
        yield from _parts([*value.items()], around)
    elif isinstance(value, set | frozenset):
        yield from _parts(sorted(value, key=repr), around)
    elif is_dataclass(value):
        names = [x.name for x in fields(value) if x.name not in getattr(value, "claims", ())]
        own = [type(value).__name__, *((x, getattr(value, x)) for x in names)]
        yield from _parts(own, around)
    elif hasattr(value, "__dict__"):
        yield from _parts([type(value).__name__, vars(value)], around)
    else:
        yield f"{value!r},".encode()


_NUMBERS = {"i": np.int64, "u": np.int64, "f": np.float64}
"""What arrays of numbers are compared as, by the kind of their type."""


def names_hash(problem: Any) -> str:
    """SHA-256 of the names in a problem, of ops and devices or blocks: a solution is read by
    them.
    """
    names = {
        key: list(getattr(problem, key, ())) for key in ("op_names", "block_names", "device_names")
    }
    return digest({"name": problem.name, **names})


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that a proof rests on."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Fraction):
        return float(value)
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, dict):
        return {key: str(x) if isinstance(x, Fraction) else x for key, x in value.items()}
    return value


def _fields(data: Mapping[str, Any], where: str) -> Data:
    """Return the declared fields of a certificate, each of its type; no other is there."""
    for key, kinds in _FIELDS.items():
        if key not in data:
            raise InputError(f"{where}: the field '{key}' is missing")
        huge = isinstance(data[key], int) and abs(data[key]) >= CLAIM
        if not isinstance(data[key], kinds) or isinstance(data[key], bool) or huge:
            raise InputError(f"{where}: field '{key}' has the wrong type: {data[key]!r:.40}")
    unknown = set(data) - set(_FIELDS) - {*DERIVED, "format", "version", "digest", *_EXACT}
    if unknown:
        raise InputError(f"{where}: unknown field '{min(unknown):.40}'")
    return {key: data[key] for key in _FIELDS}


def _exact(value: Any, where: str) -> Ticks:
    """Return whole ticks as they are, and the fraction that a text is."""
    if isinstance(value, str) and FRACTION.fullmatch(value):
        return Fraction(value)
    if type(value) is not int:
        raise InputError(f"{where}: expected ticks such as 5 or '16/3', received {value!r:.40}")
    return int(value)


def prove(problem: Any, solution: Any, certificate: Certificate, seconds: float = 60.0) -> Data:
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
            "format": PROOF_FORMAT,
            "version": PROOF_VERSION,
            "objective": objective.name,
            "problem": _without_envelope(problem),
            "solution": _without_envelope(solution),
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


def finished(data: Mapping[str, Any]) -> Data:
    """Return a certificate or a proof with its digest."""
    content = {key: value for key, value in data.items() if key != "digest"}
    return {**content, "digest": digest(content)}


def write_proof(path: str | Path, data: Data) -> Path:
    """Write a proof; a name that ends in .gz is compressed."""
    content = (json.dumps(data, separators=(",", ":")) + "\n").encode()
    return write_bytes(
        path, gzip.compress(content, mtime=0) if str(path).endswith(".gz") else content
    )


def _without_envelope(value: Any) -> Data:
    """Return the JSON of a problem or a solution without what a proof does not need."""
    return {key: x for key, x in to_dict(value).items() if key not in _ENVELOPE}
