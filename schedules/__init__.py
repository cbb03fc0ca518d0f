"""Pipeline schedules: micro-batches of a model's blocks on devices."""

from __future__ import annotations

from placeopt.solver import SolverSpec

SPECS: tuple[SolverSpec, ...] = ()
