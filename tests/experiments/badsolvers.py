"""Solvers that misbehave, registered by name for the tests of the experiment runner."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import ClassVar

from placeopt.makespan.evaluate import finish
from placeopt.model.placement import Placement
from placeopt.solving.registry import register
from placeopt.solving.tracker import Tracker


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
        if deed == "full":
            raise OSError(28, "No space left on device")
        if deed == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if deed == "hang":
            time.sleep(3600)
        tracker = Tracker("misbehave", problem, budget, seed=seed)
        with tracker:
            tracker.count(1)
            tracker.offer(10**12, Placement([seed % problem.num_devices] * problem.num_ops))
        return finish(tracker, tracker.solution)
