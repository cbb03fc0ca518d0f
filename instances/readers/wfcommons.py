"""WfCommons workflow instances (WfFormat 1.0 to 1.5), as JSON.

A task is an op whose run time, measured in seconds, holds on any device. A file that one task
writes and others read is a tensor; a parent that shares no file with its child feeds it a tensor of
0 bytes.

References
----------
Coleman et al., "WfCommons: A framework for enabling scientific workflow research and development",
Future Generation Computer Systems 128, 2022.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placeopt.instances.readers.draft import Draft, number, rows, ticks, whole
from placeopt.model.errors import InputError
from placeopt.model.files import read_json

if TYPE_CHECKING:
    from pathlib import Path

    from placeopt.model.graph import OpGraph

RUNTIMES = ("runtimeInSeconds", "runtime")
SIZES = ("sizeInBytes", "size")


def read(path: Path, *, tick_seconds: float = 1e-9, max_bytes: int) -> OpGraph:
    """Read a workflow; `tick_seconds` is the length of a tick."""
    data = read_json(path, max_bytes=max_bytes)
    workflow = data.get("workflow") if isinstance(data, dict) else None
    if not isinstance(workflow, dict):
        raise InputError('expected an object with "workflow", as WfCommons writes it')
    specification = workflow.get("specification")
    sizes: dict[str, int] = {}
    if isinstance(specification, dict):  # from version 1.5: structure and execution apart
        tasks = rows(specification, "tasks", "specification")
        for i, row in enumerate(rows({"files": [], **specification}, "files", "specification")):
            where = f"files[{i}]"
            sizes[_name(row, where)] = _size(row, where)
        runtimes = _runtimes(workflow)
    else:
        tasks = rows(workflow, "tasks" if "tasks" in workflow else "jobs", "workflow")
        runtimes = None
    title = data.get("name")
    draft = Draft(
        title if isinstance(title, str) and title else path.stem,
        tick_seconds=tick_seconds,
        repeated="merge",
    )
    _add_tasks(draft, tasks, runtimes, 1 / tick_seconds)
    _add_edges(draft, tasks, sizes)
    return draft.build()


def _add_tasks(
    draft: Draft, tasks: list[dict[str, Any]], runtimes: dict[str, Any] | None, unit: float
) -> None:
    """Add an op per task; `runtimes` are those of the execution, where they stand apart."""
    for i, task in enumerate(tasks):
        where = f"tasks[{i}]"
        key = _name(task, where)
        seconds = _runtime(task, where) if runtimes is None else runtimes.get(key)
        if seconds is None:
            raise InputError(
                f"{where}: task '{key[:60]}' has no run time (none of {', '.join(RUNTIMES)})"
            )
        kind = task.get("category") or task.get("name") or ""
        draft.op(
            key,
            where,
            times={"*": ticks(seconds, where, "run time", unit)},
            type=str(kind).split("_")[0][:60] if isinstance(kind, str) else "",
        )


def _add_edges(draft: Draft, tasks: list[dict[str, Any]], sizes: dict[str, int]) -> None:
    """Add a tensor per file that passes between tasks, then the dependencies without a file."""
    linked = _add_files(draft, tasks, sizes)
    alias = _aliases(draft, tasks)
    for i, (child, task) in enumerate(zip(draft.names, tasks, strict=True)):
        where = f"tasks[{i}]"
        pairs = [(alias.get(x, x), child) for x in _texts(task, "parents", where)]
        pairs += [(child, alias.get(x, x)) for x in _texts(task, "children", where)]
        for pair in pairs:
            if pair not in linked:
                linked.add(pair)
                draft.edge(*pair, where, tensor="control")


def _add_files(
    draft: Draft, tasks: list[dict[str, Any]], sizes: dict[str, int]
) -> set[tuple[str, str]]:
    """Add a tensor per file that passes between tasks; return the tasks that are joined so."""
    writer: dict[str, str] = {}
    reads: list[list[str]] = []
    for i, (parent, task) in enumerate(zip(draft.names, tasks, strict=True)):
        inputs, outputs = _files(task, f"tasks[{i}]", sizes)
        reads.append(inputs)
        for file in outputs:
            if writer.setdefault(file, parent) != parent:
                raise InputError(f"tasks[{i}]: file '{file[:60]}' is written by two tasks")
    linked: set[tuple[str, str]] = set()
    for i, (child, inputs) in enumerate(zip(draft.names, reads, strict=True)):
        for file in inputs:
            parent = writer.get(file, child)
            if parent != child:
                draft.edge(
                    parent, child, f"tasks[{i}]", tensor=("file", file), size=sizes.get(file, 0)
                )
                linked.add((parent, child))
    return linked


def _aliases(draft: Draft, tasks: list[dict[str, Any]]) -> dict[str, str]:
    """Map the names of tasks to their ids: up to version 1.3, parents and children are names."""
    alias: dict[str, str] = {}
    for key, task in zip(draft.names, tasks, strict=True):
        name = task.get("name")
        if isinstance(name, str) and name not in draft.index:
            alias.setdefault(name, key)
    return alias


def _files(task: dict[str, Any], where: str, sizes: dict[str, int]) -> tuple[list[str], list[str]]:
    """Return the files a task reads and writes; notes the sizes that old versions keep with the
    task.
    """
    if "files" not in task:
        return list(_texts(task, "inputFiles", where)), list(_texts(task, "outputFiles", where))
    inputs: list[str] = []
    outputs: list[str] = []
    for i, row in enumerate(rows(task, "files", where)):
        place = f"{where}: files[{i}]"
        file = _name(row, place)
        sizes[file] = max(sizes.get(file, 0), _size(row, place))
        link = row.get("link")
        if link not in ("input", "output"):
            raise InputError(f'{place}: "link": expected input or output, received {link!r:.40}')
        (inputs if link == "input" else outputs).append(file)
    return inputs, outputs


def _runtimes(workflow: dict[str, Any]) -> dict[str, float]:
    execution = workflow.get("execution")
    if not isinstance(execution, dict):
        raise InputError('"execution" is missing: the workflow has no run times')
    found: dict[str, float] = {}
    for i, row in enumerate(rows(execution, "tasks", "execution")):
        where = f"execution.tasks[{i}]"
        seconds = _runtime(row, where)
        if seconds is not None:
            found[_name(row, where)] = seconds
    return found


def _runtime(row: dict[str, Any], where: str) -> float | None:
    key = _given(row, RUNTIMES)
    return number(row[key], where, key) if key else None


def _size(row: dict[str, Any], where: str) -> int:
    key = _given(row, SIZES)
    return whole(row[key], where, key) if key else 0


def _given(row: dict[str, Any], keys: tuple[str, ...]) -> str:
    """Return the first of some keys that is there, "" if none is."""
    return next((key for key in keys if row.get(key) is not None), "")


def _name(row: dict[str, Any], where: str) -> str:
    """Return the id of a task or file; old versions have only names."""
    value = row.get("id") or row.get("name")
    if not isinstance(value, str) or not value:
        raise InputError(f'{where}: expected a text as "id" or "name", received {value!r:.40}')
    return value


def _texts(task: dict[str, Any], key: str, where: str) -> list[str]:
    values = task.get(key) or []
    if not isinstance(values, list) or any(not isinstance(x, str) for x in values):
        raise InputError(f'{where}: "{key}": expected a list of names, received {values!r:.40}')
    return values
