"""A study: which instances, clusters, solvers, parameters, seeds and budgets; and the cells it
expands into.

Example::

    name = "list-heuristics"
    instances = ["gen:inception-v3", "gen:llama-block?layers={1,2}", "models/*.onnx"]
    clusters = ["4xA100", "2x4xA100?contention=host"]
    seeds = [0, 1, 2]                # or {first = 0, count = 10}
    evaluations = 2400               # or seconds = 10, or both

    [[solvers]]
    name = "heft"

    [[solvers]]
    name = "annealing"
    label = "annealing (cold)"       # shown in reports; default: name and grid values
    options = {restarts = 1}
    grid = {cooling = [0.9, 0.99]}
"""

from __future__ import annotations

import glob
import hashlib
import inspect
import itertools
import json
import math
import pickle
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from placeopt.io.body import plain
from placeopt.model.errors import InputError, SolverError, did_you_mean
from placeopt.model.files import Data, is_file, one_line, read_toml
from placeopt.model.objective import registered_objective, take_objective
from placeopt.solving.registry import (
    make_solver,
    registered_solver,
    solver_version,
    spec_of,
    take_solver,
)
from placeopt.version import __version__

MAX_CELLS = 1_000_000

Seeds = Annotated[list[Annotated[int, Field(ge=0, lt=2**63)]], Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class SeedRange(_Strict):
    """Seeds first, first + 1, ... (`count` of them)."""

    first: int = Field(0, ge=0, lt=2**62)
    count: int = Field(ge=1, le=100_000)


class SolverEntry(_Strict):
    """A solver with fixed options and a grid of options; it may override the study's budget."""

    name: str
    label: str | None = None
    options: dict[str, JsonValue] = {}
    grid: dict[str, Annotated[list[JsonValue], Field(min_length=1)]] = {}
    seconds: float | None = Field(None, ge=0)
    evaluations: int | None = Field(None, ge=1)
    seeds: Seeds | SeedRange | None = None

    @property
    def num_configurations(self) -> int:
        """Number of points of the grid."""
        return math.prod(len(values) for values in self.grid.values())

    def configurations(self) -> list[tuple[str, Data]]:
        """Return (label, options) for every point of the grid."""
        found = []
        for values in itertools.product(*self.grid.values()):
            point = dict(zip(self.grid, values, strict=True))
            words = ", ".join(f"{key}={value}" for key, value in point.items())
            label = self.label or self.name
            found.append((f"{label} ({words})" if words else label, {**self.options, **point}))
        return found


class Study(_Strict):
    """A grid of solver runs."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    description: str = ""
    kind: str = Field("placement", pattern="^(placement|pipeline|jobs|sharding)$")
    instances: list[str] = Field(min_length=1)
    clusters: list[str] = []
    objectives: list[str] = Field(["makespan"], min_length=1)
    seeds: Seeds | SeedRange = [0]
    seconds: float | None = Field(None, ge=0)
    evaluations: int | None = Field(None, ge=1)
    target: int | None = None
    training: bool = False
    fields: dict[str, JsonValue] = {}
    solvers: list[SolverEntry] = Field(min_length=1)
    keep_placements: bool = False
    hard_timeout: float | None = Field(None, gt=0)
    folder: str = "."

    @model_validator(mode="after")
    def _budget(self) -> Study:
        for entry in self.solvers:
            limits = self.seconds, self.evaluations, entry.seconds, entry.evaluations
            if all(limit is None for limit in limits):
                raise ValueError(
                    f"solver '{entry.name}' has no budget: give the study or the solver seconds or "
                    "evaluations"
                )
        return self


@dataclass(frozen=True)
class Cell:
    """One run: everything that decides its result.

    Attributes
    ----------
    key : SHA-256 of problem content, solver configuration, seed, budget and package version.
    """

    key: str
    instance: str
    cluster: str | None
    problem_hash: str
    objective: str
    kind: str
    solver: str
    label: str
    options: Data
    seed: int
    seconds: float | None
    evaluations: int | None
    target: int | None
    training: bool
    fields: Data
    folder: str
    keep_placement: bool
    hard_timeout: float | None

    def spec(self) -> Data:
        """Return the fields that describe the cell in a results file."""
        budget, last = ("seconds", "evaluations", "target"), ("training", "fields")
        own = plain(self, but=(*budget, *last, "folder", "keep_placement", "hard_timeout"))
        return {**own, "budget": plain(self, *budget), **plain(self, *last)}

    def __getstate__(self) -> tuple[Data, bytes]:
        """Take along what was registered in this process alone: another one is to run the cell."""
        from joblib.externals.loky.backend.reduction import dumps

        own = registered_solver(self.solver), registered_objective(self.kind, self.objective)
        return vars(self), bytes(dumps(own))

    def __setstate__(self, state: tuple[Data, bytes]) -> None:
        vars(self).update(state[0])
        with suppress(Exception):  # of a module that is not there: the cell says what is missing
            solver, objective = pickle.loads(state[1])
            if solver is not None:
                take_solver(*solver)
            if objective is not None:
                take_objective(objective)


def load_study(path: str | Path) -> Study:
    """Read a study from a TOML file; relative instance paths start at its folder.

    Raises
    ------
    InputError
        If the file cannot be read or a field is missing, unknown or out of range.
    """
    path = Path(path)
    table = read_toml(path, what="study")
    table.setdefault("name", path.parent.name if path.stem == "study" else path.stem)
    try:
        return Study.model_validate({**table, "folder": str(path.parent)})
    except ValidationError as error:
        raise InputError(f"study '{path}': {_said_of_field(error)}") from error
    except RecursionError as error:
        raise InputError(f"study '{path}': nested too deeply") from error


def _said_of_field(error: ValidationError) -> str:
    """Return what is wrong with one field of a study."""
    # The deepest location is the alternative that came closest to what was meant.
    first = max(error.errors(), key=lambda e: len(e["loc"]))
    where = one_line(".".join(map(str, first["loc"])))
    if first["type"] == "extra_forbidden":
        known = SolverEntry if "solvers" in first["loc"] else Study
        return f"'{where}' is not known; {did_you_mean(str(first['loc'][-1]), known.model_fields)}"
    words = one_line(first["msg"].removeprefix("Value error, "), 160)
    return f"{where}{': ' if where else ''}{words}"


def expand_instances(patterns: list[str], folder: str = ".") -> list[str]:
    """Expand {a,b} alternatives, {1..4} ranges and file globs, in a fixed order."""
    found: list[str] = []
    for pattern in patterns:
        if _count(pattern) > MAX_CELLS:
            raise InputError(
                f"study: '{one_line(pattern)}' stands for more than {MAX_CELLS} instances; split it"
            )
        whole = [pattern] if is_file(Path(folder) / pattern) else _braces(pattern)
        for text in whole:
            found += _sources(text, folder)
    return list(dict.fromkeys(found))


def _sources(text: str, folder: str) -> list[str]:
    """Return the sources that a text without braces stands for: a file of that very name, a
    generator, or files by a glob, with what stands behind their names (`#NAME`, `?key=value`).
    """
    behind = _BEHIND.search(text)
    at = len(text) if behind is None or is_file(Path(folder) / text) else behind.start()
    path = str(Path(folder) / text[:at])
    if is_file(path):
        return [path + text[at:]]
    if ":" in text[:at].split("/", 1)[0]:  # gen:..., onnx:..., shape:..., stream:...
        return [text]
    matches = sorted(glob.glob(path, recursive=True))
    if not matches:
        raise InputError(f"study: no file matches '{text}' (looked in '{folder}')")
    return [match + text[at:] for match in matches]


_BEHIND = re.compile(r"#|\?(?=[\w-]+=)")
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"([0-9]{1,18})\.\.([0-9]{1,18})")


def _choices(inside: str) -> Sequence[Any]:
    """Return what the inside of a pair of braces stands for; a range is not written out."""
    if between := _RANGE.fullmatch(inside):
        return range(int(between[1]), int(between[2]) + 1)
    return inside.split(",")


def _count(pattern: str) -> int:
    """Return how many texts a pattern stands for; with nested braces at most that many."""
    return math.prod(len(_choices(inside)) for inside in _BRACES.findall(pattern))


def _braces(text: str) -> list[str]:
    match = _BRACES.search(text)
    if match is None:
        return [text]
    return [
        x
        for choice in _choices(match[1])
        for x in _braces(f"{text[: match.start()]}{choice}{text[match.end() :]}")
    ]


def load_cell_problem(
    instance: str, cluster: str | None, objective: str, kind: str, training: bool, fields: Data
) -> Any:
    """Load the problem of a cell."""
    read: Any = _loader(kind)
    own: Data = {}
    if kind == "placement":
        own = {"cluster": cluster, "objective": objective, "training": training}
    try:
        inspect.signature(read).bind(instance, **own, **fields)
    except TypeError as error:
        raise InputError(f"study: fields of '{one_line(instance)}': {error}") from error
    return read(instance, **own, **fields)


def _loader(kind: str) -> Any:
    """Return what loads problems of a kind."""
    if kind == "placement":
        from placeopt.api import load

        return load
    if kind == "pipeline":
        from placeopt.schedules.sources import load_pipeline

        return load_pipeline
    if kind == "sharding":
        from placeopt.sharding.contest_format import read

        return read
    from placeopt.streams import load_stream

    return load_stream


def expand(study: Study) -> list[Cell]:
    """Return the cells of a study, every solver and instance checked.

    Raises
    ------
    InputError
        If a solver, option, instance or cluster is not understood, or the grid is larger than a
        million cells.
    """
    instances = expand_instances(study.instances, study.folder)
    clusters: list[str | None] = list(study.clusters) or [None]
    runs = sum(
        len(_seeds(entry.seeds or study.seeds)) * entry.num_configurations
        for entry in study.solvers
    )
    if runs * len(instances) * len(clusters) * len(study.objectives) > MAX_CELLS:
        raise InputError(f"study '{study.name}': more than {MAX_CELLS} cells; split it")
    for entry in study.solvers:
        spec_of(entry.name, study.kind)  # its package may bring the objective, too
    cells: dict[str, Cell] = {}
    objectives = (
        study.objectives if study.kind == "placement" else [""]
    )  # the others name their own
    for instance, cluster, objective in itertools.product(instances, clusters, objectives):
        problem = load_cell_problem(
            instance, cluster, objective, study.kind, study.training, study.fields
        )
        known = None
        for cell in _cells_of(study, instance, cluster, problem):
            first = cells.setdefault(cell.key, cell)
            known = None if first is cell else first
        if known is not None and (known.instance, known.cluster) != (instance, cluster):
            names = " and ".join(
                one_line(f"{x} on {y}" if y else x)
                for x, y in ((known.instance, known.cluster), (instance, cluster))
            )
            warnings.warn(f"study: {names} are one problem: it is run and shown once", stacklevel=2)
    return list(cells.values())


def _cells_of(study: Study, instance: str, cluster: str | None, problem: Any) -> Iterator[Cell]:
    """Yield the cells of one problem."""
    for entry in study.solvers:
        for label, options in entry.configurations():
            version = _checked(entry.name, study.kind, options, problem)
            for seed in _seeds(entry.seeds or study.seeds):
                seconds = (
                    entry.seconds
                    if entry.seconds is not None or entry.evaluations
                    else study.seconds
                )
                evaluations = entry.evaluations or (
                    study.evaluations if entry.seconds is None else None
                )
                what = [
                    problem.hash,
                    study.kind,
                    entry.name,
                    options,
                    seed,
                    seconds,
                    evaluations,
                    study.target,
                    __version__,
                    *version,
                ]
                key = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:24]
                yield Cell(
                    key,
                    instance,
                    cluster,
                    problem.hash,
                    problem.objective,
                    study.kind,
                    entry.name,
                    label,
                    options,
                    seed,
                    seconds,
                    evaluations,
                    study.target,
                    study.training,
                    study.fields,
                    study.folder,
                    study.keep_placements,
                    study.hard_timeout,
                )


def _checked(name: str, kind: str, options: Data, problem: Any) -> list[str]:
    """Check that a solver can be made and takes the problem; return its own version, where it has
    one.

    A broken plug-in is not refused: its cells will say what is wrong, and the others go on.
    """
    from placeopt.solving.run import check_accepts

    try:
        check_accepts(make_solver(name, kind, **options), problem)
        version = solver_version(name, kind)
    except SolverError:
        return []
    return [] if version == __version__ else [version]


def _seeds(seeds: list[int] | SeedRange) -> Sequence[int]:
    return range(seeds.first, seeds.first + seeds.count) if isinstance(seeds, SeedRange) else seeds
