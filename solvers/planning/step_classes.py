"""What a stage can be for a micro-batch, data degree and schedule, and the tables that
`plan-stages` searches.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from placeopt.model.arrays import Flags, Floats, Ints
from placeopt.plans.plan import PlanStage, ReplicaGroup, TrainingPlan
from placeopt.plans.step_bounds import price_mixtures, replica_ways
from placeopt.plans.step_costs import TICK_SECONDS, Load, StepCosts, span_sums
from placeopt.plans.step_price import pairs_of, part_of
from placeopt.plans.step_problem import StepPlanProblem, shared_counts
from placeopt.plans.step_schedules import NEVER, parse_schedule
from placeopt.solvers.planning.step_search import (
    CLASS,
    COMPARED,
    CUT,
    PARENT,
    StepArrays,
    least_stage_period,
)


class Variant(NamedTuple):
    """What is chosen for a whole plan beside micro-batch and data degree.

    `groups` numbers the replicas that all stages of an interleaved plan have, -1: any, as other
    schedules may.
    """

    schedule: str
    sharded: bool
    groups: int = -1


@dataclass(frozen=True)
class StageClass:
    """Replicas of a stage, and whether it is recomputed."""

    groups: tuple[ReplicaGroup, ...]
    recompute: bool

    @cached_property
    def single(self) -> tuple[ReplicaGroup, ...]:
        """One replica of each group."""
        return tuple(replace(group, count=1) for group in self.groups)


Table = dict[tuple[ReplicaGroup, bool], "Ints"]
"""Spans of layers by (one replica, recomputation)."""

Closings = dict[tuple[str, Any, Load], "Ints"]
"""Spans of layers by what closes a step, replicas and load; see `BatchTables.closing`."""


Kind = tuple[int, ReplicaGroup, bool]
"""Number of a pool, one replica on it, and whether it recomputes."""


@dataclass(frozen=True)
class Doubt:
    """Where spans of layers, computed all at once, are asked one by one: rounding may decide there.

    Attributes
    ----------
    ticks, tick_part : times that are nearer to half a tick than this, and this part of them.
    memory, memory_part : what is nearer to the limit than so many bytes, and this part of them.
    """

    ticks: float = 1e-3
    tick_part: float = 1e-12
    memory: float = 64.0
    memory_part: float = 1e-9


class BatchTables:
    """Tables of one micro-batch size that all data degrees share, `closings` with all sizes."""

    doubt = Doubt()

    def __init__(self, problem: StepPlanProblem, micro_batch: int, closings: Closings) -> None:
        self.problem, self.micro_batch, self.closings = problem, micro_batch, closings
        self.shares: dict[tuple[bytes, int], tuple[Ints, Ints]] = {}
        self._flight: dict[tuple[int, int], Table] = {}
        self.layers = problem.costs.num_layers
        self.kinds: list[Kind] = []
        self.compute: Table = {}  # ticks of spans of layers
        choices = (False, True) if problem.recompute else (False,)
        for (k, tensor, form), again in product(replica_ways(problem), choices):
            one = ReplicaGroup(problem.pools[k].kind, tensor, 1, form)
            ticks = problem.costs.layer_ticks(one.kind, tensor, micro_batch, again, form)
            if ticks is not None:
                self.kinds.append((k, one, again))
                self.compute[one, again] = np.where(self.inside, span_sums(ticks), -1)

    @cached_property
    def spans(self) -> dict[tuple[int, ...], list[tuple[int, int]]]:
        """Spans of layers that are priced alike."""
        types = np.array(self.problem.costs.layer_types)
        found: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for first in range(self.layers):
            counts = np.zeros(types.max() + 1, np.int64)
            for last in range(first + 1, self.layers + 1):
                counts[types[last - 1]] += 1
                key = (
                    int(first == 0),
                    int(last == self.layers),
                    int(types[first]),
                    *counts.tolist(),
                )
                found.setdefault(key, []).append((first, last))
        return found

    @cached_property
    def inside(self) -> Flags:
        """Which spans of layers are not empty."""
        return np.triu(np.ones((self.layers + 1,) * 2, np.bool_), 1)

    def table(self, function: Callable[[int, int], int]) -> Ints:
        """Fill a table over spans of layers by a function of (first, last)."""
        found = np.full((self.layers + 1, self.layers + 1), -1, np.int64)
        for spans in self.spans.values():
            value = function(*spans[0])
            for first, last in spans:
                found[first, last] = value
        return found

    def ticks(self, seconds: Floats | None, function: Callable[[int, int], int]) -> Ints:
        """Round a table of seconds; where there is none, or rounding decides, by a function of
        (first, last).
        """
        if seconds is None:
            return self.table(function)
        exact = seconds / TICK_SECONDS
        found = np.where(seconds > 0, np.maximum(np.floor(exact + 0.5), 1), 0).astype(np.int64)
        near = self.doubt.ticks + self.doubt.tick_part * np.abs(exact)
        unsure = np.abs(exact - np.floor(exact) - 0.5) < near
        for first, last in np.argwhere(unsure & self.inside).tolist():
            found[first, last] = function(first, last)
        return np.where(self.inside, found, -1)

    @cached_property
    def weights(self) -> Table:
        """Part of `compute` that gradients of weights take."""
        found = {}
        for one, again in self.compute:
            ticks = self.problem.costs.weight_ticks(
                one.kind, one.tensor, self.micro_batch, one.form
            )
            found[one, again] = np.maximum(span_sums(np.asarray(ticks)), 0)
        return found

    def flight(self, chunks: int, shards: int) -> Table:
        """Most micro-batches in flight of spans of layers that memory allows; see `Load`."""
        if (chunks, shards) not in self._flight:
            self._flight[chunks, shards] = {
                kind[1:]: self._most_in_flight(kind, chunks, shards) for kind in self.kinds
            }
        return self._flight[chunks, shards]

    def _most_in_flight(self, kind: Kind, chunks: int, shards: int) -> Ints:
        k, group, again = kind
        load = Load(0, self.layers, self.micro_batch, 0, again, chunks, shards)
        costs, room = self.problem.costs, self.problem.pools[k].memory
        many = max(2 * self.problem.max_stages, self.problem.batch)

        def most(first: int, last: int) -> int:
            def needed(flight: int) -> int:
                return costs.memory_bytes(
                    load._replace(first=first, last=last, flight=flight), group
                )

            return bisect_right(range(1, many + 1), room, key=needed)

        if costs.spans is None:
            return self.table(most)
        fixed, each = costs.spans.memory_spans(load, group)
        left = room - fixed
        fitting = np.where(
            each > 0, left / np.where(each > 0, each, 1.0), np.where(left >= 0, many, -1.0)
        ).clip(-1, many)
        number = np.clip(np.floor(fitting), 0, many).astype(np.int64)
        slack = self.doubt.memory + self.doubt.memory_part * (np.abs(fixed) + room)
        unsure = np.abs(left - np.round(fitting) * each) <= slack
        for first, last in np.argwhere(unsure & self.inside).tolist():
            number[first, last] = most(first, last)
        return np.where(self.inside, number, -1)

    @cached_property
    def sends(self) -> dict[tuple[str, int, str, int], Ints]:
        """Forward and backward ticks over each cut by (kind, degree, kind, degree), shape (2, L +
        1).
        """
        ends, found = sorted({(one.kind, one.tensor) for _, one, _ in self.kinds}), {}
        types = self.problem.costs.layer_types
        for sender, receiver in product(ends, repeat=2):
            known: dict[tuple[int, int], tuple[int, int]] = {}
            rows = found[*sender, *receiver] = np.zeros((2, self.layers + 1), np.int64)
            for cut in range(1, self.layers):
                key = types[cut - 1], types[cut]
                if key not in known:
                    known[key] = self.problem.costs.send_ticks(
                        cut, self.micro_batch, sender, receiver
                    )
                rows[:, cut] = known[key]
        return found

    def closing(self, what: str, replicas: Any, recompute: bool, shards: int) -> Ints:
        """Ticks of spans of layers: the "optimizer" on one replica, or the "sync" of all groups.

        Where a model has `spans`, neither depends on recomputation, nor "sync" on the micro-batch.
        """
        costs, spans = self.problem.costs, self.problem.costs.spans
        load = Load(0, self.layers, self.micro_batch, 1, recompute, 1, shards)
        key = what, replicas, load
        if spans is not None:
            size = 0 if what == "sync" else self.micro_batch
            key = what, replicas, load._replace(micro_batch=size, recompute=False)
        if key not in self.closings:
            ticks = getattr(costs, f"{what}_ticks")
            self.closings[key] = self.ticks(
                None if spans is None else getattr(spans, f"{what}_spans")(load, replicas),
                lambda first, last: ticks(load._replace(first=first, last=last), replicas),
            )
        return self.closings[key]

    def classes(self, data: int) -> Iterator[StageClass]:
        """Yield what a stage can be with a data degree."""
        for a, kind in enumerate(self.kinds):
            k, one, again = kind
            if one.tensor * data <= self.problem.pools[k].count:
                yield StageClass((replace(one, count=data),), again)
            for other in self.kinds[a + 1 :] if self.problem.mixed else ():
                yield from self._mixtures(kind, other, data)

    def _mixtures(self, kind: Kind, other: Kind, data: int) -> Iterator[StageClass]:
        """Yield stages that replicas of two kinds share."""
        (k, one, again), (m, second, same) = kind, other
        if k == m or again != same or one.form or second.form:
            return
        most = self.problem.pools[k].count // one.tensor
        others = self.problem.pools[m].count // second.tensor
        for count in shared_counts(data):
            rest = data - count
            if 0 < count <= most and 0 < rest <= others:
                yield StageClass((replace(one, count=count), replace(second, count=rest)), again)


class DegreeTables:
    """Tables of one micro-batch size, data degree and variant.

    Attributes
    ----------
    rounds : micro-batches per replica. turns : how often the longest period counts. classes : what
    a stage can be.
    last_labels : labels that the kernel made the last time, infinity: it has not run.
    """

    def __init__(self, batch: BatchTables, data: int, variant: Variant) -> None:
        self.batch, self.variant = batch, variant
        self.problem, self.schedule = batch.problem, parse_schedule(variant.schedule)
        self.rounds = self.problem.rounds(batch.micro_batch, data)
        self.turns = self.rounds * self.schedule.chunks - 1
        self.shards = data if variant.sharded else 1
        self.classes = list(batch.classes(data))
        self.last_labels: float = math.inf
        self.most_stages = min(self.problem.max_stages, batch.layers)
        if variant.groups >= 0:
            groups = list(dict.fromkeys(c.groups for c in self.classes))[variant.groups]
            self.classes = [c for c in self.classes if c.groups == groups]

    @cached_property
    def spans(self) -> tuple[Ints, Ints, Ints]:
        """Compute, micro-batches that fit and devices used; see `StepArrays`."""
        compute = np.array([self._joined(self.batch.compute, c, np.maximum) for c in self.classes])
        fitting = self.batch.flight(self.schedule.chunks, self.shards)
        flight = np.array([self._joined(fitting, c, np.minimum) for c in self.classes])
        used = np.zeros((len(self.classes), len(self.problem.pools)), np.int64)
        pools = {pool.kind: k for k, pool in enumerate(self.problem.pools)}
        for i, c in enumerate(self.classes):
            for group in c.groups:
                used[i, pools[group.kind]] += group.count * group.tensor
        return compute, flight, used

    @cached_property
    def pool(self) -> Ints:
        """Devices of each kind, as often as they hold stages."""
        return np.array(
            [pool.count * self.schedule.chunks for pool in self.problem.pools], np.int64
        )

    @cached_property
    def price(self) -> Ints:
        """Prices by which plans are refuted: the mixtures of two kinds that sum to 8."""
        return price_mixtures(len(self.problem.pools), 8)

    @cached_property
    def fill(self) -> Ints:
        """Fill of spans of layers that are not the last stage; see `StepArrays`."""
        parts = self.schedule.weight_parts
        tables = self.batch.compute
        if parts:
            tables = {
                key: np.maximum(value - parts * self.batch.weights[key], 0)
                for key, value in tables.items()
            }
        found = np.array([self._joined(tables, c, np.maximum) for c in self.classes])
        return np.asarray(part_of(found, self.schedule.chunks))  # type: ignore[arg-type]

    @cached_property
    def least_fill(self) -> Ints:
        """Least fill of the layers before each cut."""
        compute, flight, _ = self.spans
        fastest = np.where((compute >= 0) & (flight > 0), self.fill, 2**60).min(axis=0)
        least = np.full(len(fastest), 2**60, np.int64)
        least[0] = 0
        for last in range(1, len(fastest)):
            least[last] = min(2**60, (least[:last] + fastest[:last, last]).min())
        return least

    @cached_property
    def most_period(self) -> int:
        """A period that no stage exceeds."""
        arrays = self.arrays
        return int(
            arrays.compute.max() + arrays.before.max(initial=0) + arrays.behind.max(initial=0)
        )

    @cached_property
    def ample(self) -> int:
        """A period in which a micro-batch passes all stages there and back."""
        arrays = self.arrays
        slowest = arrays.compute.max(axis=0, initial=1)
        links = arrays.before.max(axis=(0, 1, 2), initial=0) + arrays.behind.max(
            axis=(0, 1, 2), initial=0
        )
        return 2 * int(sum(slowest[i, i + 1] for i in range(self.batch.layers)) + links.sum())

    def fits(self, plan: TrainingPlan) -> bool:
        """Whether the stages of a plan of these classes have room for what they keep."""
        flight, classes = self.spans[1], [(c.groups, c.recompute) for c in self.classes]
        for i, stage in enumerate(plan.stages):
            c = classes.index((stage.replicas, bool(stage.recompute)))
            room = flight[c, stage.layers[0], stage.layers[-1] + 1]
            if room < self.schedule.flight(len(plan.stages), i, self.rounds, plan.kept):
                return False
        return True

    def least_period(self, low: int, high: int, stages: int = 0) -> int:
        """Return a bound on the longest period, at least `low`, that knows stages and memory;
        NEVER: above `high`.

        `stages` is their number, 0: any; where all stages have like replicas, they use no more
        devices than that.
        """
        if high < low:
            return NEVER
        high = min(high, int(self.spans[0].max(initial=0)))
        pool = self.pool if self.variant.groups < 0 else self.spans[2][0] * stages
        found = least_stage_period(self.spans, self.price, pool, low, max(low, high))
        return NEVER if found > max(low, high) else int(found)

    @cached_property
    def arrays(self) -> StepArrays:
        """The tables as the kernel takes them."""
        width = self.batch.layers + 1
        compute, flight, used = self.spans
        sync, update = map(np.array, zip(*map(self._closing, self.classes), strict=True))
        possible = (compute >= 0) & (flight > 0)
        floors = []
        for ticks in (sync, update):
            # some stage holds any layer: the least of the spans that do, over all layers
            by_span = np.where(possible, ticks, 2**60).min(axis=0)
            floors.append(max(int(by_span[: i + 1, i + 1 :].min()) for i in range(width - 1)))
        before, behind = self._links()
        numbers = [
            s
            for s in range(1, self.most_stages + 1)
            if self.schedule.chunks > 1 or self.schedule.allows(s, self.rounds)
        ]
        stages = (numbers[0], numbers[-1]) if numbers else (1, 0)
        last_fill = part_of(compute[:, :, -1], self.schedule.chunks)  # type: ignore[arg-type]
        return StepArrays(
            compute=compute,
            fill=self.fill,
            last_fill=np.ascontiguousarray(last_fill),
            flight=flight,
            sync=sync,
            update=update,
            used=used,
            before=before,
            behind=behind,
            least_fill=self.least_fill,
            least_sync=floors[0],
            least_update=floors[1],
            pool=self.pool,
            price=self.price,
            need=self.need(0),
            least_stages=stages[0],
            most_stages=stages[1],
            compared=COMPARED[self.schedule.chooses_kept],
            rounds=self.rounds,
            fills_period=int(self.schedule.splits_backward),
        )

    def arrays_of(self, stages: int) -> StepArrays:
        """Return the tables for plans of exactly so many stages, 0: any number."""
        if not stages:
            return self.arrays
        return self.arrays._replace(need=self.need(stages), least_stages=stages, most_stages=stages)

    def need(self, stages: int) -> Ints:
        """Micro-batches kept by the k-th stage from the end."""
        most, flight = stages or self.most_stages, self.schedule.flight
        counts = range(1, most + 1)
        if not stages and self.schedule.splits_backward:  # the least of any number of stages
            kept = [flight(k, 0, self.rounds) for k in counts]
        elif self.schedule.chooses_kept:
            kept = [1] * most
        else:
            kept = [flight(most, most - k, self.rounds) for k in counts]
        return np.array([0, *kept], np.int64)

    def _joined(self, tables: Table, c: StageClass, join: np.ufunc) -> Ints:
        return np.asarray(join.reduce([tables[one, c.recompute] for one in c.single]))

    def _closing(self, c: StageClass) -> tuple[Ints, Ints]:
        """Return what closes the step: all-reduce and optimizer, as one where the costs add them
        stage by stage.
        """
        sync = self.batch.closing("sync", c.groups, c.recompute, self.shards)
        updates = [
            self.batch.closing("optimizer", one, c.recompute, self.shards) for one in c.single
        ]
        update = np.max(updates, axis=0)
        if not self.problem.costs.closing_apart:
            sync, update = sync + update, np.zeros_like(update)
        inside, chunks = self.batch.inside, self.schedule.chunks
        return np.where(inside, chunks * sync, -1), np.where(inside, chunks * update, -1)

    def _links(self) -> tuple[Ints, Ints]:
        """Return the shares of the transfers over each cut between stages of any two classes."""
        costs, count, width = self.problem.costs, len(self.classes), self.batch.layers + 1
        before = np.zeros((count, count, 3, 2, width), np.int64)
        behind = np.zeros((count, count, 2, 2, width), np.int64)
        known, chunks = self.batch.shares, self.schedule.chunks
        for (a, sender), (b, receiver) in product(enumerate(self.classes), repeat=2):
            pairs = pairs_of(sender.groups, receiver.groups)
            rows = [self.batch.sends[x.kind, x.tensor, y.kind, y.tensor] for x, y in pairs]
            sends = np.max(rows, axis=0) if len(rows) > 1 else rows[0]
            key = sends.tobytes(), chunks
            if key not in known:
                known[key] = _shares(costs, sends, chunks)
            before[a, b], behind[a, b] = known[key]
        return before, behind

    def plan(self, labels: Ints, at: int) -> TrainingPlan:
        """Read a plan off its labels."""
        stages = []
        while at >= 0:
            c, behind = self.classes[int(labels[at, CLASS])], int(labels[at, PARENT])
            last = self.batch.layers if behind < 0 else int(labels[behind, CUT])
            layers = tuple(range(int(labels[at, CUT]), last))
            stages.append(PlanStage(layers, c.groups, layers if c.recompute else ()))
            at = behind
        return TrainingPlan(
            tuple(stages), self.batch.micro_batch, self.variant.schedule, self.variant.sharded
        )


def _shares(costs: StepCosts, sends: Ints, chunks: int) -> tuple[Ints, Ints]:
    """Return the shares of the stages before and behind each cut; see `StepArrays`."""
    width = sends.shape[1]
    before, behind = np.zeros((3, 2, width), np.int64), np.zeros((2, 2, width), np.int64)
    for cut in range(1, width - 1):
        forward, backward = sends[:, cut].tolist()
        for place, (first, stages) in enumerate(((False, 32), (True, 3), (True, 32))):
            shares = costs.link_shares(forward, backward, first, False, stages)
            before[place, :, cut] = shares.period_before, part_of(shares.fill_before, chunks)
        for place, last in enumerate((False, True)):
            shares = costs.link_shares(forward, backward, False, last, 32)
            behind[place, :, cut] = shares.period_behind, part_of(shares.fill_behind, chunks)
    return before, behind
