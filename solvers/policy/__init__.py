"""Policies: placers that learn by policy gradient, seeded by heuristics."""

from __future__ import annotations

from placeopt.solver import SolverSpec

SPECS: tuple[SolverSpec, ...] = ()
