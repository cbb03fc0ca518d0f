"""HEFT as one writes it in plain Python: the oracle of the compiled one, and what its speed is
measured against.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import islice


def schedule(problem):
    """Return (device, start, finish) lists; no memory limits, no contention.

    The problem's arrays are turned into lists first: numpy scalars would only make it slower.
    """
    n, k = problem.num_ops, problem.num_devices
    compute, transfer, link = (
        problem.compute.tolist(),
        problem.transfer.tolist(),
        problem.link_class.tolist(),
    )
    children, parents = [[] for _ in range(n)], [[] for _ in range(n)]
    for tensor, child in zip(problem.edge_tensor.tolist(), problem.consumer.tolist(), strict=True):
        parent = int(problem.producer[tensor])
        children[parent].append((child, tensor))
        parents[child].append((parent, tensor))
    pairs = [(a, b) for a in range(k) for b in range(k) if a != b]
    mean_delay = [
        sum(times[link[a][b]] for a, b in pairs) / len(pairs) if pairs else 0.0
        for times in transfer
    ]
    mean_work = [sum(t for t in row if t >= 0) / sum(t >= 0 for t in row) for row in compute]

    order = problem.topological_order.tolist()
    rank = [0.0] * n
    for op in reversed(order):
        tails = [mean_delay[tensor] + rank[child] for child, tensor in children[op]]
        rank[op] = mean_work[op] + max(tails, default=0.0)
    position = {op: i for i, op in enumerate(order)}

    device, start, finish = [-1] * n, [0] * n, [0] * n
    slots = [[] for _ in range(k)]  # (start, finish) of each device, sorted
    ends = [
        [] for _ in range(k)
    ]  # the finishes alone: ops that end before the data arrives are skipped
    for op in sorted(range(n), key=lambda v: (-rank[v], position[v])):
        best = None
        for d in range(k):
            duration = compute[op][d]
            if duration < 0:
                continue
            ready = 0
            for parent, tensor in parents[op]:
                delay = 0 if device[parent] == d else transfer[tensor][link[device[parent]][d]]
                ready = max(ready, finish[parent] + delay)
            begin = ready
            for slot_start, slot_finish in islice(slots[d], bisect_left(ends[d], ready), None):
                if begin + duration <= slot_start:
                    break
                begin = max(begin, slot_finish)
            if best is None or begin + duration < best[0]:
                best = (begin + duration, begin, d)
        finish[op], start[op], device[op] = best
        insort(slots[best[2]], (best[1], best[0]))
        insort(ends[best[2]], best[0])
    return device, start, finish
