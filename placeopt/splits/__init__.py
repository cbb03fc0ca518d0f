"""Splits of a graph into stages whose devices may be replicas and lie in groups, with transfers
beside computation or not.

Problem, evaluation, judge, bounds and objective; the solver is
`placeopt.solvers.exact.split_ideals`.
"""
