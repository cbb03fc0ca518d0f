"""Layouts of a tensor on a mesh of devices, and what it costs to change one into another.

A layout has one placement per mesh axis: REPLICATE, PARTIAL (the devices of the axis hold summands)
or a dimension of the tensor that is split over the axis. A change is made axis by axis, by the
collectives of that axis:

    replicate -> split       a slice, free
    replicate -> partial     every device divides by their number, free
    partial   -> split       reduce-scatter, (k - 1) / k of the bytes
    split     -> other split all-to-all, (k - 1) / k of the local bytes
    split     -> replicate   all-gather, (k - 1) / k of the bytes gathered
    partial   -> replicate   all-reduce, twice that

with k devices on the axis, by rings: each of the k - 1 (all-reduce: 2 (k - 1)) steps costs a
latency. Which axis comes first, and what is gathered only to be cut again, is as in DTensor's
`redistribute`: `change_steps` gives the collectives that torch runs, in its order. The seconds are
ours, from the links of the cluster. DTensor's own estimate (`redistribute_cost`, which it uses to
choose between the strategies of one op) moves the same bytes in the same steps, but knows fixed
bandwidths of an NVLink host and its network, and adds 6.6 us to every collective, 7.6 to an
all-to-all.

References
----------
R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in
MPICH", 2005. L. Zheng et al., "Alpa: Automating Inter- and Intra-Operator Parallelism for
Distributed Deep Learning", OSDI 2022.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import NamedTuple

from placeopt.model.cluster import Cluster
from placeopt.model.errors import InputError

REPLICATE, PARTIAL = -1, -2
"""Placements that are no dimension: the whole tensor, and summands. Numbers below are other partial
results."""

PARTIAL_KINDS = {PARTIAL: "sum", -3: "avg", -4: "max", -5: "min"}
"""How partial results become whole, by placement, in torch's words."""

Layout = tuple[int, ...]
"""One placement per mesh axis."""

AXIS_NAMES = "xyzuvw"
MAX_AXES = 3


@dataclass(frozen=True)
class Axis:
    """One axis of a mesh: how many devices, and the slowest link between neighbours on it, either
    way.
    """

    size: int
    latency: float  # seconds
    bandwidth: float  # bytes per second


def parse_mesh(text: str) -> tuple[int, ...]:
    """Return the sizes of "2x4".

    Raises
    ------
    InputError
        If it is no product of one to three whole numbers.
    """
    if not re.fullmatch(r"[1-9][0-9]{0,3}(x[1-9][0-9]{0,3}){0,2}", text):
        raise InputError(
            f"mesh: expected sizes such as 2x4 (one to {MAX_AXES} axes), received '{text}'"
        )
    return tuple(int(part) for part in text.split("x"))


