"""Ctrl-C during CP-SAT; see `placeopt.model.interruptible`."""

from __future__ import annotations

from placeopt.model.interruptible import solve_interruptibly

__all__ = ["solve_interruptibly"]
