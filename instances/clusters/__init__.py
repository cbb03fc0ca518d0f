"""Clusters by name ("4xA100", "cpu+gpu", "2x4xA100", "uniform:8") or from a TOML file."""

from __future__ import annotations

from placeopt.instances.clusters.parse import cluster_names, make_cluster
from placeopt.instances.clusters.toml_file import EXAMPLE

__all__ = ["EXAMPLE", "cluster_names", "make_cluster"]
