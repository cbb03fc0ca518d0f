"""JSON of job streams and episodes; see `placeopt.io.codec`.

A stream carries its job types, so that a file needs no profiles beside it.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.io.codec import Codec, register
from placeopt.model.errors import InputError
from placeopt.streams.episode_loop import CAUSES
from placeopt.streams.lookahead import LookaheadConfig
from placeopt.streams.problem import JobStreamProblem, JobTable
from placeopt.streams.profiles import JobProfile
from placeopt.streams.simulator import DegreePolicy, Episode
from placeopt.streams.sources import StreamSpec
from placeopt.streams.topology import RampTopology

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placeopt.io.body import Body

_PROFILE_TIMES = ("forward", "backward", "memory")
_STREAM_ARRAYS = ("arrival", "model", "deadline")
_EPISODE_ARRAYS = ("cause", "degree", "jct")


def _plain(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass of numbers, texts and arrays."""
    body = {}
    for field in fields(value):
        found = getattr(value, field.name)
        body[field.name] = found.tolist() if isinstance(found, np.ndarray) else found
    return body


def _made(cls: type, body: Body) -> Any:
    """Return the dataclass that `_plain` wrote; fields that are missing keep their defaults, types
    are those of these.
    """
    values = {}
    for field in fields(cls):
        if not body.has(field.name):
            continue
        value = body.get(field.name)
        kind = type(field.default)
        if kind is bool and not isinstance(value, bool):
            raise body.wrong(field.name, "true or false", value)
        if kind is int:
            value = body.integer(field.name)
        elif kind is float:
            value = body.number(field.name)
        elif kind is str:
            value = body.text(field.name)
        values[field.name] = tuple(value) if isinstance(value, list) else value
    return cls(**values)


def _numbers(body: Body, key: str) -> NDArray[np.float64]:
    values = body.items(key)
    for i, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise body.wrong(f"{key}[{i}]", "a number", value)
    return np.array(values, dtype=np.float64)


def _encode_stream(problem: JobStreamProblem) -> dict[str, Any]:
    jobs = problem.jobs
    return {
        "name": problem.name,
        "seed": problem.seed,
        "horizon": problem.horizon,
        **{key: getattr(problem, key).tolist() for key in _STREAM_ARRAYS},
        "topology": _plain(jobs.topology),
        "lookahead": _plain(jobs.config),
        "steps": jobs.steps,
        "contention": jobs.contention,
        "tick_seconds": jobs.tick_seconds,
        "profiles": [_plain(profile) for profile in jobs.profiles],
        "drawn_from": _plain(problem.spec) if isinstance(problem.spec, StreamSpec) else None,
    }


def _decode_stream(body: Body) -> JobStreamProblem:
    profiles = tuple(_decode_profile(part) for part in body.bodies("profiles"))
    jobs = JobTable(
        profiles,
        _made(RampTopology, body.body("topology")),
        _made(LookaheadConfig, body.body("lookahead")),
        body.integer("steps"),
        body.text("contention"),
        body.number("tick_seconds", 1e-9),
    )
    spec = _made(StreamSpec, body.body("drawn_from")) if body.has("drawn_from") else None
    arrays: dict[str, Any] = {key: body.integers(key) for key in _STREAM_ARRAYS}
    return JobStreamProblem(
        name=body.text("name"),
        jobs=jobs,
        horizon=body.integer("horizon"),
        spec=spec,
        seed=body.integer("seed", 0),
        **arrays,
    )


def _decode_profile(body: Body) -> JobProfile:
    edges = (
        body.integers("edges").reshape(-1, 2)
        if body.items("edges")
        else np.zeros((0, 2), dtype=np.int64)
    )
    times = {key: _numbers(body, key) for key in _PROFILE_TIMES}
    return JobProfile(
        body.text("name"), **times, edges=edges, split_rank=body.optional_integers("split_rank")
    )


def _encode_episode(episode: Episode) -> dict[str, Any]:
    return {
        "problem": _encode_stream(episode.problem),
        "policy": _plain(episode.policy),
        "seed": episode.seed,
        **{key: getattr(episode, key).tolist() for key in _EPISODE_ARRAYS},
        "servers": [np.flatnonzero(row).tolist() for row in episode.servers],
    }


def _decode_episode(body: Body) -> Episode:
    problem = _decode_stream(body.body("problem"))
    size, num_servers = problem.num_jobs, problem.jobs.topology.num_servers
    rows = body.items("servers")
    columns = {key: body.integers(key) for key in _EPISODE_ARRAYS}
    if len(rows) not in (0, size) or any(len(column) != size for column in columns.values()):
        raise InputError(
            f"{body.where}: expected {size} values of {', '.join(_EPISODE_ARRAYS)} and rows of "
            "servers"
        )
    if not all(0 <= cause < len(CAUSES) for cause in columns["cause"].tolist()):
        raise InputError(f"{body.where}: cause: expected 0..{len(CAUSES) - 1}")
    servers = np.zeros((len(rows), num_servers), dtype=np.bool_)
    for job, row in enumerate(rows):
        if not isinstance(row, list) or any(
            type(s) is not int or not 0 <= s < num_servers for s in row
        ):
            raise body.wrong(f"servers[{job}]", f"servers in 0..{num_servers - 1}", row)
        servers[job, row] = True
    return Episode(
        problem,
        _decode_policy(body.body("policy")),
        body.integer("seed"),
        columns["cause"].astype(np.int8),
        columns["degree"].astype(np.int16),
        columns["jct"],
        servers.sum(axis=1).astype(np.int16) if len(rows) else np.zeros(size, dtype=np.int16),
        servers,
    )


def _decode_policy(body: Body) -> DegreePolicy:
    order = body.optional_integers("order")
    weights = _numbers(body, "weights") if body.has("weights") else None
    numbers = {
        key: body.number(key, getattr(DegreePolicy, key))
        for key in ("fragmentation", "terminal", "discount", "explore")
    }
    counts = {
        key: body.integer(key, getattr(DegreePolicy, key)) for key in ("degree", "samples", "depth")
    }
    return DegreePolicy(body.text("name"), order=order, weights=weights, **numbers, **counts)  # type: ignore[arg-type]


register(Codec("job-stream", JobStreamProblem, _encode_stream, _decode_stream))
register(Codec("episode", Episode, _encode_episode, _decode_episode))
