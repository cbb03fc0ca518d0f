"""The mutation score: python tests/attack/mutants.py [--first N] [--count N] [--files GLOB] [--again].

A fresh share: python tests/attack/mutants.py --fresh --seed N [--again].

Seeded small faults in what decides truth, one at a time, against the tests that run the faulty line.
A mutant is killed if one of them fails, dies, or takes far longer than it does without the fault.
`results/reliability/mutants.csv` gets a row per mutant at once, so that a run goes on where the
last one ended; `results/reliability/equivalent.csv` says of which survivors no test can tell, and
why. `results/reliability/study.py mutation-score` draws the table. With `--fresh` mutants of another
seed go to `mutants-fresh.csv`, those of other tables left out: how many the tests kill at once is what
to expect of a fault that nobody has seen. `--fresh --again` notes, beside that, which survivors the
tests written since kill.

How. Everything happens in a copy of the working tree. A group of files has a server: a process that
collects the group's tests once, with interpreted kernels (NUMBA_DISABLE_JIT=1), and runs none of them.
For each test it forks a child that notes which lines of the group's files the test runs, and for how
long (kept in the copy's folder until the test's file changes; needs `coverage`). For each mutant it forks
a child in which the code of the functions of the file is replaced, those functions alone and in place, so
that whoever has imported them meets the fault; the file in the copy is changed, too, for processes
that tests start. The child runs the tests that reach the line, the fastest first, up to the first
that fails.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fnmatch
import gc
import hashlib
import json
import math
import os
import py_compile
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

from mutation import Mutant, mutants_of  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

SEED = 34
RESULTS = Path("results/reliability")
NAMES = ["file", "where", "operator", "before", "after", "number"]
"""The columns that name a mutant (`Mutant.key`)."""
COLUMNS = ["group", "line", *NAMES, "outcome", "killer", "seconds"]
FRESH = ["seed", *COLUMNS, "since", "since killer"]
SLOWEST = 8.0
"""Processor seconds of a test above which it is left out."""
MOST = 6.0
"""Seconds of tests that a mutant gets, by their times without a fault; the fastest come first."""
GIGABYTES = 6
"""Address space of a child: a fault may ask for any amount."""


@dataclass(frozen=True)
class Group:
    """Files that the same tests touch.

    Attributes
    ----------
    share : of all mutants of its files that are made. tests : files of tests, or FILE::GLOB.
    always : tests that start processes, tried last whatever lines they are seen to run.
    """

    files: tuple[str, ...]
    share: float
    tests: tuple[str, ...]
    always: tuple[str, ...] = ()


SLICES = "tests/attack/mutant_slices.py"
GROUPS = {
    "checker": Group(
        ("tools/proof_checker/*.py",),
        0.35,
        ("tests/proofs/test_check*.py", "tests/proofs/test_adversary.py"),
        ("tests/proofs/test_checker_package.py::*",),
    ),
    "run and plug-ins": Group(
        ("placeopt/solving/run.py", "placeopt/solving/plugin.py"),
        0.2,
        ("tests/solving/test_lying_plugins.py", "tests/solving/test_run*.py"),
    ),
    "makespan": Group(
        ("placeopt/makespan/bounds/*.py", "placeopt/makespan/coarsening.py"),
        0.04,
        (
            f"{SLICES}::*[[]makespan*",
            f"{SLICES}::*[[]lanes*",
            "tests/attack/test_segments.py",
            "tests/bounds/test_*.py",
            "tests/exact/test_coarsening.py",
        ),
    ),
    "period": Group(
        ("placeopt/period/bounds/*.py", "placeopt/period/contracted.py"),
        0.04,
        (
            f"{SLICES}::*[[]period*",
            f"{SLICES}::*[[]prices*",
            f"{SLICES}::*-dp-*",
            "tests/period/test_*.py",
            "tests/splits/test_*.py",
        ),
    ),
    "latency": Group(
        ("placeopt/latency/bounds/*.py",),
        0.04,
        (
            f"{SLICES}::*[[]latency*",
            f"{SLICES}::*[[]slots*",
            "tests/bounds/test_latency*.py",
            "tests/period/test_period_models.py::*flow*",
        ),
    ),
    "splits and pipelines": Group(
        ("placeopt/splits/objective.py", "schedules/bounds.py"),
        0.15,
        (
            f"{SLICES}::*[[]split*",
            f"{SLICES}::*[[]pipeline*",
            "tests/splits/test_*.py",
            "tests/schedules/test_bound*.py",
            "tests/schedules/test_known.py",
            "tests/schedules/test_joint.py",
        ),
    ),
    "sharding": Group(
        (
            "placeopt/sharding/bounds/*.py",
            "placeopt/sharding/reduction.py",
            "placeopt/sharding/compact.py",
        ),
        0.04,
        (f"{SLICES}::*[[]sharding*", f"{SLICES}::*[[]parts*", "tests/sharding/test_*.py"),
    ),
    "judges": Group(
        ("schedules/judge.py", "placeopt/*/judge.py"),
        0.06,
        (
            f"{SLICES}::test_family*",
            "tests/test_evaluation.py",
            "tests/schedules/test_judge*.py",
            "tests/test_schedule_judge.py",
            "tests/streams/test_judge*.py",
            "tests/plans/test_plan_judges.py",
            "tests/plans/test_repetends.py",
            "tests/plans/test_step_schedules.py",
            "tests/splits/test_*split*.py",
            "tests/sharding/test_problem.py",
            "tests/sharding/test_unlimited.py",
            "tests/period/test_evaluate_period.py",
        ),
    ),
    "exact dynamic programs": Group(
        (
            "solvers/exact/ideal_*.py",
            "solvers/exact/split_ideals.py",
            "solvers/exact/linear_dp.py",
        ),
        0.06,
        (
            f"{SLICES}::*[[]split*",
            f"{SLICES}::*-dp-*",
            "tests/splits/test_*.py",
            "tests/period/test_*.py",
        ),
    ),
}
"""Of what decides truth, files and the tests of them."""


# --- which mutants
# -----------------------------------------------------------------------------------------------


def files_of(group: Group) -> list[str]:
    """Return the files of a group, links left out."""
    found = {path for pattern in group.files for path in ROOT.glob(pattern)}
    return sorted(str(p.relative_to(ROOT)) for p in found if p.resolve() == p)


def chosen(files: str, share: float | None, seed: int = SEED) -> list[tuple[str, Mutant]]:
    """Return the mutants that the seed chooses in files that match, with their groups."""
    return [
        (name, mutant)
        for name, group in GROUPS.items()
        for file in files_of(group)
        if fnmatch.fnmatch(file, files)
        for mutant in mutants_of(ROOT, file, seed, group.share if share is None else share)
    ]


# --- the copy
# ----------------------------------------------------------------------------------------------------


def copy_tree(target: Path) -> None:
    """Bring a folder up to date with the working tree: what git tracks, and new files.

    Sources are compiled once, and known by their content: their times say nothing while they are
    edited.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    names = {name for name in os.fsdecode(listed.stdout).split("\0") if name}
    for name in names:
        source, copy = ROOT / name, target / name
        if not source.is_symlink() and not source.is_file():
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            if not copy.is_symlink():
                copy.symlink_to(os.readlink(source))
        elif not copy.exists() or copy.read_bytes() != source.read_bytes():
            shutil.copyfile(source, copy)
            if copy.suffix == ".py":
                how = py_compile.PycInvalidationMode.CHECKED_HASH
                py_compile.compile(str(copy), invalidation_mode=how, quiet=1)
    if not (target / ".git").exists():  # some tests ask git for the root
        subprocess.run(["git", "init", "-q"], cwd=target, check=True)


