"""Job streams in plain Python, written from the definitions alone: splitting, placing, one step,
one episode.

Nothing here is shared with placeopt.streams except the input values; a server is its (group, rack,
position).
"""

from __future__ import annotations

import math
from itertools import product


def shapes(size, grid):
    """Return the shapes that a block of `size` servers may have, in the order they are tried."""
    found = []
    for a in range(size, 0, -1):
        if size % a == 0:
            b = size // a
            root = round(math.sqrt(a))
            if root * root == a:
                found.append((root, root, b))
            if a <= grid[0] and a <= grid[1] and b <= grid[2]:
                found.append((a, 1, b))
                found.append((a, b, 1))
    found.append((size, 1, 1))
    return [s for s in found if all(x <= y for x, y in zip(s, grid, strict=True))]


def first_block(size, grid, good):
    """Return the first block all of whose servers satisfy `good`, None if there is none."""
    for shape in shapes(size, grid):
        for origin in product(*(range(grid[k] - shape[k] + 1) for k in range(3))):
            box = [
                tuple(o + d for o, d in zip(origin, step, strict=True))
                for step in product(*map(range, shape))
            ]
            if all(good(server) for server in box):
                return box
    return None


def split_counts(profile, degree, rule, quantum):
    """Return how often each op is split."""
    counts = []
    for seconds in profile.forward.tolist():
        if rule == "uniform":
            counts.append(degree if seconds > 0 else 1)
        else:
            counts.append(
                max(1, min(2 * math.ceil(math.ceil(seconds * 1e3 / quantum) / 2), degree))
            )
    return counts


def breadth_first(profile):
    """Return the ops in breadth-first topological order."""
    edges = [tuple(edge) for edge in profile.edges.tolist()]
    order = [v for v in range(profile.num_ops) if all(t != v for _, t in edges)]
    for u in order:
        for s, t in edges:
            if (
                s == u
                and t not in order
                and all(a in order[: order.index(u) + 1] for a, b in edges if b == t)
            ):
                order.append(t)
    return order


def place(profile, counts, degree, rule, grid, memory, idle):
    """Return {op: servers of its sub-ops} on the idle servers, None if an op does not fit."""
    room = dict.fromkeys(product(*map(range, grid)), float(memory))
    placed = {}
    block = first_block(degree, grid, lambda s: s in idle) if rule == "uniform" else None
    if rule == "uniform" and block is None:
        return None
    for v in breadth_first(profile):
        need, count = float(profile.memory[v]), counts[v]
        spot = None
        for u in [a for a, b in profile.edges.tolist() if b == v]:
            if len(placed[u]) == count and sum(room[s] for s in placed[u]) >= need:
                spot = placed[u]
                break
        if spot is None and rule == "uniform":
            candidates = [block] if count == degree else [[s] for s in block]
            spot = next((c for c in candidates if all(room[s] >= need / count for s in c)), None)
        elif spot is None:
            spot = first_block(count, grid, lambda s: s in idle and room[s] >= need / count)  # noqa: B023
        if spot is None:
            return None
        for server in spot:
            room[server] -= need / count
        placed[v] = spot
    return placed


def split_graph(profile, counts):
    """Split op after op; return (cost of each sub-op, {(source, target): bytes}, synchronisation
    pairs).

    A sub-op is (direction, op, number). Edges are rewritten exactly as each op is split, in the
    order of the file.
    """
    last = profile.num_ops - 1
    cost, size, edges = {}, {}, {}
    for v in range(profile.num_ops):
        for way, time in (("f", profile.forward[v]), ("b", profile.backward[v])):
            cost[way, v, 0], size[way, v, 0] = float(time), float(profile.memory[v])
    for u, v in profile.edges.tolist():
        edges_add(edges, ("f", u, 0), ("f", v, 0), size)
        edges_add(edges, ("b", v, 0), ("b", u, 0), size)
    edges_add(edges, ("f", last, 0), ("b", last, 0), size)
    sync = {}
    for v in sorted(range(profile.num_ops), key=lambda v: int(profile.rank[v])):
        count = counts[v]
        if count == 1:
            continue
        for way in "fb":
            whole = (way, v, 0)
            parts = [(way, v, i) for i in range(count)]
            old = dict(edges)
            part_cost, part_size = cost.pop(whole) / count, size.pop(whole) / count
            for part in parts:
                cost[part], size[part] = part_cost, part_size
            for (a, b), _ in old.items():
                if b == whole:
                    del edges[a, b]
                    for part in parts:
                        edges[a, part] = size[a] / count
                elif a == whole:
                    del edges[a, b]
                    for part in parts:
                        edges[part, b] = size[b] / count
            if way == "b":
                for a, b in product(parts, parts):
                    if a != b:
                        sync[a, b] = part_size
    return cost, edges, sync


