"""Sharding: one strategy for every node of a graph, with costs on nodes and edges and a limit on
usage at every moment.

Problem, evaluator, judge and objective; the arrays that kernels take (`compact`), reductions and
bounds; problems from models. The solvers are in `placeopt.solvers.sharding`.
"""
