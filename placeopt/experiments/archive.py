"""The best-known archive: for every problem the best value, with its placement, and the best bound.
It only improves.

Nothing enters on trust: a value is accepted when its placement, evaluated here, has it; a bound
when no accepted value is below it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from placeopt.experiments.analysis import best_known
from placeopt.experiments.cell import unpack_placement
from placeopt.experiments.store import Row, check_consistent
from placeopt.experiments.study import load_cell_problem
from placeopt.io.body import Body
from placeopt.model.errors import InputError
from placeopt.model.files import read_json, write_json
from placeopt.model.result import gap_of

FORMAT, VERSION = "placeopt-best-known", 1


@dataclass(frozen=True)
class Record:
    """What is known about one problem.

    Attributes
    ----------
    instance, cluster, objective, training, fields : arguments that load the problem.
    problem_hash : hash of its content.
    value, lower_bound : ticks; `queue` is the execution under which `value` holds ("" where there
    is none).
    placement : packed devices and ranks (`placeopt.experiments.cell.pack_placement`).
    """

    instance: str
    cluster: str | None
    objective: str
    training: bool
    fields: dict[str, Any]
    problem_hash: str
    value: int
    queue: str
    lower_bound: int
    bound_method: str
    solver: str
    seed: int
    version: str
    placement: str

    @property
    def gap(self) -> float:
        """(value - bound) / value."""
        return gap_of(self.value, self.lower_bound)

    @property
    def key(self) -> str:
        """What names the problem."""
        return json.dumps(
            [self.instance, self.cluster, self.objective, self.training, self.fields],
            sort_keys=True,
        )

    def load(self) -> Any:
        """Load the problem."""
        return load_cell_problem(
            self.instance, self.cluster, self.objective, "placement", self.training, self.fields
        )

    def violations(self) -> list[str]:
        """Check the record against its problem, in words; empty when every claim holds."""
        from placeopt.certify.verify import verify

        problem = self.load()
        if problem.hash != self.problem_hash:
            return [f"{self.instance}: the problem has changed since it was archived"]
        try:
            placement = unpack_placement(self.placement)
        except InputError as error:
            return [f"{self.instance}: {error}"]
        found = verify(problem, placement, seconds=0.0, queue=self.queue or None)
        words = [f"{self.instance}: {violation}" for violation in found.violations]
        if found.value is not None and found.value != self.value:
            words.append(f"{self.instance}: archived value {self.value}, evaluated {found.value}")
        if self.lower_bound > self.value or found.lower_bound > self.value:
            words.append(f"{self.instance}: value {self.value} is below the bound")
        return words


def read_archive(path: str | Path) -> dict[str, Record]:
    """Return the records of an archive by key; none where there is no file yet.

    Raises
    ------
    InputError
        If the file is no archive of this version.
    """
    if not Path(path).exists():
        return {}
    data = read_json(path)
    if not isinstance(data, dict) or (data.get("format"), data.get("version")) != (FORMAT, VERSION):
        raise InputError(f'\'{path}\': expected "format": "{FORMAT}", "version": {VERSION}')
    try:
        records = [_record(body) for body in Body(data, "file").bodies("records")]
    except InputError as error:
        raise InputError(f"'{path}': damaged record ({error}); restore the file") from error
    return {record.key: record for record in records}


def _record(body: Body) -> Record:
    cluster = body.text("cluster") if body.has("cluster") else None
    own = body.fields(Record, but=("cluster", "fields"))
    return Record(cluster=cluster, fields=body.body("fields").data, **own)


def update_archive(path: str | Path, rows: Iterable[Row]) -> list[str]:
    """Improve an archive by the rows of a study that kept its placements; return what changed, in
    words.
    """
    records = read_archive(path)
    kept = [
        row
        for row in rows
        if row.get("kind") == "placement" and (row.get("placement") or row["value"] is None)
    ]
    changes: list[str] = []
    for best in best_known(kept):
        changes += _improve(records, best)
    if changes:
        write_archive(path, records)
    return changes


def write_archive(path: str | Path, records: dict[str, Record]) -> None:
    """Write an archive, its records in the order of their keys."""
    entries = [
        {**asdict(record), "gap": round(record.gap, 6)} for _, record in sorted(records.items())
    ]
    write_json(path, {"format": FORMAT, "version": VERSION, "records": entries})


def _archived(record: Record) -> Row:
    """Return what a record claims as a row."""
    return {**asdict(record), "label": record.solver, "key": "of the archive", "status": "feasible"}


def _improve(records: dict[str, Record], row: Row) -> list[str]:
    """Replace value or bound of the row's problem where the row is better and holds."""
    new = Record(
        row["instance"],
        row["cluster"] or None,
        row["objective"],
        bool(row.get("training")),
        row.get("fields") or {},
        row["problem_hash"],
        row["value"],
        row.get("queue") or "",
        row["lower_bound"],
        row["bound_method"],
        row["label"],
        row["seed"],
        row.get("version", ""),
        row["placement"],
    )
    old = records.get(new.key)
    if old is not None and old.problem_hash == new.problem_hash:
        check_consistent([_archived(old), row], "the archive and the rows")
        if old.value <= new.value and old.lower_bound >= new.lower_bound:
            return []
        proof = max(old, new, key=lambda record: record.lower_bound)
        best = min(old, new, key=lambda record: record.value)
        new = replace(best, lower_bound=proof.lower_bound, bound_method=proof.bound_method)
    broken = new.violations()
    if broken:
        return [f"refused {violation}" for violation in broken]
    records[new.key] = new
    where = f"{new.instance} on {new.cluster}" if new.cluster else new.instance
    return [f"{where}: {new.value} by {new.solver}, bound {new.lower_bound} by {new.bound_method}"]
