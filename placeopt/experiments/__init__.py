"""Experiments: parallel, resumable grids of solver runs."""
