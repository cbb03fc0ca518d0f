"""Degree policies: how far to split each job of a stream."""

from __future__ import annotations

from placeopt.solver import SolverSpec

SPECS: tuple[SolverSpec, ...] = ()
