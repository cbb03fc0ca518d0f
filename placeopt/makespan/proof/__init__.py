"""Witnesses of bounds on the makespan: from "suppose a schedule of at most T ticks", step by step,
to a contradiction.
"""
