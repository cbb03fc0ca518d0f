"""What walks over the orders of blocks are worth: `repetend` with them, and without.

    python results/exact/orders.py [--again] [--only NAMES] [--minutes M]

Pipelines of many devices, drawn at random, 8 s a run; the value is the period of one micro-batch.
The walk was developed on the first kinds (`chosen`) alone. Every run is a row of orders.csv, kept;
orders.md has the gaps. It is no grid: a variant is a patch of the code.
"""

from __future__ import annotations

import random
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from ablation import Ablation

from placeopt.schedules import Block, PipelineProblem, schedule_result
from placeopt.schedules.period_search import PeriodSearch

if TYPE_CHECKING:
    from collections.abc import Callable

    import placeopt as po

Layers = list[tuple[int, ...]]
"""Devices of every layer."""


def there_and_back(devices: int, rng: random.Random) -> Layers:
    """Two stages on each device, in a V."""
    there = [(device,) for device in range(devices)]
    return there + there[::-1]


def in_turn(devices: int, rng: random.Random) -> Layers:
    """Two stages on each device, one round after the other."""
    return [(device,) for device in range(devices)] * 2


def scattered(devices: int, rng: random.Random) -> Layers:
    """Twice as many layers as devices, a fifth of them on two or three."""
    return [
        tuple(rng.sample(range(devices), rng.choice((2, 3)) if rng.random() < 0.2 else 1))
        for _ in range(2 * devices)
    ]


def shuffled(devices: int, rng: random.Random) -> Layers:
    """Three stages on each device, in any order."""
    stages = [(device,) for device in range(devices)] * 3
    rng.shuffle(stages)
    return stages


def pairs(devices: int, rng: random.Random) -> Layers:
    """Every layer on two devices, drawn."""
    return [tuple(rng.sample(range(devices), 2)) for _ in range(devices)]


def shared_ends(devices: int, rng: random.Random) -> Layers:
    """A stage on each device, and the embedding before and after them on every fourth one."""
    ends = tuple(range(0, devices, 4))
    return [ends, *((device,) for device in range(devices)), ends]


KINDS: dict[str, tuple[Callable[[int, random.Random], Layers], str]] = {
    "in a V, split backward": (there_and_back, "FIW"),
    "two rounds": (in_turn, "FB"),
    "scattered": (scattered, "FB"),
    "scattered, inference": (scattered, "F"),
    "shuffled": (shuffled, "FB"),
    "shuffled, split backward": (shuffled, "FIW"),
    "pairs": (pairs, "FB"),
    "pairs, inference": (pairs, "F"),
    "shared ends": (shared_ends, "FB"),
    "shared ends, split backward": (shared_ends, "FIW"),
}
"""Layers, and the passes of each: forward, backward, or backward for inputs and for weights."""


def load(kind: str, *, cluster: str) -> PipelineProblem:
    """Draw a pipeline of a kind on so many devices, each with room for half as many micro-batches
    as there are devices.
    """
    devices = int(cluster.split()[0])
    rng = random.Random(zlib.crc32(f"{kind}, {devices}".encode()))
    make, passes = KINDS[kind]
    blocks: list[Block] = []
    layers = [*enumerate(make(devices, rng))]
    held = int(passes != "F")

    def add(name: str, layer: int, where: tuple[int, ...], memory: int, *after: str) -> None:
        spans = {"F": (60, 180), "B": (90, 400), "I": (60, 180), "W": (40, 160)}
        span = rng.randint(*spans[name])
        needed = tuple((before, 0) for before in after)
        blocks.append(Block(f"{name}{layer}", name, where, span, (memory,) * len(where), needed))

    for layer, where in layers:
        add("F", layer, where, held, *([f"F{layer - 1}"] if layer else []))
    back = passes[1:2]
    for layer, where in reversed(layers) if back else ():
        before = f"F{layer}" if layer == len(layers) - 1 else f"{back}{layer + 1}"
        add(back, layer, where, -held if back == "B" else 0, before)
        if back == "I":
            add("W", layer, where, -held, f"I{layer}")
    most = max(sum(device in where for _, where in layers) for device in range(devices))
    names = [f"d{device}" for device in range(devices)]
    capacity = most * devices // 2 if held else None
    return PipelineProblem.from_blocks(kind, blocks, names, capacity=capacity, micro_batches=64)


def solve(problem: Any, variant: str, seconds: float) -> po.Result[Any]:
    """Run a problem with walks or without."""
    walk = PeriodSearch._walk if variant == "with" else lambda search, seconds: None
    with mock.patch.object(PeriodSearch, "_walk", walk):
        return schedule_result(problem, "repetend", seconds=seconds)


ORDERS = Ablation(
    part="orders",
    title="Walks over the orders of blocks",
    chosen=tuple(KINDS)[:4],
    apart=tuple(KINDS)[4:],
    clusters=("12 devices", "24 devices", "48 devices"),
    solve=solve,
    table=Path(__file__).resolve().parent / "orders.csv",
    seconds=8.0,
    load=load,
    solver="repetend",
)

if __name__ == "__main__":
    ORDERS.main(__doc__)
