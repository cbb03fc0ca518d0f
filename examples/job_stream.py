"""How far to split each job of a busy cluster: policies on one stream, and what no policy can
beat.
"""

import placeopt as po

stream = po.load_stream("stream:ramp?models=gen:chain-mm&device=A100&jobs=60&beta=2&interval=2")
for policy in ("max-degree", "min-degree", "feasible-first"):
    result = po.solve(stream, policy, seconds=10)
    print(f"{policy:<15} blocks {result.solution.blocking_rate:.3f} of the jobs")
bound = po.bound(stream, seconds=5)
print(f"{'any policy':<15} blocks at least {bound.value / stream.num_jobs:.3f}")
