"""JSON of sharding problems and solutions; see `placeopt.io.serialize`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placeopt.io.body import plain
from placeopt.io.serialize import Codec, register
from placeopt.sharding.problem import ShardingProblem, ShardingSolution

if TYPE_CHECKING:
    from placeopt.io.body import Body

_FOLLOW = ("objective", "edge_ptr")
"""Fields that follow from others, or have one value only."""


def _encode_problem(problem: ShardingProblem) -> dict[str, Any]:
    return plain(problem, but=_FOLLOW)


def _decode_problem(body: Body) -> ShardingProblem:
    return ShardingProblem(**body.fields(ShardingProblem, but=_FOLLOW))


def _encode_solution(solution: ShardingSolution) -> dict[str, Any]:
    return {"strategies": solution.strategy.tolist()}


def _decode_solution(body: Body) -> ShardingSolution:
    return ShardingSolution(body.integers("strategies"))


register(Codec("sharding", ShardingProblem, _encode_problem, _decode_problem))
register(Codec("sharding-solution", ShardingSolution, _encode_solution, _decode_solution))
