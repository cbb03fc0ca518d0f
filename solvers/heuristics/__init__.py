"""List heuristics: placements from one pass over the graph."""

from __future__ import annotations

from placeopt.solver import SolverSpec

SPECS: tuple[SolverSpec, ...] = ()
