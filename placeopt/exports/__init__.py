"""Exports: a placement in the form that a framework loads. One file per target; `TARGETS` lists
them.
"""

from __future__ import annotations

from placeopt.exports.export import TARGETS, Target, export
from placeopt.exports.job import Exported, Job

__all__ = ["TARGETS", "Exported", "Job", "Target", "export"]
