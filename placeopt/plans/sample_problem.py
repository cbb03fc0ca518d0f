"""SamplePlanProblem and the price of its plans: stages with unequal data degrees under a published
cost model, time per sample.

Layers form a partial order; a plan is a chain of stages, each the difference of two ideals, in
order. Stage i runs with a data degree d_i, a tensor degree t_i and, per layer v, with or without
recomputation r_v. Its time per sample is

    T_i = [sum_v p(v, t, r) + 2 sum_(cut edges) (c + sync) / B + (d_i - 1) sum_v 4 w(v, t) / (N B)]
    / d_i

and the objective is max T_i, N being the samples of a step (d_i divides N, sum d_i <= N) and B the
bandwidth. A stage keeps y_i = ceil(sum_(j >= i) d_j / d_i) micro-batches in memory: sum_v (a(v, t,
r) y_i + b(v, t, r)) <= memory, and sum d_i t_i <= devices. All terms but d_i are rounded once, so
that T_i is the smallest whole number of ticks that d_i replicas need: everything after that is
exact.

References
----------
Tarnawski, Narayanan, Phanishayee: "Piper: multidimensional planner for DNN parallelization",
NeurIPS 2021.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from placeopt.model.arrays import ArrayHolder, Ints, int_array, together
from placeopt.model.errors import InputError
from placeopt.plans.plan import PlanStage, TrainingPlan

MAX_TICKS = 2**60
"""Sums of all layers' ticks, times the data degree, stay below this, so that nothing overflows."""

MAX_UNITS = 2**53
"""Memory of a layer stays below this, so that parts of it are exact as floats to a unit or two."""

PLAIN, RECOMPUTE = range(2)
"""Second index of the arrays per layer: keep the activations, or compute them again."""