def mesh_axes(cluster: Cluster, sizes: tuple[int, ...]) -> tuple[Axis, ...]:
    """Return the axes of a mesh whose devices are those of a cluster in order, the last axis
    running fastest.

    Raises
    ------
    InputError
        If the cluster has another number of devices.
    """
    count = math.prod(sizes)
    if count != cluster.num_devices:
        shown = "x".join(map(str, sizes))
        raise InputError(
            f"mesh {shown}: expected {count} devices, the cluster '{cluster.name}' has "
            f"{cluster.num_devices}"
        )
    axes = []
    for axis, size in enumerate(sizes):
        stride = math.prod(sizes[axis + 1 :])
        pairs = ((d, d + stride) for d in range(count) if d // stride % size < size - 1)
        links = {int(cluster.link_class[way]) for a, b in pairs for way in ((a, b), (b, a))}
        chosen = [cluster.links[c] for c in links]
        latency = max((link.latency for link in chosen), default=0.0)
        axes.append(Axis(size, latency, min((link.bandwidth for link in chosen), default=1.0)))
    return tuple(axes)


def share(layout: Layout, axes: tuple[Axis, ...]) -> int:
    """Return into how many parts a layout cuts a tensor."""
    return math.prod(axis.size for axis, place in zip(axes, layout, strict=True) if place >= 0)


def divides(shape: tuple[int, ...], layout: Layout, axes: tuple[Axis, ...]) -> bool:
    """Whether every split dimension is a multiple of the devices it is split over."""
    parts = dict.fromkeys(layout, 1)
    for axis, place in zip(axes, layout, strict=True):
        parts[place] *= axis.size
    return all(
        place < 0 or (place < len(shape) and shape[place] % k == 0) for place, k in parts.items()
    )


class Step(NamedTuple):
    """One step of a change of layout: the placement before and after, on one axis."""

    axis: int
    before: int
    after: int

    @property
    def collective(self) -> str:
        """Name of the collective, "" for a step within every device."""
        if self.before == REPLICATE:
            return ""
        if self.before <= PARTIAL:
            return "all_reduce" if self.after == REPLICATE else "reduce_scatter"
        return "all_gather" if self.after == REPLICATE else "all_to_all"


def change_steps(before: Layout, after: Layout) -> list[Step] | None:
    """Return the steps of a change of layout in the order of DTensor's `redistribute`, None where
    it is impossible.

    A tensor of which something is split goes through the axes from the last to the first: what is
    split over that axis within another split that changes is made whole. Then, first axis to last,
    what still differs.
    """
    now, steps = list(before), list[Step]()

    def go(axis: int, place: int) -> None:
        if now[axis] != place:
            steps.append(Step(axis, now[axis], place))
            now[axis] = place

    if any(place >= 0 for place in before):
        for axis in reversed(range(len(now))):
            place = after[axis]
            outer = [(now[i] == place, after[i] == place) for i in range(axis)]
            nested = place >= 0 and any(one != other for one, other in outer)
            go(axis, REPLICATE if nested else place)
    for axis, place in enumerate(after):
        go(axis, place)
    if any(step.after <= PARTIAL and step.before != REPLICATE for step in steps):
        return None
    return steps


def change_seconds(size: float, before: Layout, after: Layout, axes: tuple[Axis, ...]) -> float:
    """Return the seconds to change the layout of a tensor of `size` bytes; infinity where that is
    impossible.
    """
    steps = change_steps(before, after)
    if steps is None:
        return math.inf
    local, seconds = size / share(before, axes), 0.0
    for step in steps:
        axis, k = axes[step.axis], axes[step.axis].size
        hops, moved = k - 1, 0.0
        if step.before == REPLICATE:
            hops, local = 0, local / k if step.after >= 0 else local
        elif step.before <= PARTIAL and step.after >= 0:
            moved, local = local * (k - 1) / k, local / k
        elif step.before <= PARTIAL:
            hops, moved = 2 * (k - 1), 2 * local * (k - 1) / k
        elif step.after >= 0:
            moved = local * (k - 1) / k
        else:
            moved, local = local * (k - 1), local * k
        seconds += hops * axis.latency + moved / axis.bandwidth
    return seconds


def torch_placements(layout: Layout) -> str:
    """Return a layout as torch.distributed.tensor writes it: [Shard(0), Replicate()]."""
    words = {place: f'Partial("{kind}")' for place, kind in PARTIAL_KINDS.items()}
    words |= {REPLICATE: "Replicate()", PARTIAL: "Partial()"}
    return "[" + ", ".join(words.get(place, f"Shard({place})") for place in layout) + "]"


def partition_spec(layout: Layout, rank: int) -> str:
    """Return a layout as JAX writes it: P('x', None). Partial sums, which are no sharding, are left
    out: JAX adds them up where it has to.
    """
    entries = []
    for dimension in range(rank):
        names = [AXIS_NAMES[i] for i, place in enumerate(layout) if place == dimension]
        shown = ", ".join(f"'{name}'" for name in names)
        entries.append("None" if not names else shown if len(names) == 1 else f"({shown})")
    while entries and entries[-1] == "None":
        entries.pop()
    return f"P({', '.join(entries)})"
