"""Exports: a placement in the form that a framework loads. `TARGETS` lists the targets."""

from placeopt.exports.export import TARGETS, Exported, Job, Target, export

__all__ = ["TARGETS", "Exported", "Job", "Target", "export"]
