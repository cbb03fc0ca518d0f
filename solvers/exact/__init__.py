"""Exact methods: proven optima and bounds."""

from __future__ import annotations

from placeopt.solver import SolverSpec

SPECS: tuple[SolverSpec, ...] = ()
