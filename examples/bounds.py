"""Which bound proves how much: every method on one problem, and the best value known beside
them.
"""

import placeopt as po

problem = po.load("gen:llama-block?shards=2", cluster="uniform:2")
best = po.solve(problem, "annealing", seconds=2)
report = po.bound(problem, seconds=4, upper=best.value)

for method, ticks in sorted(report.bounds.items(), key=lambda item: item[1]):
    print(f"{method:<16} {ticks:>14} ticks, gap {1 - ticks / best.value:7.2%}")
print(f"annealing        {best.value:>14} ticks")
