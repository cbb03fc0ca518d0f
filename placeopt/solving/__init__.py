"""One way to run a solver: objectives, the Solver protocol and its base, the registry, the tracker
and `run`.
"""
