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

from pathlib import Path

from placeopt.instances.readers.draft import Draft, number, ticks, whole
from placeopt.io.body import Body
from placeopt.model.errors import InputError
from placeopt.model.files import read_json
from placeopt.model.graph import OpGraph

RUNTIMES = ("runtimeInSeconds", "runtime")
SIZES = ("sizeInBytes", "size")


def read(path: Path, *, tick_seconds: float = 1e-9, max_bytes: int) -> OpGraph:
    """Read a workflow; `tick_seconds` is the length of a tick."""
    data = Body(read_json(path, max_bytes=max_bytes), "file")
    workflow = data.body("workflow")
    sizes: dict[str, int] = {}
    if workflow.has("specification"):  # from version 1.5: structure and execution apart
        specification = workflow.body("specification")
        tasks = specification.bodies("tasks")
        for row in specification.bodies("files") if specification.has("files") else ():
            sizes[_name(row)] = _size(row)
        runtimes = _runtimes(workflow)
    else:
        tasks = workflow.bodies("tasks" if workflow.has("tasks") else "jobs")
        runtimes = None
    title = data.data.get("name")
    draft = Draft(
        title if isinstance(title, str) and title else path.stem,
        tick_seconds=tick_seconds,
        repeated="merge",
    )
    _add_tasks(draft, tasks, runtimes, 1 / tick_seconds)
    _add_edges(draft, tasks, sizes)
    return draft.build()


def _add_tasks(
    draft: Draft, tasks: list[Body], runtimes: dict[str, float] | None, unit: float
) -> None:
    """Add an op per task; `runtimes` are those of the execution, where they stand apart."""
    for task in tasks:
        where, key = task.where, _name(task)
        seconds = _runtime(task) if runtimes is None else runtimes.get(key)
        if seconds is None:
            raise InputError(
                f"{where}: task '{key[:60]}' has no run time (none of {', '.join(RUNTIMES)})"
            )
        kind = task.data.get("category") or task.data.get("name") or ""
        draft.op(
            key,
            where,
            times={"*": ticks(seconds, where, "run time", unit)},
            type=str(kind).split("_")[0][:60] if isinstance(kind, str) else "",
        )


def _add_edges(draft: Draft, tasks: list[Body], sizes: dict[str, int]) -> None:
    """Add a tensor per file that passes between tasks, then the dependencies without a file."""
    linked = _add_files(draft, tasks, sizes)
    alias = _aliases(draft, tasks)
    for child, task in zip(draft.names, tasks, strict=True):
        pairs = [(alias.get(x, x), child) for x in _texts(task, "parents")]
        pairs += [(child, alias.get(x, x)) for x in _texts(task, "children")]
        for pair in pairs:
            if pair not in linked:
                linked.add(pair)
                draft.edge(*pair, task.where, tensor="control")


def _add_files(draft: Draft, tasks: list[Body], sizes: dict[str, int]) -> set[tuple[str, str]]:
    """Add a tensor per file that passes between tasks; return the tasks that are joined so."""
    writer: dict[str, str] = {}
    reads: list[list[str]] = []
    for parent, task in zip(draft.names, tasks, strict=True):
        inputs, outputs = _files(task, sizes)
        reads.append(inputs)
        for file in outputs:
            if writer.setdefault(file, parent) != parent:
                raise InputError(f"{task.where}: file '{file[:60]}' is written by two tasks")
    linked: set[tuple[str, str]] = set()
    for child, task, inputs in zip(draft.names, tasks, reads, strict=True):
        for file in inputs:
            parent = writer.get(file, child)
            if parent != child:
                size = sizes.get(file, 0)
                draft.edge(parent, child, task.where, tensor=("file", file), size=size)
                linked.add((parent, child))
    return linked


def _aliases(draft: Draft, tasks: list[Body]) -> dict[str, str]:
    """Map the names of tasks to their ids: up to version 1.3, parents and children are names."""
    alias: dict[str, str] = {}
    for key, task in zip(draft.names, tasks, strict=True):
        name = task.data.get("name")
        if isinstance(name, str) and name not in draft.index:
            alias.setdefault(name, key)
    return alias


def _files(task: Body, sizes: dict[str, int]) -> tuple[list[str], list[str]]:
    """Return the files a task reads and writes; notes the sizes that old versions keep with the
    task.
    """
    if "files" not in task.data:
        return _texts(task, "inputFiles"), _texts(task, "outputFiles")
    inputs: list[str] = []
    outputs: list[str] = []
    for row in task.bodies("files"):
        file = _name(row)
        sizes[file] = max(sizes.get(file, 0), _size(row))
        link = row.data.get("link")
        if link not in ("input", "output"):
            raise row.wrong("link", "input or output", link)
        (inputs if link == "input" else outputs).append(file)
    return inputs, outputs


def _runtimes(workflow: Body) -> dict[str, float]:
    rows = workflow.body("execution").bodies("tasks")
    return {_name(row): time for row in rows if (time := _runtime(row)) is not None}


def _runtime(row: Body) -> float | None:
    key = _given(row, RUNTIMES)
    return number(row.get(key), row.where, key) if key else None


def _size(row: Body) -> int:
    key = _given(row, SIZES)
    return whole(row.get(key), row.where, key) if key else 0


def _given(row: Body, keys: tuple[str, ...]) -> str:
    """Return the first of some keys that is there, "" if none is."""
    return next(filter(row.has, keys), "")


def _name(row: Body) -> str:
    """Return the id of a task or file; old versions have only names."""
    value = row.data.get("id") or row.data.get("name")
    if not isinstance(value, str) or not value:
        raise InputError(f'{row.where}: expected a text as "id" or "name", received {value!r:.40}')
    return value


def _texts(task: Body, key: str) -> list[str]:
    values = task.data.get(key) or []
    if not isinstance(values, list) or any(not isinstance(x, str) for x in values):
        raise task.wrong(key, "a list of names", values)
    return values
