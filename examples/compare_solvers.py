"""Compare solvers on one problem: the same evaluations, one proven bound for all."""

import placeopt as po

problem = po.load("gen:ffnn", cluster="uniform:4")
bound = po.bound(problem, seconds=1)

print(f"{'solver':<14} {'makespan':>12} {'gap':>8}")
for name in ("single-device", "heft", "critical-path", "edge-zeroing", "annealing"):
    result = po.solve(problem, solver=name, evaluations=2000, seed=0).with_bound(bound)
    print(f"{name:<14} {result.value * problem.tick_seconds:>10.4f} s {100 * result.gap:>6.2f} %")
print(f"no placement beats {bound.value * problem.tick_seconds:.4f} s ({bound.method})")
