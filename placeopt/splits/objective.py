"""The period of a split as an objective."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from placeopt.model.objective import JudgedObjective
from placeopt.splits.bounds import BOUNDS
from placeopt.splits.evaluate import split_loads, split_period
from placeopt.splits.judge import judged_period, split_violations
from placeopt.splits.problem import Split

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from placeopt.splits.problem import SplitProblem


class SplitPeriod(JudgedObjective):
    """Ticks per sample of a pipeline whose stages may have replicas, groups of devices and
    overlapped transfers.
    """

    __slots__ = ()

    name: ClassVar[str] = "period"
    kind: ClassVar[str] = "split"
    default_solver: ClassVar[str] = "split-ideals"
    prover: ClassVar[str] = "split-ideals"
    bounded: ClassVar[str] = "a split"
    bound_methods: ClassVar[tuple[str, ...]] = tuple(BOUNDS)
    solution_class: ClassVar[type] = Split
    expected: ClassVar[str] = "a solution of a split problem is a Split"
    violations = staticmethod(split_violations)
    measured = staticmethod(split_period)
    judged = staticmethod(judged_period)

    def details(self, problem: SplitProblem, solution: Split) -> dict[str, Any]:
        """Return the stages and their loads, for the command line."""
        loads, names = split_loads(problem, solution), problem.placement.device_names
        stages = [
            {
                "ops": [problem.placement.op_names[op] for op in stage.ops],
                "devices": [names[d] for d in stage.devices],
                "load": int(load),
                "group": problem.group_of[stage.devices[0]],
            }
            for stage, load in zip(solution.stages, loads.stage, strict=True)
        ]
        return {"stages": stages, "uplinks": loads.uplink.tolist()}

    def prove(
        self, problem: SplitProblem, seconds: float, methods: Sequence[str], upper: int | None
    ) -> Iterator[tuple[str, int]]:
        """Yield the quick lower bounds, which take milliseconds."""
        for name in methods:
            yield name, BOUNDS[name](problem)


SPLIT_PERIOD = SplitPeriod()
