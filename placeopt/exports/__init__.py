"""Exports: a placement in the form that a framework loads. One file per target; `TARGETS` lists
them.
"""

from __future__ import annotations

from placeopt.exports.export import export
from placeopt.exports.job import Exported, Job
from placeopt.exports.targets import TARGETS, Target

__all__ = ["TARGETS", "Exported", "Job", "Target", "export"]
