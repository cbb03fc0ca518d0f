"""JSON of sharding problems and solutions; see `placeopt.io.serialize`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placeopt.io.serialize import Codec, register
from placeopt.model.arrays import UNLIMITED
from placeopt.sharding.problem import ShardingProblem, ShardingSolution

if TYPE_CHECKING:
    from placeopt.io.body import Body

_ARRAYS = ("node_ptr", "cost", "usage", "edge_cost")
_PAIRS = ("interval", "edge")
_NAMES = ("node_names", "strategy_names")


def _encode_problem(problem: ShardingProblem) -> dict[str, Any]:
    return {
        "name": problem.name,
        "tick_seconds": problem.tick_seconds,
        "usage_limit": problem.usage_limit,  # UNLIMITED, and so 2^62, for none
        **{key: getattr(problem, key).tolist() for key in (*_ARRAYS, *_PAIRS)},
        **{key: list(getattr(problem, key)) for key in _NAMES if getattr(problem, key)},
    }


def _decode_problem(body: Body) -> ShardingProblem:
    arrays: dict[str, Any] = {key: body.integers(key) for key in _ARRAYS}
    pairs: dict[str, Any] = {key: body.integers(key) for key in _PAIRS}
    names: dict[str, Any] = {key: body.texts(key) for key in _NAMES if body.has(key)}
    for key, table in pairs.items():
        if table.size == 0:
            pairs[key] = table.reshape(0, 2)
    return ShardingProblem(
        name=body.text("name"),
        usage_limit=body.integer("usage_limit", UNLIMITED),
        tick_seconds=body.number("tick_seconds", 1.0),
        **arrays,
        **pairs,
        **names,
    )


def _encode_solution(solution: ShardingSolution) -> dict[str, Any]:
    return {"strategies": solution.strategy.tolist()}


def _decode_solution(body: Body) -> ShardingSolution:
    return ShardingSolution(body.integers("strategies"))


register(Codec("sharding", ShardingProblem, _encode_problem, _decode_problem))
register(Codec("sharding-solution", ShardingSolution, _encode_solution, _decode_solution))