def edges_add(edges, a, b, size):
    """Add an edge that carries its source's bytes."""
    edges[a, b] = size[a]


def collective(size, servers, t, bandwidth):
    """Return the time of an all-reduce of `size` bytes over the distinct servers."""
    if len(servers) == 1:
        return 0.0
    x = t.groups
    groups, racks, ids = (len({s[k] for s in servers}) for k in range(3))
    total, left = 0.0, size
    for g in (groups, min(groups, ids), racks, math.ceil(ids / x)):
        left = math.ceil(left / g)
        if g > 1:
            width = max(1, min(x, x // (g - 1)))
            total += 2 * (t.propagation + 2 * t.io_latency + left / (width * bandwidth / x))
            n = math.ceil(math.log2(g))
            total += (n * left * g / (2 * g)) / min(
                t.memory_frequency * n / (2 * (g + 1)), t.peak_flops
            )
    return total


def step_time(profile, degree, t, rule, units, quantum):
    """Return the length of one training step, None if the job does not fit an empty cluster."""
    grid = (t.groups, t.racks, t.servers)
    counts = split_counts(profile, degree, rule, quantum)
    placed = place(profile, counts, degree, rule, grid, t.memory, set(product(*map(range, grid))))
    if placed is None:
        return None
    scale, bandwidth = (
        (1000.0, 8 * t.bandwidth / t.groups)
        if units == "published"
        else (1.0, t.bandwidth / t.groups)
    )
    cost, edges, sync = split_graph(profile, counts)
    at = {node: placed[node[1]][node[2]] for node in cost}

    groups = {}
    for a, b in edges:
        if a[0] == "f" and counts[a[1]] > 1:
            groups.setdefault(("out", a[1]), []).append((a, b))
        elif b[0] == "b" and counts[b[1]] > 1:
            groups.setdefault(("in", b[1]), []).append((a, b))
    for a, b in sync:
        groups.setdefault(("sync", min(a, b), max(a, b)), []).append((a, b))
    size = {**edges, **sync}
    time = {e: t.propagation + 2 * t.io_latency + size[e] / bandwidth for e in size}
    for members in groups.values():
        start, end = sorted(at[a] for a, _ in members), sorted(at[b] for _, b in members)
        if start == end:
            together = collective(sum(size[e] for e in members), set(start), t, bandwidth)
            time.update(dict.fromkeys(members, together))
    for a, b in size:
        if at[a] == at[b] or size[a, b] == 0:
            time[a, b] = 0.0

    left = {node: c * scale for node, c in cost.items()}
    full = dict(left)
    waits = {node: sum(b == node for _, b in edges) for node in cost}
    done, flying, now = set(), {}, 0.0
    while True:
        ready = [node for node in left if node not in done and waits[node] == 0]
        free = [node for node in ready if left[node] == 0]
        running = {}
        for node in ready:
            other = running.get(at[node])
            if other is None or full[node] < full[other]:
                running[at[node]] = node
        if free:
            length, ended = 0.0, [n for n in running.values() if left[n] == 0]
        elif running or flying:
            length = min([*(left[n] for n in running.values()), *flying.values()])
            ended = [n for n in running.values() if left[n] - length <= 1e-12 * full[n]]
        else:
            return now if len(done) == len(left) else math.nan
        now += length
        for node in running.values():
            left[node] -= length
        landed = [e for e in flying if flying[e] - length <= 1e-12 * now]
        flying = {e: f - length for e, f in flying.items() if e not in landed}
        for node in ended:
            left[node] = 0.0
            done.add(node)
            for e in size:
                if e[0] == node:
                    if time[e] > 0:
                        flying[e] = time[e]
                    else:
                        landed.append(e)
        for e in landed:
            if e in edges:
                waits[e[1]] -= 1


class Cluster:
    """An event-free simulator: who holds what until when, asked at each arrival."""

    def __init__(self, problem):
        jobs = problem.jobs
        self.problem, self.jobs, t = problem, jobs, jobs.topology
        self.grid, self.memory = (t.groups, t.racks, t.servers), t.memory
        self.rule, self.quantum = jobs.config.rule, jobs.config.quantum
        self.until = dict.fromkeys(product(*map(range, self.grid)), -1)

    def idle(self, now):
        """Return the servers that hold no job."""
        return {server for server, end in self.until.items() if end <= now}

    def servers(self, model, degree, now):
        """Return the servers that first fit gives the job now, None if it does not fit."""
        profile = self.jobs.profiles[model]
        counts = split_counts(profile, degree, self.rule, self.quantum)
        placed = place(profile, counts, degree, self.rule, self.grid, self.memory, self.idle(now))
        if placed is None:
            return None
        if self.rule == "uniform":
            return set(first_block(degree, self.grid, lambda s: s in self.idle(now)))
        return {server for spot in placed.values() for server in spot}

    def length(self, model, degree):
        """Return the completion time in ticks (from the table: the lookahead has its own
        oracle).
        """
        ticks = int(self.jobs.arrays.jct[model, self.jobs.degrees.index(degree)])
        return None if ticks < 0 else ticks


def episode(problem, choose):
    """Run a stream; `choose(cluster, job, now, model, deadline)` returns a degree or None.

    Returns (outcome, degree, completion time, servers) of every job.
    """
    cluster, result = Cluster(problem), []
    rows = zip(
        problem.arrival.tolist(), problem.model.tolist(), problem.deadline.tolist(), strict=True
    )
    for job, (now, model, deadline) in enumerate(rows):
        degree = choose(cluster, job, now, model, deadline)
        if degree is None:
            lengths = {u: cluster.length(model, u) for u in problem.jobs.degrees}
            good = [u for u, x in lengths.items() if x is not None and x <= deadline]
            fits = [u for u in good if cluster.servers(model, u, now) is not None]
            result.append(("refused" if fits else "no space" if good else "deadline", 0, 0, set()))
            continue
        servers, length = cluster.servers(model, degree, now), cluster.length(model, degree)
        if servers is None or length is None:
            result.append(("no space", degree, 0, set()))
        elif length > deadline:
            result.append(("deadline", degree, 0, set()))
        else:
            for server in servers:
                cluster.until[server] = now + length
            outcome = "completed" if now + length <= problem.horizon else "unfinished"
            result.append((outcome, degree, length, servers))
    return result


def most_completed(problem):
    """Return how many jobs a clairvoyant can complete at most, by trying every degree and block
    (uniform rule).
    """
    t, degrees = problem.jobs.topology, problem.jobs.degrees
    grid = (t.groups, t.racks, t.servers)
    blocks = {}
    for u in degrees:
        boxes = {}
        for shape in shapes(u, grid):
            for origin in product(*(range(grid[k] - shape[k] + 1) for k in range(3))):
                box = (
                    tuple(o + d for o, d in zip(origin, s, strict=True))
                    for s in product(*map(range, shape))
                )
                boxes[frozenset(box)] = None
        blocks[u] = list(boxes)
    size = problem.num_jobs

    def best(job, until):
        if job == size:
            return 0
        now, model, deadline = (
            int(problem.arrival[job]),
            int(problem.model[job]),
            int(problem.deadline[job]),
        )
        value = best(job + 1, until)
        for d, u in enumerate(degrees):
            length = int(problem.jobs.arrays.jct[model, d])
            if length < 0 or length > deadline or now + length > problem.horizon:
                continue
            for block in blocks[u]:
                if all(until.get(server, -1) <= now for server in block):
                    value = max(
                        value, 1 + best(job + 1, {**until, **dict.fromkeys(block, now + length)})
                    )
                    if value == size - job:
                        return value
        return value

    return best(0, {})
