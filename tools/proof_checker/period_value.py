"""The period of a placement: the largest load of a device of a pipeline.

The load of a device is the time of its ops and of its exchange with host memory: every tensor that
is read on another device costs its sender once and every other reader's device once. Under `gpipe`
all forward work comes before all backward work: the period is the largest forward load plus the
largest backward load. Contiguity asks that the forward parts of the devices form a chain (`chain`:
the edges between devices have no cycle; backward ops whose group has no forward op count with edges
turned round), or that no path leaves a device and comes back (`convex`).
"""

from proof_checker.graphs import sorted_order
from proof_checker.reading import demand, fields, require


def period(problem, solution, schedule):
    """Return the period; there is no schedule to check."""
    fields(schedule, "")
    require(problem.memory == "static", "memory: expected static, a period has no single peak")
    device = problem.devices(solution)
    check_contiguity(problem, device)
    forward, backward = zip(*loads(problem, device), strict=True)
    if problem.pipeline == "gpipe":
        return max(forward) + max(backward)
    return max(x + y for x, y in zip(forward, backward, strict=True))


def loads(problem, device):
    """Return the load of every device by forward and by backward work."""
    load = [[0, 0] for _ in range(problem.num_devices)]
    for v, d in enumerate(device):
        load[d][problem.backward[v]] += problem.compute[v][d]
    for t, u in enumerate(problem.producer):
        away = {device[v] for v in problem.consumers[t]} - {device[u]}
        for d in away | {device[u]} if away else ():
            ticks = problem.transfer[t][problem.io[d]] if problem.io[d] >= 0 else 0
            load[d][problem.backward[u]] += ticks
    return load


def check_contiguity(problem, device):
    """Refuse a placement whose forward parts are not as contiguous as the problem asks."""
    pairs = [(u, v) for u, v, _ in problem.edges if not problem.backward[u] | problem.backward[v]]
    if problem.contiguity == "chain":
        pairs += turned_pairs(problem)
        crossing = {(device[u], device[v]) for u, v in pairs if device[u] != device[v]}
        forms = sorted_order(problem.num_devices, crossing) is not None
        demand(forms, "the devices form no chain")
    elif problem.contiguity == "convex":
        check_convex(problem, device, pairs)


def turned_pairs(problem):
    """Return edges between backward ops, turned round, of which an end has no forward op."""
    orphans = set()
    for members in problem.groups:
        if all(problem.backward[v] for v in members):
            orphans.update(members)
    late = [(u, v) for u, v, _ in problem.edges if problem.backward[u] & problem.backward[v]]
    return [(v, u) for u, v in late if u in orphans or v in orphans]


def check_convex(problem, device, pairs):
    """Refuse a path that leaves a device and comes back; `left`: those that paths to an op left."""
    after, left = [[] for _ in device], [set() for _ in device]
    for u, v in pairs:
        after[u].append(v)
    for u in problem.order:
        stays = device[u] not in left[u]
        demand(stays, f"a path leaves device {device[u]} and comes back at op {u}")
        for v in after[u]:
            left[v] |= left[u] | ({device[u]} - {device[v]})
