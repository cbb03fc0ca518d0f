"""Solvers that misbehave, registered by name for the tests of the experiment runner."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import ClassVar

from placeopt.makespan.evaluate import best_queue
from placeopt.model.placement import Placement
from placeopt.model.result import Result
from placeopt.solving.registry import register


@register("misbehave", summary="raises, sleeps, dies or returns, by seed")
@dataclass(frozen=True)
class Misbehave:
    """Does what `deeds[seed]` says."""

    name: ClassVar[str] = "misbehave"
    deeds: tuple[str, ...] = ("good",)

    def solve(self, problem, budget, *, seed, initial=None, on_progress=None):
        """Return, raise, hang or die."""
        deed = self.deeds[seed % len(self.deeds)]
        if deed == "raise":
            raise RuntimeError("this solver always raises")
        if deed == "colour":
            raise RuntimeError("\x1b[31mno caf\udce9\x1b[0m")
        if deed == "full":
            raise OSError(28, "No space left on device")
        if deed == "interrupt":
            raise KeyboardInterrupt
        if deed == "exit":
            os._exit(7)
        if deed == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if deed == "hang":
            time.sleep(3600)
        solution = Placement([seed % problem.num_devices] * problem.num_ops)
        value = 1 if deed == "lie" else best_queue(problem, solution)[0]
        return Result(
            problem.name,
            self.name,
            solution,
            value,
            int(deed == "lie"),
            "none",
            "optimal" if deed == "lie" else "feasible",
            "converged",
            1,
            0.0,
            seed,
        )