# --- the server
# --------------------------------------------------------------------------------------------------


class Server:
    """A pytest plug-in that runs no test itself: its children do.

    Attributes
    ----------
    jobs : mutants of one group. log : answers, one JSON object a line. only : the tests, if not all.
    """

    def __init__(
        self, group: Group, jobs: list[Mutant], log: Path, known: Path, only: list[str]
    ) -> None:
        self.only = only
        self.group, self.jobs, self.log, self.known_at = group, jobs, log, known
        self.files = {str(ROOT / file): file for file in files_of(group)}
        self.known: dict[str, Any] = json.loads(known.read_text()) if known.exists() else {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Let tests run that are skipped where kernels are interpreted: their time decides."""
        for item in items:
            item.own_markers = [m for m in item.own_markers if m.name != "skip"]

    def pytest_runtestloop(self, session: Any) -> bool:
        """Note what tests run, then try the mutants."""
        globs = [p if "::" in p else f"{p}::*" for p in self.group.tests]
        self.items = {
            item.nodeid: item
            for item in session.items
            if matches(item.nodeid, globs) and matches(item.nodeid, self.only)
        }
        gc.collect()
        gc.freeze()
        self._map()
        functions = self._functions()
        for mutant in self.jobs:
            began = time.monotonic()
            outcome, killer = self._try(mutant, functions[str(ROOT / mutant.file)])
            row = {"outcome": outcome, "killer": killer}
            row["seconds"] = f"{time.monotonic() - began:.1f}"
            with self.log.open("a") as log:
                log.write(json.dumps([mutant.key, row]) + "\n")
        return True

    # --- the map

    def _map(self) -> None:
        """Note, of tests that are new or changed, lines and seconds; None for those left out."""
        stamps: dict[Path, str] = {}
        for name, item in self.items.items():
            if item.path not in stamps:
                content = item.path.read_bytes()
                stamps[item.path] = hashlib.sha256(content).hexdigest()
            entry = self.known.get(name)
            if entry is not None and entry["stamp"] == stamps[item.path]:
                continue
            self.known[name] = {"stamp": stamps[item.path], **self._observe(item)}
            self.known_at.write_text(json.dumps(self.known))

    def _observe(self, item: Any) -> dict[str, Any]:
        def child(say: Any) -> None:
            import coverage

            watch = coverage.Coverage(
                data_file=None, config_file=False, include=list(self.files), messages=False
            )
            allow(SLOWEST + 1)
            began = time.process_time()
            watch.start()
            passed = outcomes(item, None) == {"passed"}
            watch.stop()
            seconds = time.process_time() - began
            if not passed:
                return
            data = watch.get_data()
            found = {
                os.path.realpath(path): sorted(data.lines(path) or ())
                for path in data.measured_files()
            }
            say({"seconds": seconds, "lines": {self.files[p]: x for p, x in found.items() if x}})

        answers, _ = in_child(child, [40 * SLOWEST])
        if answers and answers[0]["seconds"] <= SLOWEST:
            return answers[0]
        return {"seconds": None, "lines": {}}

    # --- the mutants

    def _functions(self) -> dict[str, list[types.FunctionType]]:
        """Return the functions of every file, wherever they are held."""
        found: dict[str, list[types.FunctionType]] = {path: [] for path in self.files}
        gc.unfreeze()
        for thing in gc.get_objects():
            if isinstance(thing, types.FunctionType):
                path = os.path.realpath(thing.__code__.co_filename)
                if path in found:
                    found[path].append(thing)
        gc.freeze()
        return found

    def _tests_for(self, mutant: Mutant) -> list[tuple[float, Any]]:
        """Return tests that reach a mutant and their seconds, the fastest first."""
        touched = range(mutant.first, mutant.last + 1)
        module = mutant.where == "<module>"
        found, rest = [], []
        for name, item in self.items.items():
            seconds, lines = self.known[name]["seconds"], self.known[name]["lines"]
            if seconds is None:
                continue
            here = lines.get(mutant.file, ())
            if (module and here) or any(line in here for line in touched):
                found.append((seconds, item))
            elif any(fnmatch.fnmatch(name, pattern) for pattern in self.group.always):
                rest.append((seconds, item))
        found.sort(key=lambda pair: pair[0])
        taken, total = [], 0.0
        for seconds, item in found:
            total += seconds - found[0][0]  # the fastest shows what noting lines takes by itself
            if total <= MOST:
                taken.append((seconds, item))
        return taken + rest

    def _try(self, mutant: Mutant, functions: list[types.FunctionType]) -> tuple[str, str]:
        tests = self._tests_for(mutant)
        if not tests:
            return "survived", "no test that was tried runs this line"
        path = ROOT / mutant.file
        source = path.read_bytes()
        mutated = mutant.applied(source)

        def child(say: Any) -> None:
            replace_code(functions, source, mutated, str(path))
            if mutant.where == "<module>":
                replace_value(functions, source, mutated, str(path))
            items = [item for _, item in tests]
            for number, (item, follower) in enumerate(zip(items, [*items[1:], None], strict=True)):
                say(number)
                allow(5 * tests[number][0] + 3)
                if "failed" in outcomes(item, follower):
                    say("failed")
                    return
            say("survived")

        path.write_bytes(mutated)
        try:
            answers, died = in_child(child, [50 * seconds + 60 for seconds, _ in tests])
        finally:
            path.write_bytes(source)
        if answers and answers[-1] == "survived":
            return "survived", ""
        reached = [a for a in answers if isinstance(a, int)]
        if not reached:
            return "killed", f"({died or 'it cannot be loaded'})"
        killer = tests[reached[-1]][1].nodeid
        return "killed", killer if answers[-1] == "failed" else f"{killer} ({died})"


def matches(name: str, patterns: list[str]) -> bool:
    """Return whether a name ends as one of some patterns says; without patterns it does."""
    return not patterns or any(fnmatch.fnmatchcase(name, f"*{pattern}") for pattern in patterns)


def outcomes(item: Any, follower: Any) -> set[str]:
    """Run a test; return the outcomes of its phases."""
    from _pytest.runner import runtestprotocol

    return {report.outcome for report in runtestprotocol(item, log=False, nextitem=follower)}


def allow(seconds: float) -> None:
    """End this process when it has used so many more seconds of a processor."""
    most = math.ceil(time.process_time() + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def in_child(work: Any, limits: list[float]) -> tuple[list[Any], str]:
    """Fork a child that does `work(say)`; return what it said, and what it died of if it did.

    `limits` are the seconds, on the clock, until the next word after so many; the last one holds on.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.close(reader)
            os.setsid()
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the server
            most = GIGABYTES * 2**30
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            work(lambda word: os.write(writer, json.dumps(word).encode() + b"\n"))
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    said, died = b"", ""
    while True:
        count = max(0, said.count(b"\n") - 1)
        limit = limits[min(count, len(limits) - 1)]
        if not select.select([reader], [], [], limit)[0]:
            died = "time limit"
            break
        part = os.read(reader, 65536)
        if not part:
            break
        said += part
        if said.endswith((b'"failed"\n', b'"survived"\n')):
            break
    os.close(reader)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    if not died and os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGKILL:
        ended = os.WTERMSIG(status)
        died = "time limit" if ended == signal.SIGXCPU else f"signal {ended}"
    elif not died and os.WIFEXITED(status) and os.WEXITSTATUS(status):
        died = "an error outside tests"
    return [json.loads(line) for line in said.splitlines()], died


# --- replacing code in place
# --------------------------------------------------------------------------------------------------


def codes_of(source: bytes, path: str) -> dict[tuple[str, int], types.CodeType]:
    """Return the code of the functions of a file by qualified name and occurrence."""
    found: dict[tuple[str, int], types.CodeType] = {}
    todo: list[types.CodeType] = [compile(source, path, "exec", dont_inherit=True)]
    while todo:
        code = todo.pop(0)
        for part in code.co_consts:
            if isinstance(part, types.CodeType):
                name = part.co_qualname
                found[name, sum(known == name for known, _ in found)] = part
                todo.append(part)
    return found


def replace_code(
    functions: list[types.FunctionType], source: bytes, mutated: bytes, path: str
) -> None:
    """Give every function the code that the mutated file has for it."""
    old = codes_of(source, path)
    new = codes_of(mutated, path)
    names = {(code.co_qualname, code.co_firstlineno): key for key, code in old.items()}
    for function in functions:
        code = function.__code__
        key = names.get((code.co_qualname, code.co_firstlineno))
        if key in new and new[key].co_freevars == code.co_freevars:
            function.__code__ = new[key]


def replace_value(
    functions: list[types.FunctionType], source: bytes, mutated: bytes, path: str
) -> None:
    """Give every module that holds a number of a file, and functions of whose defaults it is one,
    the number that the mutated file has.
    """
    changed = {}
    first, second = (
        {node.targets[0].id: ast_text(node) for node in assignments(text)}  # type: ignore[attr-defined]
        for text in (source, mutated)
    )
    holders = [
        module
        for module in list(sys.modules.values())
        if os.path.realpath(getattr(module, "__file__", None) or "") == path
    ]
    for name in first:
        if first[name] != second[name]:
            for module in holders:
                changed[name] = eval(second[name], dict(vars(module)))
    known = [
        (vars(module)[name], name, value) for module in holders for name, value in changed.items()
    ]
    for module in list(sys.modules.values()):
        for old, name, value in known:
            if vars(module).get(name) is old:
                setattr(module, name, value)
    for function in functions:
        for old, _, value in known:
            if any(default is old for default in function.__defaults__ or ()):
                defaults = (value if d is old else d for d in function.__defaults__ or ())
                function.__defaults__ = tuple(defaults)


def assignments(text: bytes) -> list[Any]:
    """Return the assignments of a module to single names."""
    import ast

    return [
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    ]


def ast_text(node: Any) -> str:
    """Return the text of what an assignment assigns."""
    import ast

    return ast.unparse(node.value)


def serve(name: str, jobs: Path, log: Path, known: Path, only: list[str]) -> int:
    """Be the server of a group (in a process of its own, in the copy)."""
    import pytest

    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", tempfile.mkdtemp())
    group = GROUPS[name]
    tests = sorted(
        {
            str(p)
            for pattern in group.tests
            for p in ROOT.glob(pattern.partition("::")[0])
            if matches(p.name, [o.partition("::")[0] for o in only])
        }
    )
    wanted = [Mutant(**entry) for entry in json.loads(jobs.read_text())]
    server = Server(group, wanted, log, known, only)
    return int(
        pytest.main(
            [
                *tests,
                "-p",
                "no:cacheprovider",
                "-p",
                "no:xdist",
                "-p",
                "no:timeout",
                "--capture=sys",
            ],
            plugins=[server],
        )
    )


# --- the command
# ---------------------------------------------------------------------------------------------------


def read_rows(path: Path) -> dict[tuple[str, ...], dict[str, str]]:
    """Return the rows of a CSV file of mutants by what names them."""
    import csv

    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        return {tuple(row[name] for name in NAMES): row for row in csv.DictReader(file)}


def write_rows(path: Path, rows: list[dict[str, Any]], columns: list[str] = COLUMNS) -> None:
    """Write the CSV file of mutants."""
    import csv

    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main(arguments: list[str] | None = None) -> None:
    """Try the mutants that have no row yet, and write their rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=0, help="leave out so many mutants")
    parser.add_argument("--count", type=int, default=None, help="try at most so many")
    parser.add_argument("--files", default="*", help="only files that match, say tools/*")
    parser.add_argument(
        "--again",
        action="store_true",
        help="try again survivors that equivalent.csv does not argue, and nothing else",
    )
    parser.add_argument(
        "--share", type=float, default=None, help="of all mutants, instead of the table's"
    )
    parser.add_argument("--seed", type=int, default=SEED, help="another one: other mutants")
    parser.add_argument(
        "--fresh", action="store_true", help="those of no table, into mutants-fresh.csv"
    )
    parser.add_argument("--seconds", type=float, default=None, help="begin none after so many")
    parser.add_argument(
        "--work", type=Path, default=Path(tempfile.gettempdir()) / "placeopt-mutants"
    )
    parser.add_argument("--output", type=Path, help="instead of the table in results/reliability")
    parser.add_argument(
        "--tests", action="append", metavar="FILE::GLOB", help="only these tests of the group"
    )
    options = parser.parse_args(arguments)
    known = ROOT / RESULTS / "mutants.csv"
    output = options.output or (known.with_stem("mutants-fresh") if options.fresh else known)
    rows = read_rows(output)
    others = read_rows(known) if options.fresh else {}
    share = 1.0 if options.again else options.share
    wanted = [
        pair
        for pair in chosen(options.files, share, options.seed)
        if (pair[1].key in rows if options.again else pair[1].key not in others)
    ][options.first :]
    argued = read_rows(ROOT / RESULTS / "equivalent.csv")
    todo = [
        (group, mutant)
        for group, mutant in wanted
        if (
            lives(rows[mutant.key]) and mutant.key not in argued
            if options.again
            else mutant.key not in rows
        )
    ][: options.count]
    print(f"{len(wanted)} mutants, {len(todo)} of them to try", flush=True)
    began = time.monotonic()
    for group in dict.fromkeys(group for group, _ in todo):
        left = None if options.seconds is None else options.seconds + began - time.monotonic()
        if left is not None and left <= 0:
            break
        jobs = [mutant for name, mutant in todo if name == group]
        for key, answer in answers(group, jobs, options, left):
            mutant = next(m for m in jobs if m.key == key)
            entry = {"group": group, "line": mutant.line, **dict(zip(NAMES, key, strict=True))}
            if options.fresh and options.again:
                since = {"since": answer["outcome"], "since killer": answer["killer"]}
                rows[key] = {**rows[key], "line": mutant.line, **since}
            elif options.fresh:
                rows[key] = {"seed": options.seed, **entry, **answer}
            else:
                rows[key] = {**entry, **answer}
            write_rows(output, in_order(rows), FRESH if options.fresh else COLUMNS)
            print(
                f"{mutant.file}:{mutant.line} {mutant.operator}: {mutant.before[:60]} -> "
                f"{mutant.after[:60]}: {answer}",
                flush=True,
            )


def lives(row: dict[str, str]) -> bool:
    """Whether no test has killed a mutant, at once or since."""
    return "killed" not in (row["outcome"], row.get("since"))


def in_order(rows: dict[tuple[str, ...], dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows by group and place."""
    order = {name: i for i, name in enumerate(GROUPS)}
    return sorted(
        rows.values(),
        key=lambda r: (int(r.get("seed", 0)), order[r["group"]], r["file"], int(r["line"])),
    )


def answers(
    group: str, jobs: list[Mutant], options: argparse.Namespace, seconds: float | None
) -> Iterator[tuple[tuple[str, ...], dict[str, str]]]:
    """Yield the answer to each mutant of a group as a server gives it."""
    work = options.work
    tree = work / "tree"
    tree.mkdir(parents=True, exist_ok=True)
    copy_tree(tree)
    todo, log = work / "jobs.json", work / "answers.jsonl"
    todo.write_text(json.dumps([vars(mutant) for mutant in jobs]))
    log.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "NUMBA_DISABLE_JIT": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    known = work / f"{group.replace(' ', '-')}.json"
    script = tree / HERE.relative_to(ROOT) / Path(__file__).name
    command = [sys.executable, str(script), "--serve", group, str(todo), str(log), str(known)]
    command += options.tests or []
    with (work / "server.log").open("w") as said:
        server = subprocess.Popen(command, cwd=tree, env=environment, stdout=said, stderr=said)
        began, read = time.monotonic(), 0
        while True:
            ended = server.poll() is not None
            lines = log.read_text().splitlines() if log.exists() else []
            for line in lines[read:]:
                key, answer = json.loads(line)
                yield tuple(key), answer
            read = len(lines)
            late = seconds is not None and time.monotonic() - began > seconds
            if ended or late:
                break
            time.sleep(0.2)
        server.terminate()
        server.wait()
    if not read and not late:
        print((work / "server.log").read_text()[-3000:])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        sys.exit(serve(sys.argv[2], *map(Path, sys.argv[3:6]), sys.argv[6:]))
    main()
