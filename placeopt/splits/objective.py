"""The period of a split as an objective."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

from placeopt.model.bound import BoundReport, check_methods
from placeopt.model.objective import Finished, PlainObjective, agreed, time_text
from placeopt.splits.bounds import BOUNDS
from placeopt.splits.evaluate import split_loads, split_period
from placeopt.splits.judge import judged_period, split_violations
from placeopt.splits.problem import Split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placeopt.splits.problem import SplitProblem


class SplitPeriod(PlainObjective):
    """Ticks per sample of a pipeline whose stages may have replicas, groups of devices and overlapped transfers."""

    name: ClassVar[str] = "period"
    kind: ClassVar[str] = "split"
    default_solver: ClassVar[str] = "split-ideals"
    comparison: ClassVar[tuple[str, ...]] = ("split-ideals",)
    prover: ClassVar[str] = "split-ideals"

    def judge(self, problem: SplitProblem, solution: Split, queue: str | None = None) -> list[str]:
        """Violations of a split in words, found without its evaluation."""
        if not isinstance(solution, Split):
            return [f"a solution of a split problem is a Split, received {type(solution).__name__}"]
        return split_violations(problem, solution)

    def finish(self, problem: SplitProblem, solution: Split, queue: str | None = None) -> Finished:
        """Judge and value a split; evaluator and judge must agree."""
        return agreed(
            self.judge(problem, solution), "period",
            lambda: split_period(problem, solution), lambda: judged_period(problem, solution),
        )  # fmt: skip

    def details(self, problem: SplitProblem, solution: Split) -> dict[str, Any]:
        """Return the stages and their loads, for the command line."""
        loads, names = split_loads(problem, solution), problem.placement.device_names
        stages = [
            {"ops": [problem.placement.op_names[op] for op in stage.ops], "devices": [names[d] for d in stage.devices],
             "load": int(load), "group": problem.group_of[stage.devices[0]]}
            for stage, load in zip(solution.stages, loads.stage, strict=True)
        ]  # fmt: skip
        return {"stages": stages, "uplinks": loads.uplink.tolist()}

    def bounds(
        self, problem: SplitProblem, seconds: float, methods: Sequence[str] | None = None, upper: int | None = None
    ) -> BoundReport:
        """Prove the quick lower bounds, which take milliseconds.

        Raises
        ------
        InputError
            If a method is unknown.
        """
        started = time.perf_counter()
        check_methods("a split", methods, BOUNDS)
        return BoundReport.of({name: BOUNDS[name](problem) for name in methods or BOUNDS}, started)

    def text(self, problem: SplitProblem, value: float | None) -> str:
        """Return a period as a time."""
        return "-" if value is None else time_text(float(value) * problem.tick_seconds)


SPLIT_PERIOD = SplitPeriod()
