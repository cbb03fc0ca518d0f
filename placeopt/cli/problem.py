"""The options that describe a problem, shared by every command that takes one."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from typer import Option

from placeopt.cli import common
from placeopt.cli.model_notes import cost_notes, is_own_model, rate_note, tied_notes
from placeopt.model.cluster import Cluster
from placeopt.model.errors import InputError
from placeopt.model.graph import OpGraph
from placeopt.model.objective import objective_of

OBJECTIVE_OF = {
    **dict.fromkeys(
        ("contiguity", "pipeline", "max_replicas", "device_groups", "overlap"), "period"
    ),
    "slots": "latency",
}
"""Options that mean something under one objective only."""

CHOICES = (
    *("memory", "memory_limit", "contiguity", "pipeline"),
    *("slots", "max_replicas", "device_groups"),
)
"""Options that say what may be chosen, as `placeopt.load` takes them."""

IMPLIED = ("max_replicas", "device_groups", "overlap")
"""Options that choose their objective where none is named."""


@dataclass(frozen=True)
class GraphOptions:
    """What the command line says about a graph; the fields are options of the command."""

    source: common.Source
    cluster: common.ClusterOption = None
    format: common.Format = None
    training: common.Training = False
    dim: common.Dim = None
    trip_count: common.TripCount = None

    def graph(self) -> tuple[OpGraph, Cluster | None]:
        """Load the graph of the source, which is no sharding problem, and the cluster in it."""
        from placeopt.instances.sources import load_graph
        from placeopt.sharding.contest_format import holds_sharding

        common.check_source(self.source)
        if holds_sharding(self.source):
            raise InputError(
                f"'{self.source}' is a sharding problem, no graph: give it to placeopt solve"
            )
        reader = common.reader_options(self.dim, self.trip_count)
        return load_graph(self.source, format=self.format, training=self.training, **reader)


@dataclass(frozen=True)
class ProblemOptions(GraphOptions):
    """What the command line says about a problem."""

    objective: Annotated[str | None, Option(help="makespan (default), period or latency.")] = None
    shared: Annotated[
        str | None,
        Option(
            help="Weights that several ops use: colocate (one copy, one device; default) or copy."
        ),
    ] = None
    memory: Annotated[
        str | None,
        Option(
            help="What the memory limit counts: static (weights) or peak (weights and live "
            "tensors)."
        ),
    ] = None
    memory_limit: common.MemoryLimit = None
    contiguity: Annotated[str | None, Option(help="Period: chain, convex or none.")] = None
    pipeline: Annotated[str | None, Option(help="Period of training: 1f1b or gpipe.")] = None
    slots: Annotated[
        int | None, Option(min=1, help="Latency: number of convex pieces per accelerator.")
    ] = None
    max_replicas: Annotated[
        int | None, Option(min=1, help="Period: largest number of devices that share a stage.")
    ] = None
    device_groups: Annotated[
        int | None,
        Option(min=1, help="Period: number of equal groups of devices, each with an uplink."),
    ] = None
    overlap: Annotated[
        bool, Option("--overlap", help="Period: transfers overlap with computation.")
    ] = False
    group: common.Group = None
    costs: common.Costs = None
    profiles: Annotated[Path | None, Option(help="Job streams: folder of the profiles.")] = None

    def load(self) -> Any:
        """Load the problem: a placement, or a pipeline (shape:...) or a job stream (stream:...)."""
        from placeopt.api import load

        common.check_source(self.source)
        words = ("objective", "format", *CHOICES, "group", "profiles", "overlap", "training")
        given = {key: value for key in words if (value := getattr(self, key)) not in (None, False)}
        self._refuse_idle_options()
        given |= common.reader_options(self.dim, self.trip_count, self.shared)
        if self.costs is not None or is_own_model(self.source):
            return self._from_graph(given)
        return load(self.source, self.cluster, **given)

    def _refuse_idle_options(self) -> None:
        """Refuse an option that would change nothing; a file may bring an objective of its own."""
        named = self.objective or (None if self.source.endswith(".json") else "makespan")
        for key, objective in OBJECTIVE_OF.items():
            idle = named not in (objective, None) and (self.objective or key not in IMPLIED)
            if getattr(self, key) and idle:
                raise InputError(
                    f"--{key.replace('_', '-')} is for the objective {objective}; give "
                    f"--objective {objective} too"
                )
        if self.profiles is not None and not self.source.startswith("stream:"):
            raise InputError("--profiles is for job streams (stream:...); leave it out")

    def given(self, problem: Any, path: Path) -> Any:
        """Return a solution's file, read once, or the placement in it where only the source can
        tell what it says.
        """
        from placeopt.instances.readers.dnn_partitioning import is_split, read_split
        from placeopt.io.placement_file import open_placement

        if objective_of(problem).kind != "placement":
            return path
        file = open_placement(path)
        return read_split(path, self.source, problem, file.data) if is_split(file.data) else file

    def _from_graph(self, given: dict[str, Any]) -> Any:
        """Load a placement of the user's own model, or with measured op times, and say what its
        costs rest on.
        """
        from placeopt.api import load
        from placeopt.instances.clusters import make_cluster
        from placeopt.instances.module_groups import group_ops, parse_group
        from placeopt.instances.sources import load_graph, with_costs

        choices = ("objective", *CHOICES, "overlap")
        fields = {key: given.pop(key) for key in choices if key in given}
        group = given.pop("group", None)
        parse_group(group)  # refused before anything is read
        graph, bundled = load_graph(self.source, **given)
        notes = [*cost_notes(graph), *tied_notes(graph)]
        graph = group_ops(graph, group)
        cluster = bundled if self.cluster is None else make_cluster(self.cluster)
        if cluster is None:
            return load(graph, None)  # refuses, and says what is missing
        if self.costs is not None:
            graph, words = with_costs(graph, cluster, self.costs)
            notes = [words]
        else:
            notes.append(rate_note(graph, cluster))
        for note in filter(None, notes):
            print(note, file=sys.stderr)
        return load(graph, cluster, **fields)


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command whose first parameter is a GraphOptions the options that these are made of."""
    first, *own = inspect.signature(command).parameters.values()
    hints = get_type_hints(command, include_extras=True)
    kind = hints[first.name]
    hints |= get_type_hints(kind, include_extras=True)
    shared = inspect.signature(kind).parameters
    source, *options = shared.values()
    parameters = [
        item.replace(annotation=hints[item.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for item in (source, *own, *options)
    ]

    @functools.wraps(command)
    def with_options(**values: Any) -> None:
        fields = {name: values.pop(name) for name in shared if name in values}
        command(kind(**fields), **values)

    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {item.name: item.annotation for item in parameters}
    del with_options.__wrapped__  # type: ignore[attr-defined]
    return with_options
