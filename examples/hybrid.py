"""A hybrid: a heuristic's placement, improved by a search, handed to CP-SAT for the proof."""

import placeopt as po

problem = po.load("gen:llama-block?shards=2", cluster="uniform:2")

seed = po.solve(problem, "edge-zeroing", seconds=1)
improved = po.solve(problem, "annealing", seconds=2, initial=seed.solution)
proved = po.solve(problem, po.solvers.CpSat(num_workers=2), seconds=5, initial=improved.solution)

for name, result in (("edge-zeroing", seed), ("annealing", improved), ("cp-sat", proved)):
    print(f"{name:<13} {result.value:>12} ticks, gap {result.gap:.2%}, {result.status}")
