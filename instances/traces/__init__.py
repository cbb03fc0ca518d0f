"""Profiler traces: what was measured of the calls of a model. One file per format; `read_trace`
tells them apart.
"""