def array_shapes(layers: int, degrees: int, edges: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays of a problem by name."""
    return {
        "work": (degrees, 2, layers),
        "sync": (degrees, layers),
        "kept": (degrees, 2, layers),
        "fixed": (degrees, 2, layers),
        "source": (edges,),
        "target": (edges,),
        "sent": (degrees, edges),
        "received": (degrees, edges),
    }


@dataclass(frozen=True, eq=False)
class SamplePlanProblem(ArrayHolder):
    """Layers, devices and a number of samples; see the module.

    Attributes
    ----------
    layers : names of the n layers, along a topological order.
    tensor_degrees : the T degrees of tensor parallelism.
    work : ticks per sample, -1 where a layer has no such choice. sync : ticks to sum the gradients
    of the weights,
        4 w / (N B). kept, fixed : memory per micro-batch in flight and once, in units.
    source, target : edges between layers. sent, received : ticks per sample of an edge that is cut,
    paid by the
        stage of its source and by that of its target, both directions together.
    devices : number of equal devices. samples : N.
    capacity : memory of a device in units. units_per_byte : units of memory in a byte, so that all
    are whole.
    allow_recompute : whether layers may be recomputed. name, tick_seconds : as in every problem.
    """

    problem_kind: ClassVar[str] = "plan"
    objective: ClassVar[str] = "sample-time"

    layers: tuple[str, ...]
    tensor_degrees: tuple[int, ...]
    work: Ints  # (T, 2, n)
    sync: Ints  # (T, n)
    kept: Ints  # (T, 2, n)
    fixed: Ints  # (T, 2, n)
    source: Ints  # (E,)
    target: Ints  # (E,)
    sent: Ints  # (T, E)
    received: Ints  # (T, E)
    devices: int
    samples: int
    capacity: int
    units_per_byte: int = 1
    allow_recompute: bool = True
    name: str = "plan"
    tick_seconds: float = 1e-15

    def __post_init__(self) -> None:
        n, degrees, edges = len(self.layers), len(self.tensor_degrees), len(self.source)
        if n == 0 or degrees == 0:
            raise InputError(
                f"plan '{self.name}': expected layers and tensor degrees, received {n} and "
                f"{degrees}"
            )
        for key, shape in array_shapes(n, degrees, edges).items():
            array = int_array(getattr(self, key), shape, f"plan '{self.name}': {key}")
            object.__setattr__(self, key, array)
        for key in ("devices", "samples", "units_per_byte"):
            if getattr(self, key) < 1:
                raise InputError(
                    f"plan '{self.name}': {key}: expected at least 1, received {getattr(self, key)}"
                )
        self._check_entries(n)
        total = sum(np.maximum(self.work, 0).max(axis=(0, 1)).tolist())
        total += sum(self.sync.max(axis=0).tolist()) * self.devices
        for sizes in (self.sent, self.received):
            total += 2 * sum(sizes.max(axis=0, initial=0).tolist())
        if total * self.devices >= MAX_TICKS:
            raise InputError(
                f"plan '{self.name}': {total} ticks on {self.devices} devices pass 2^60; use "
                "coarser ticks"
            )
        flights = min(self.devices, self.samples) + 2
        units = [
            kept * flights + fixed
            for kept, fixed in together(self.kept.max(axis=(0, 1)), self.fixed.max(axis=(0, 1)))
        ]
        if max(units) >= MAX_UNITS or sum(units) >= MAX_TICKS:
            raise InputError(
                f"plan '{self.name}': {max(units)} units of memory for a layer with {flights} "
                "micro-batches in flight pass 2^53; use larger units"
            )

    def _check_entries(self, n: int) -> None:
        """Refuse entries that nothing can mean."""
        ends = (self.source.min(initial=0), self.target.max(initial=0))
        if (self.source >= self.target).any() or ends[0] < 0 or ends[1] >= n:
            raise InputError(f"plan '{self.name}': edges have to run from a layer to a later one")
        if min(self.tensor_degrees) < 1:
            raise InputError(
                f"plan '{self.name}': tensor_degrees: expected at least 1, received "
                f"{min(self.tensor_degrees)}"
            )
        for key in ("sync", "kept", "fixed", "sent", "received"):
            least = int(getattr(self, key).min(initial=0))
            if least < 0:
                raise InputError(
                    f"plan '{self.name}': {key}: expected numbers of at least 0, received {least}"
                )

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @cached_property
    def data_degrees(self) -> tuple[int, ...]:
        """The divisors of the samples that the devices allow, ascending."""
        return tuple(
            d for d in range(1, min(self.devices, self.samples) + 1) if self.samples % d == 0
        )

    @cached_property
    def hash(self) -> str:
        """Digest of everything that a value depends on."""
        digest = hashlib.sha256()
        for key in array_shapes(0, 0, 0):
            digest.update(getattr(self, key).tobytes())
        rest = (
            self.tensor_degrees,
            self.devices,
            self.samples,
            self.capacity,
            self.allow_recompute,
        )
        digest.update(repr(rest).encode())
        return digest.hexdigest()[:16]

    def replace(self, **changes: Any) -> SamplePlanProblem:
        """Return a copy with some fields changed."""
        return replace(self, **changes)


def sample_ticks(problem: SamplePlanProblem, plan: TrainingPlan) -> int:
    """Return the ticks per sample of the slowest stage of a plan whose stages are well formed."""
    return max(_stage_ticks(problem, stage) for stage in plan.stages)


def _stage_ticks(problem: SamplePlanProblem, stage: PlanStage) -> int:
    """Return the time per sample, rounded up."""
    degree = problem.tensor_degrees.index(stage.replicas[0].tensor)
    layers = np.array(stage.layers, np.int64)
    choice = np.where(np.isin(layers, stage.recompute), RECOMPUTE, PLAIN)
    inside = np.zeros(problem.num_layers, np.bool_)
    inside[layers] = True
    out = inside[problem.source] & ~inside[problem.target]
    into = ~inside[problem.source] & inside[problem.target]
    work = int(problem.work[degree, choice, layers].sum())
    traffic = int(problem.sent[degree, out].sum() + problem.received[degree, into].sum())
    sync = (stage.data - 1) * int(problem.sync[degree, layers].sum())
    return -(-(work + traffic + sync) // stage.data)
