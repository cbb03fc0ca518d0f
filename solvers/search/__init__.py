"""Search: population and local search on the batch evaluator."""

from __future__ import annotations

from placeopt.solver import SolverSpec

SPECS: tuple[SolverSpec, ...] = ()
