"""Random pipeline problems for the tests of schedules."""

from __future__ import annotations

import numpy as np

from placeopt.schedules.problem import Block, PipelineProblem


def random_blocks(seed: int) -> PipelineProblem:
    """Return blocks with joins, forks, several sources, lags and tight memory on two or three
    devices.
    """
    rng = np.random.default_rng(seed)
    devices, forward = int(rng.integers(2, 4)), int(rng.integers(2, 5))
    blocks: list[Block] = []
    for i in range(forward):
        after = tuple((f"F{j}", int(rng.integers(0, 3))) for j in range(i) if rng.random() < 0.5)
        blocks.append(
            Block(f"F{i}", "F", (int(rng.integers(devices)),), int(rng.integers(1, 4)), (1,), after)
        )
    for i in rng.permutation(forward).tolist():
        earlier = [b.name for b in blocks if b.kind == "B" and rng.random() < 0.4]
        after = tuple((name, int(rng.integers(0, 3))) for name in (f"F{i}", *earlier))
        blocks.append(Block(f"B{i}", "B", blocks[i].devices, int(rng.integers(1, 5)), (-1,), after))
    names = [f"d{i}" for i in range(devices)]
    return PipelineProblem.from_blocks(
        f"random{seed}", blocks, names, capacity=int(rng.integers(1, forward + 1))
    )


def random_tree_pipeline(seed: int) -> PipelineProblem:
    """Return one or two chains that walk over a random tree of devices and back, some with split
    backward blocks.
    """
    rng = np.random.default_rng(seed)
    num_devices = int(rng.integers(1, 5))
    above = [0, *(int(rng.integers(0, d)) for d in range(1, num_devices))]
    blocks: list[Block] = []
    for chain in range(int(rng.integers(1, 3))):
        walk = [int(rng.integers(0, num_devices))]
        for _ in range(int(rng.integers(1, 4))):
            near = [
                d
                for d in range(num_devices)
                if d != walk[-1] and (above[d] == walk[-1] or above[walk[-1]] == d)
            ]
            new = [d for d in near if d not in walk]
            if new:
                walk.append(new[int(rng.integers(0, len(new)))])
        last: str | None = None

        def add(name: str, kind: str, device: int, memory: int, after: str | None) -> str:
            lag = int(rng.integers(0, 3)) if rng.random() < 0.3 else 0
            span, before = int(rng.integers(1, 4)), ((after, lag),) if after else ()
            blocks.append(Block(name, kind, (device,), span, (memory,), before))
            return name

        split = rng.random() < 0.3
        for d in walk:
            last = add(f"F{chain}.{d}", "F", d, 2 if split else 1, last)
        for d in walk[::-1]:
            last = add(f"B{chain}.{d}", "I" if split else "B", d, -1, last)
            if split:
                add(f"W{chain}.{d}", "W", d, -1, last)
    capacity = [int(rng.integers(2, 5)) for _ in range(num_devices)]
    names = [f"device{d}" for d in range(num_devices)]
    return PipelineProblem.from_blocks(f"random{seed}", blocks, names, capacity=capacity)


def random_mixed_pipeline(seed: int) -> PipelineProblem:
    """Return blocks with lags that change memory by unlike amounts, some on all devices at once."""
    rng = np.random.default_rng(seed)
    devices, forward = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    wide = rng.random() < 0.5
    blocks: list[Block] = []
    back: list[Block] = []
    for i in range(forward):
        everywhere = wide and rng.random() < 0.5
        where = tuple(range(devices)) if everywhere else (int(rng.integers(devices)),)
        units = 0 if rng.random() < 0.2 else int(rng.integers(1, 4))
        after = tuple((b.name, int(rng.integers(0, 4))) for b in blocks if rng.random() < 0.6)
        span = int(rng.choice([1, 2, 5, 30]))
        blocks.append(Block(f"f{i}", "F", where, span, (units,) * len(where), after))
        first = int(rng.integers(0, units + 1))  # what the first of two backward blocks frees
        parts = (units,) if rng.random() < 0.5 else (first, units - first)
        for p, part in enumerate(parts):
            after = ((f"f{i}", int(rng.integers(0, 4))),)
            after += tuple((b.name, int(rng.integers(0, 3))) for b in back if rng.random() < 0.3)
            span = int(rng.choice([1, 2, 5, 30]))
            back.append(Block(f"b{i}.{p}", "B", where, span, (-part,) * len(where), after))
    room = [1 << 62] * devices
    for d in range(devices):
        if rng.random() < 0.8:
            most = max([b.memory[b.devices.index(d)] for b in blocks if d in b.devices], default=0)
            room[d] = max(1, most) + int(rng.integers(0, 3))
    names = [f"d{i}" for i in range(devices)]
    return PipelineProblem.from_blocks(f"random{seed}", blocks + back, names, capacity=room)


def packed_blocks(seed: int, devices: int = 8, stages: int = 12) -> tuple[PipelineProblem, int]:
    """Return stages of forward and backward blocks on one to three devices each, and a period in
    which they, and blocks that fill what they leave, keep every device busy.
    """
    rng = np.random.default_rng(seed)
    free = np.zeros(devices, np.int64)
    first, width = rng.integers(0, devices - 2, stages), rng.integers(1, 4, stages)
    where = [tuple(range(a, a + w)) for a, w in zip(first.tolist(), width.tolist(), strict=True)]
    span: list[list[int]] = [[] for _ in range(stages)]
    gaps: list[tuple[int, int]] = []
    for s in rng.permutation(np.repeat(np.arange(stages), 2)).tolist():
        here = list(where[s])
        begin = int(free[here].max())
        gaps += [(d, begin - int(free[d])) for d in here if free[d] < begin]
        span[s].append(int(rng.integers(1, 20)))
        free[here] = begin + span[s][-1]
    gaps += [(d, int(free.max() - free[d])) for d in range(devices) if free[d] < free.max()]
    blocks = [
        Block(f"F{s}", "F", where[s], span[s][0], after=((f"F{s - 1}", 0),) if s else ())
        for s in range(stages)
    ]
    for s in reversed(range(stages)):
        after = (f"F{s}", 0) if s == stages - 1 else (f"B{s + 1}", 0)
        blocks.append(Block(f"B{s}", "B", where[s], span[s][1], after=(after,)))
    blocks += [Block(f"fill{i}", "other", (d,), ticks) for i, (d, ticks) in enumerate(gaps)]
    names = [f"d{i}" for i in range(devices)]
    return PipelineProblem.from_blocks(f"packed{seed}", blocks, names), int(free.max())
