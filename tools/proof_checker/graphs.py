"""An order of nodes along edges."""


def sorted_order(size, edges):
    """Return 0..size-1 such that every edge goes forwards, None if there is a cycle."""
    after, waits = [[] for _ in range(size)], [0] * size
    for u, v in edges:
        after[u].append(v)
        waits[v] += 1
    order = [v for v in range(size) if not waits[v]]
    for v in order:  # it grows while it is read
        for w in after[v]:
            waits[w] -= 1
            if not waits[w]:
                order.append(w)
    return order if len(order) == size else None
