"""Small splits with every option, and their best periods by enumeration of all splits.

The enumeration knows the definition (docstring of `placeopt.splits.problem`) and nothing of the
solver: no contraction, no ideals, no dynamic program. It reads a problem as plain lists. Devices of
a stage count only by what tells them apart: their columns, capacity and group.

As a script it compares `split-ideals` with the enumeration: `python tests/splits/every_split.py
--seeds 20000`.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter

import numpy as np

import placeopt as po
from placeopt.model.errors import InputError
from placeopt.model.problem import PlacementProblem
from placeopt.splits.judge import judged_period, split_violations
from placeopt.splits.problem import Split, SplitProblem, SplitStage


def draw(seed):
    """Return a random SplitProblem, None where the options contradict one another."""
    rng = random.Random(seed)
    n, k = rng.choice([1, 2, 3, 3, 4, 4, 5]), rng.choice([1, 2, 3, 4, 4])
    groups = rng.choice([1, 1, 2, k])
    zeros, top = rng.choice([0.0, 0.3, 0.6]), rng.choice([3, 12, 30])

    def ticks(share=zeros):
        return 0 if rng.random() < share else rng.randint(1, top)

    kinds = [0] * k if rng.random() < 0.6 else [rng.randrange(2) for _ in range(k)]
    by_kind = [
        [ticks() for _ in range(2)] if rng.random() < 0.5 else [ticks()] * 2 for _ in range(n)
    ]
    banned = rng.choice([0.0, 0.3])
    for row in by_kind:
        if len(set(kinds)) > 1 and rng.random() < banned:
            row[rng.randrange(2)] = -1
    producer, consumers = _tensors(rng, n)
    free = rng.choice([zeros, zeros, 0.8])
    transfer = [[0, 0] if rng.random() < free else [ticks(), ticks()] for _ in producer]
    colocation = [rng.choice([-1, -1, 0, 1]) for _ in range(n)] if rng.random() < 0.5 else [-1] * n
    resident = [rng.choice([0, 0, 1, 2, 5]) for _ in range(n)]
    full = rng.choice([2**62, sum(resident), max(1, sum(resident) * 2 // 3)])
    pays = rng.choice([[0, 0], [0, 1], [0, -1]])
    pointer = [0]
    for readers in consumers:
        pointer.append(pointer[-1] + len(readers))
    try:
        base = PlacementProblem(
            name=f"split{seed}",
            compute=np.array([[row[kind] for kind in kinds] for row in by_kind]),
            producer=np.array(producer, dtype=np.int64),
            consumer_ptr=np.array(pointer),
            consumer=np.array([v for readers in consumers for v in readers], dtype=np.int64),
            transfer=np.array(transfer, dtype=np.int64).reshape(-1, 2),
            resident=np.array(resident),
            capacity=np.array([full] * k),
            colocation=np.array(colocation),
            backward=np.array(_backward(rng, n)),
            io_class=np.array([pays[kind] for kind in kinds]),
            objective="period",
        )
        return SplitProblem(
            base,
            max_replicas=rng.choice([1, 2, 3, 4]),
            groups=groups,
            overlap=rng.random() < 0.4,
            sync=np.array([ticks(0.4) for _ in range(n)]),
            uplink=np.array([ticks(0.4) for _ in producer], dtype=np.int64),
        )
    except InputError:
        return None


def _backward(rng, n):
    """Return which ops are backward ops: mostly none, else the last ones."""
    forward = n if rng.random() < 0.6 else rng.randint(1, n)
    return [v >= forward for v in range(n)]


def _tensors(rng, n):
    """Return producers and consumers: a chain, a star or a random graph."""
    kind = rng.choice(["chain", "star", "any", "any", "none"])
    if kind == "chain":
        return list(range(n - 1)), [[v + 1] for v in range(n - 1)]
    if kind == "star":
        return [0] * (n - 1), [[v] for v in range(1, n)]
    producer, consumers = [], []
    for u in range(n - 1 if kind == "any" else 0):
        for _ in range(rng.choice([0, 1, 1, 2])):
            later = [v for v in range(u + 1, n) if rng.random() < 0.5]
            if later:
                producer.append(u)
                consumers.append(later)
    return producer, consumers


def best_split(problem):
    """Return (period, split) of the best of all splits, None if no split is valid."""
    case = _Case(problem)
    best = None
    for stages in _ordered_parts(case, frozenset(range(case.n))):
        moved, works = (
            [case.crossing(part) for part in stages],
            [sum(case.sync[v] for v in part) for part in stages],
        )
        for choice in case.devices(stages, Counter(), 0):
            value = case.period(stages, choice, moved, works)
            if best is None or value < best[0]:
                best = (value, stages, choice)
    return None if best is None else (best[0], case.split(best[1], best[2]))


def _ordered_parts(case, left):
    """Yield all lists of sets of ops, first to last, that keep order and colocation."""
    if not left:
        yield []
        return
    ops = sorted(left)
    for bits in range(1, 2 ** len(ops)):
        part = frozenset(v for i, v in enumerate(ops) if bits >> i & 1)
        rest = left - part
        if any(u in rest and v in part for u, v in case.order) or any(
            len(c & part) and c - part for c in case.classes
        ):
            continue
        for others in _ordered_parts(case, rest):
            if len(others) < case.k:
                yield [part, *others]


class _Case:
    """A problem as lists."""

    def __init__(self, problem):
        base = problem.placement
        self.problem, self.n, self.k = problem, base.num_ops, base.num_devices
        self.compute, self.sync = base.compute.tolist(), problem.sync.tolist()
        self.resident, self.capacity = base.resident.tolist(), base.capacity.tolist()
        ends = base.consumer_ptr.tolist()
        self.tensors = [
            frozenset([u, *base.consumer[ends[t] : ends[t + 1]].tolist()])
            for t, u in enumerate(base.producer.tolist())
        ]
        self.io = [
            [int(row[c]) if c >= 0 else 0 for c in base.io_class.tolist()]
            for row in base.transfer.tolist()
        ]
        colocation = base.colocation.tolist()
        self.classes = [
            frozenset(v for v in range(self.n) if colocation[v] == group)
            for group in set(colocation) - {-1}
        ]
        self.order = list(_order(base, self.classes))
        self.pools = {}  # what tells devices apart: those alike
        for d in range(self.k):
            columns = tuple(row[d] for row in self.compute), tuple(row[d] for row in self.io)
            pays = base.io_class[d] >= 0
            if d in problem.group_of:
                key = (problem.group_of[d], columns, bool(pays), self.capacity[d])
                self.pools.setdefault(key, []).append(d)

    def crossing(self, part):
        """Tensors that cross the border of a set of ops."""
        return [t for t, ends in enumerate(self.tensors) if ends & part and ends - part]

    def devices(self, stages, used, group):
        """Yield, per stage, the pool and the number of its devices, groups in order."""
        if not stages:
            yield []
            return
        for key, devices in self.pools.items():
            d = devices[0]
            if key[0] < group or any(self.compute[v][d] < 0 for v in stages[0]):
                continue
            if sum(self.resident[v] for v in stages[0]) > self.capacity[d]:
                continue
            for r in range(1, min(self.problem.max_replicas, len(devices) - used[key]) + 1):
                for others in self.devices(stages[1:], used + Counter({key: r}), key[0]):
                    yield [(key, r), *others]

    def period(self, stages, choice, moved, weights):
        """Return the period by the definition."""
        value = 0
        for part, (key, r), tensors, weight in zip(stages, choice, moved, weights, strict=True):
            d = self.pools[key][0]
            work, sent = sum(self.compute[v][d] for v in part), sum(self.io[t][d] for t in tensors)
            ring = -(-2 * (r - 1) * weight // r)
            if self.problem.overlap:
                value = max(value, -(-work // r), -(-sent // r) + ring)
            else:
                value = max(value, -(-(work + sent) // r) + ring)
        for group in {key[0] for key, _ in choice}:
            held = frozenset().union(
                *(part for part, (key, _) in zip(stages, choice, strict=True) if key[0] == group)
            )
            value = max(value, sum(int(self.problem.uplink[t]) for t in self.crossing(held)))
        return value

    def split(self, stages, choice):
        """Return the split with devices of the pools."""
        left = {key: list(devices) for key, devices in self.pools.items()}
        found = []
        for part, (key, r) in zip(stages, choice, strict=True):
            found.append(SplitStage(tuple(sorted(part)), tuple(left[key][:r])))
            del left[key][:r]
        return Split(tuple(found))


def _order(base, classes):
    """Yield the pairs of ops that must not lead back: forward edges, and turned ones of orphan
    backward classes.
    """
    backward = base.backward.tolist()
    ends = base.consumer_ptr.tolist()

    def orphan(v):
        group = next((c for c in classes if v in c), {v})
        return all(backward[w] for w in group)

    for t, u in enumerate(base.producer.tolist()):
        for v in base.consumer[ends[t] : ends[t + 1]].tolist():
            if not backward[u] and not backward[v]:
                yield u, v
            elif backward[u] and backward[v] and (orphan(u) or orphan(v)):
                yield v, u


def difference(seed):
    """Return in words how `split-ideals` and the enumeration differ on a seed; None if they agree,
    "" if nothing was drawn.
    """
    problem = draw(seed)
    if problem is None:
        return ""
    expected = best_split(problem)
    result = po.solve(problem, solver="split-ideals", seconds=20)
    if expected is None:
        return (
            None
            if result.status == "infeasible"
            else f"{result.status} {result.value}, but nothing is valid"
        )
    value, split = expected
    if split_violations(problem, split) or judged_period(problem, split) != value:
        return (
            f"the enumeration's {split} is not worth {value} to the judge: "
            f"{split_violations(problem, split)}"
        )
    if result.status != "optimal" or result.value != value:
        return f"{result.status} {result.value}, but {split} is worth {value}"
    if (
        split_violations(problem, result.solution)
        or judged_period(problem, result.solution) != value
    ):
        return f"its {result.solution} is not valid, or not worth {value}"
    return None


def main():
    """Compare on many seeds; exit with 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20000)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    drawn = different = 0
    for seed in range(given.first, given.first + given.seeds):
        found = difference(seed)
        drawn += found != ""
        if found:
            different += 1
            print(f"seed {seed}: {found}", flush=True)
    print(f"{drawn} splits, {different} different")
    sys.exit(different > 0)


if __name__ == "__main__":
    main()
