"""Generators: the workloads that papers place, built from their published architecture.

`generate("gen:resnet50?batch=8&training=1")` looks the name up in a table, imports the module that
builds it, and converts the options to the types of the function's keyword arguments. Every
generator is deterministic: same specification, same graph. Random families take `seed`.
"""

from __future__ import annotations

from placeopt.instances.generators.table import generate, generator_help, generator_names

__all__ = ["generate", "generator_help", "generator_names"]
