"""The latency of one sample when each accelerator runs its ops in one or two convex slots."""

import placeopt as po

graph = po.generate("gen:ffnn?layers=2&shards=2")
for slots in (1, 2):
    problem = po.load(graph, cluster="cpu+gpu", objective="latency", slots=slots)
    result = po.solve(problem, seconds=5)
    print(
        f"{slots} slot(s): {result.seconds * 1e3:.3f} ms, bound "
        f"{result.lower_bound * problem.tick_seconds * 1e3:.3f} ms, "
        f"{result.status}"
    )
