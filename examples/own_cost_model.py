"""Measured times instead of the roofline: a problem from your own table of ticks."""

import numpy as np

import placeopt as po

# Milliseconds of each op on a GPU and on the CPU (None: it cannot run there), and edges with their
# transfer in ms.
measured = {
    "embed": (9.0, 1.5),
    "encode": (2.0, 30.0),
    "attend": (3.0, 45.0),
    "decode": (2.5, 28.0),
    "sample": (None, 0.5),
}
edges = [
    ("embed", "encode", 0.8),
    ("encode", "attend", 0.8),
    ("attend", "decode", 0.8),
    ("decode", "sample", 0.1),
]

MILLISECOND = 1_000_000  # ticks of a nanosecond
names = list(measured)
compute = [
    [-1 if ms is None else round(ms * MILLISECOND) for ms in row] for row in measured.values()
]
problem = po.PlacementProblem.from_edges(
    compute,
    [(names.index(u), names.index(v), round(ms * MILLISECOND)) for u, v, ms in edges],
    op_names=names,
    device_names=("gpu0", "cpu"),
    resident=np.array([6, 1, 1, 1, 0]) * 2**30,
    capacity=np.array([4, 64]) * 2**30,  # the embedding does not fit on the GPU
)
result = po.solve(problem, "cp-sat", seconds=5)
for name, device in zip(names, result.solution.device, strict=True):
    print(f"{name:<8} {problem.device_names[device]}")
print(f"{result.seconds * 1e3:.2f} ms, {result.status}")
