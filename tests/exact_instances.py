"""Real instances with known optima, read here on purpose without the readers of the project."""

from __future__ import annotations

import csv
import json

import numpy as np

from placeopt.model.cluster import contention_matrix
from placeopt.model.problem import PlacementProblem


def known_optima(data):
    """Yield (problem, optimal makespan) for the 139 values of `optimal/`."""
    graphs = json.loads((data / "optimal/identical/graphs.json").read_text())
    for row in csv.DictReader((data / "optimal/identical/optima.csv").open()):
        graph, k = graphs[row["graph"]], int(row["num_devices"])
        compute = np.repeat(np.array(graph["work"])[:, None], k, axis=1)
        name = f"{row['graph']}-{k}"
        yield (
            PlacementProblem.from_edges(compute, graph["edges"], name=name),
            int(row["optimal_makespan"]),
        )
    for row in csv.DictReader((data / "optimal/unrelated/optima.csv").open()):
        problem, scale = _unrelated(data / "optimal/unrelated" / row["file"])
        yield problem, scale * int(row["optimal_makespan"])


def _unrelated(path):
    rows, edges, section = {}, [], ""
    for line in path.read_text().splitlines():
        if line.startswith("#"):
            section = line[1:]
        elif section == "tasks" and line.strip():
            op, times = line.split(":")
            rows[int(op)] = [float(x) for x in times.split(",")]
        elif section == "edges" and line.strip():
            edges.append(tuple(float(x) for x in line.split(":")[1].split(",")))
    compute = np.array([rows[i] for i in range(len(rows))])
    scale = 1 if (compute == np.floor(compute)).all() else 10  # one file has half ticks
    scaled = [(int(u), int(v), int(scale * c)) for u, v, c in edges]
    return PlacementProblem.from_edges(scale * compute, scaled, name=path.stem), scale


def doppler(data, name, num_devices=4, contention="none"):
    """Return the problem of a Doppler graph on identical devices; ticks are the file's integers."""
    lines = (data / "doppler" / f"{name}.txt").read_text().splitlines()
    source, target = ([int(x) for x in line.split(",") if x.strip()] for line in lines[2:4])
    rows = [line.split(",") for line in lines[4:] if line.strip()]
    compute = np.array([int(row[0]) for row in rows])
    consumers = {}
    for u, v in zip(source, target, strict=True):
        consumers.setdefault(u, []).append(v)
    producer = sorted(consumers)
    lists = [list(dict.fromkeys(consumers[u])) for u in producer]
    return PlacementProblem.from_arrays(
        name=name,
        compute=np.repeat(compute[:, None], num_devices, axis=1),
        producer=producer,
        consumer_ptr=np.concatenate(([0], np.cumsum([len(x) for x in lists]))),
        consumer=np.concatenate(lists),
        transfer=np.array([int(rows[u][1]) for u in producer]),
        channel=contention_matrix(num_devices, contention),
    )


def random_layered(n, num_devices, seed, ratio=1.0):
    """Return a random layered graph whose edges cost about `ratio` times an op."""
    rng = np.random.default_rng(seed)
    work = rng.integers(50, 151, n)
    layer = np.sort(rng.integers(0, max(2, round(n**0.5)), n))
    edges = []
    for v in range(n):
        before = np.flatnonzero(layer < layer[v])
        near = before[layer[before] == layer[before].max()] if len(before) else before
        if len(near):
            for u in rng.choice(near, min(len(near), int(rng.integers(1, 4))), replace=False):
                edges.append((int(u), v, int(ratio * rng.integers(50, 151))))
    compute = np.repeat(work[:, None], num_devices, axis=1)
    return PlacementProblem.from_edges(compute, edges, name=f"layered-{n}-{seed}")


def brute_force(problem):
    """Return the least makespan over all placements and all orders (exact without contention), or
    None.
    """
    from itertools import permutations, product

    from placeopt.makespan.evaluate import INFEASIBLE, evaluate_batch

    n, k = problem.num_ops, problem.num_devices
    position = {int(op): i for i, op in enumerate(problem.topological_order)}
    edges = [
        (int(problem.producer[t]), int(v))
        for t, v in zip(problem.edge_tensor, problem.consumer, strict=True)
    ]
    orders = [
        order
        for order in permutations(range(n))
        if all(
            order[u] < order[v] for u, v in edges
        )  # ranks: topological ones reach every schedule
    ]
    assert position
    devices = np.array(list(product(range(k), repeat=n)), dtype=np.int32)
    best = INFEASIBLE
    for order in orders:
        ranks = np.tile(np.array(order, dtype=np.int64), (len(devices), 1))
        best = min(best, int(evaluate_batch(problem, devices, ranks, "planned", threads=1).min()))
    return None if best == INFEASIBLE else int(best)
