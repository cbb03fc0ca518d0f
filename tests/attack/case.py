"""Random small problems as plain lists: zero costs, huge ticks, unrelated types, every option. No
placeopt, no numpy.
"""

from __future__ import annotations

from dataclasses import dataclass, field

HUGE = 2**50
NO_LIMIT = 2**62


@dataclass
class Case:
    """A placement problem in lists; -1 in `compute` means incompatible, -1 in `channel` no
    contention.
    """

    compute: list[list[int]]
    producer: list[int]
    consumers: list[list[int]]
    transfer: list[list[int]]
    link_class: list[list[int]]
    channel: list[list[int]]
    resident: list[int]
    capacity: list[int]
    tensor_bytes: list[int]
    colocation: list[int]
    memory: str = "static"
    objective: str = "makespan"
    contiguity: str = "chain"
    pipeline: str = "1f1b"
    backward: list[bool] = field(default_factory=list)
    io_class: list[int] = field(default_factory=list)
    slots: int = 1

    @property
    def num_ops(self) -> int:
        """Number of ops."""
        return len(self.compute)

    @property
    def num_devices(self) -> int:
        """Number of devices."""
        return len(self.compute[0])


def draw(rng, objective=None):
    """Return a random Case; `rng` is a random.Random."""
    objective = objective or rng.choice(["makespan", "makespan", "period", "latency"])
    many = objective == "period" and rng.random() < 0.03  # more device types than a byte of flags
    n = (
        rng.choice([1, 2, 2, 3, 3, 3, 4])
        if objective == "makespan"
        else rng.choice([1, 2, 3, 3, 4, 5])
    )
    k = rng.choice([1, 2, 2, 3])
    if many:
        n, k = rng.choice([1, 2]), rng.choice([17, 18])
    if objective == "makespan" and n == 4:
        k = rng.choice([1, 2, 2])
    ticks = _ticks(rng)
    rows = [[ticks() for _ in range(k)] for _ in range(n)]
    if rng.random() < 0.4:
        rows = [[row[0]] * k for row in rows]
    producer, consumers = [], []
    for u in range(n - 1):
        for _ in range(rng.choice([0, 1, 1, 2])):
            later = [v for v in range(u + 1, n) if rng.random() < 0.6]
            if later:
                producer.append(u)
                consumers.append(later)
    m = len(producer)
    classes = rng.choice([1, 1, 2])
    case = Case(
        compute=rows,
        producer=producer,
        consumers=consumers,
        transfer=[[ticks() for _ in range(classes)] for _ in range(m)],
        link_class=[[rng.randrange(classes) for _ in range(k)] for _ in range(k)],
        channel=_channels(rng, k),
        resident=[rng.randrange(4) for _ in range(n)],
        capacity=[NO_LIMIT] * k,
        tensor_bytes=[rng.randrange(4) for _ in range(m)],
        colocation=[-1] * n,
        objective=objective,
        backward=[False] * n,
        io_class=[0 if rng.random() < 0.75 else -1 for _ in range(k)],
    )
    _constrain(rng, case)
    if objective != "makespan":
        _pipeline(rng, case)
    return case


def _ticks(rng):
    top = rng.choice([1, 3, 20, 20, 1000])
    huge = rng.random() < 0.08
    zeros = rng.choice([0.0, 0.1, 0.5])

    def draw_one():
        if huge and rng.random() < 0.2:
            return HUGE - rng.randrange(3)
        return 0 if rng.random() < zeros else rng.randint(0, top)

    return draw_one


def _channels(rng, k):
    kind = rng.choice(["none", "none", "pair", "source", "bus", "mixed"])
    if kind == "none":
        return [[-1] * k for _ in range(k)]
    if kind == "pair":
        return [[a * k + b for b in range(k)] for a in range(k)]
    if kind == "source":
        return [[a] * k for a in range(k)]
    if kind == "bus":
        return [[0] * k for _ in range(k)]
    return [[rng.randint(-1, 1) for _ in range(k)] for _ in range(k)]


def _constrain(rng, case):
    n, k = case.num_ops, case.num_devices
    if k > 1 and rng.random() < 0.25:
        for row in case.compute:
            keep = rng.randrange(k)
            for d in range(k):
                if d != keep and rng.random() < 0.3:
                    row[d] = -1
    if rng.random() < 0.3:
        case.colocation = [rng.choice([-1, -1, 0, 1]) for _ in range(n)]
    if rng.random() < 0.4:
        total = sum(case.resident) + sum(case.tensor_bytes)
        case.capacity = [rng.randint(0, total + 1) for _ in range(k)]
        if case.objective == "makespan" and rng.random() < 0.5:
            case.memory = "peak"


def _pipeline(rng, case):
    n = case.num_ops
    case.contiguity = rng.choice(["chain", "convex", "none"])
    case.slots = rng.choice([1, 1, 2]) if case.objective == "latency" else 1
    if case.objective == "period" and rng.random() < 0.5:
        case.pipeline = rng.choice(["1f1b", "gpipe"])
        first = rng.randint(0, n)  # a backward op never feeds a forward op
        case.backward = [v >= first for v in range(n)]
        if rng.random() < 0.6:
            case.colocation = [min(v, n - 1 - v) if rng.random() < 0.8 else -1 for v in range(n)]
