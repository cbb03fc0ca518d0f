"""JSON of pipeline problems and schedules, for `placeopt.io`: any solution can be saved and loaded.

A schedule carries its problem. What its solver proved of it beyond its value is not stored: it
could not be checked.
"""

from __future__ import annotations

from typing import Any

from placeopt.io.body import Body, plain
from placeopt.io.serialize import Codec, from_dict, register, to_dict
from placeopt.schedules.problem import PipelineProblem
from placeopt.schedules.solution import PipelineSchedule, Repetend
from placeopt.schedules.sources import problem_from_dict, problem_to_dict


def _encode_schedule(schedule: PipelineSchedule) -> dict[str, Any]:
    found: dict[str, Any] = {"problem": to_dict(schedule.problem), "start": schedule.start.tolist()}
    if schedule.repetend is not None:
        found["repetend"] = plain(schedule.repetend)
    return found


def _decode_schedule(body: Body) -> PipelineSchedule:
    problem = from_dict(body.get("problem"), "pipeline", f'{body.where}: "problem"')
    repetend = None
    if body.has("repetend"):
        repetend = body.body("repetend").made(Repetend)
    return PipelineSchedule(problem, body.integers("start"), repetend)


register(
    Codec("pipeline", PipelineProblem, problem_to_dict, lambda body: problem_from_dict(body.data))
)
register(Codec("pipeline-schedule", PipelineSchedule, _encode_schedule, _decode_schedule))
