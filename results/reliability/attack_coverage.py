"""What the attack executes of the code that decides truth: lines and branches, and by how many
problems.

    python results/reliability/attack_coverage.py run --pieces DIR --family makespan --problems 100
    python results/reliability/attack_coverage.py steer --pieces DIR
    python results/reliability/attack_coverage.py report --pieces DIR

`run` attacks problems of a family (`tests/attack/families.py`, or `adversary`, the derivations of
`tests/proofs/adversary.py`) with interpreted kernels and leaves in DIR, one file per piece, how
many problems reach each line and branch; it goes on where the pieces end, and stops after
--seconds. Places are those of a function, "name 3" its third statement, "name 3 5" a jump from
there, and count for as long as the code of the function is the same. `steer` draws problems near
those that reach a place of fewer than ENOUGH: all random numbers of one of them but for the last
1, 10, 100, ..., which are others. `report` adds the pieces up: `coverage.csv` has a row per
file, and lines and branches that fewer than ENOUGH problems reach are printed.
"""

from __future__ import annotations

import argparse
import ast
import copy
import gzip
import hashlib
import json
import os
import random
import sys
import time
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from placeopt.experiments.studies import write_csv
from placeopt.model.files import write_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PIECE = 100
"""Problems of a piece."""

ENOUGH = 50
"""Problems that should reach every line and branch."""

FEW = 5
"""Problems of a piece that reach a place at most for the piece to say which ones do."""

DECIDING = (
    "placeopt/*/bounds/*.py",
    "placeopt/splits/objective.py",
    "schedules/bounds.py",
    "placeopt/period/contracted.py",
    "placeopt/sharding/reduction.py",
    "placeopt/sharding/compact.py",
    "placeopt/makespan/coarsening.py",
    "tools/proof_checker/*.py",
)
"""Bounds, reductions, contractions, and the steps of the checker."""


def deciding_files() -> list[Path]:
    """Return the files that decide truth, without those that hold nothing but a docstring."""
    found = [path for pattern in DECIDING for path in sorted(ROOT.glob(pattern))]
    return [
        path.resolve()
        for path in found
        if "\nimport" in (text := path.read_text()) or "\nfrom" in text
    ]


class Seed(int):
    """A seed, and where the random numbers drawn from it begin: `path` is pairs of a seed and how
    many numbers of it come before the next; those of the seed itself are the last.
    """

    path: tuple[tuple[int, int], ...] = ()
    drawn = 0

    @classmethod
    def of(cls, words: Sequence[Sequence[int]], last: int) -> Seed:
        """Return a seed with a path."""
        seed = cls(last)
        seed.path = tuple((int(first), int(count)) for first, count in words)
        return seed

    def near(self, kept: int, other: int) -> Seed:
        """Return a seed with the first `kept` numbers of this one, then those of another."""
        path, left = [], kept
        for first, count in (*self.path, (int(self), kept)):
            path.append((first, min(count, left)))
            left -= min(count, left)
        return Seed.of([pair for pair in path if pair[1]], other)


class Numbers(random.Random):
    """Random numbers of a seed with its path, which learns how many are drawn from it."""

    def __init__(self, seed: Any = None) -> None:
        super().__init__(seed)
        self._seed, self._before, self._drawn = seed, [], 0
        for first, count in getattr(seed, "path", ()):
            self._before += [_plain(first)] * count

    def random(self) -> float:
        """Return a number from 0 to 1."""
        return float(self._source().random())

    def getrandbits(self, k: int) -> int:
        """Return k bits."""
        return int(self._source().getrandbits(k))

    def _source(self) -> Any:
        at, self._drawn = self._drawn, self._drawn + 1
        if isinstance(self._seed, Seed):
            self._seed.drawn = max(self._seed.drawn, self._drawn)
        return self._before[at] if at < len(self._before) else super()


_plain = random.Random
"""Python's own random numbers, whatever stands in for them."""


def attacks() -> dict[str, Callable[[int], list[str]]]:
    """Return what attacks one seed and says every difference that it finds, by family."""
    sys.path[:0] = [str(ROOT / "tests" / "attack"), str(ROOT / "tests" / "proofs")]
    from families import FAMILIES

    def adversary(seed: int) -> list[str]:
        from adversary import FAMILIES as AIMS, attacked

        tally = attacked(AIMS[seed % len(AIMS)], int(seed), 10)
        return [tally.first] if tally.at_optimum else []

    def differences(family: str) -> Callable[[int], list[str]]:
        return lambda seed: FAMILIES[family](seed).differences

    return {**{family: differences(family) for family in FAMILIES}, "adversary": adversary}


def run(options: argparse.Namespace) -> None:
    """Attack piece after piece of a family."""
    os.environ["NUMBA_DISABLE_JIT"] = "1"
    options.pieces.mkdir(parents=True, exist_ok=True)
    end, attack = time.monotonic() + options.seconds, attacks()[options.family]
    attack(options.first)  # imports and caches belong to no problem
    digests = {_name(path): _digests(path.read_text()) for path in deciding_files()}
    for first in range(options.first, options.first + options.problems, PIECE):
        path = options.pieces / f"{options.family}-{first}.json.gz"
        if path.exists() or time.monotonic() > end:
            continue
        problems = [(options.family, Seed(seed)) for seed in range(first, first + PIECE)]
        _write_piece(path, problems, {options.family: attack}, digests)


def _write_piece(
    path: Path,
    problems: list[tuple[str, Seed]],
    attack: dict[str, Callable[[int], list[str]]],
    digests: dict[str, dict[str, str]],
) -> dict[str, Any]:
    counted = _counted(attack, problems)
    print(*counted["differences"], sep="\n", end="\n" if counted["differences"] else "")
    piece = {"problems": len(problems), "digests": digests, **counted}
    write_bytes(path, gzip.compress(json.dumps(piece).encode()))
    return piece


def steer(options: argparse.Namespace) -> None:
    """Attack problems near those that reach what few reach, until --seconds are over."""
    os.environ["NUMBA_DISABLE_JIT"] = "1"
    end, attack = time.monotonic() + options.seconds, attacks()
    digests = {_name(path): _digests(path.read_text()) for path in deciding_files()}
    counts, _ = _summed(options.pieces)
    seen = _seen(options.pieces, digests)
    first = options.first
    while time.monotonic() < end:
        path, first = options.pieces / f"steered-{first}.json.gz", first + PIECE
        if path.exists():
            continue
        rng = random.Random(first)
        rare = [pair for pair in sorted(seen) if counts[pair[0]][pair[1]] < ENOUGH]
        if not rare:
            break
        problems = []
        for other in range(first - PIECE, first):
            family, words, last, drawn = rng.choice(seen[rng.choice(rare)])
            seed = Seed.of(words, last)
            fresh = int(drawn ** rng.random())  # of any order of magnitude
            problems.append((family, seed.near(drawn - fresh, other)))
        piece = _write_piece(path, problems, attack, digests)
        for name, more in piece["counts"].items():
            counts[name].update(more)
        for name, places in piece["seen"].items():
            for place, found in places.items():
                seen[name, place] += found
        print(len(rare), "places short", flush=True)


def _seen(
    folder: Path, digests: dict[str, dict[str, str]]
) -> dict[tuple[str, str], list[tuple[str, list[list[int]], int, int]]]:
    """Return problems of the pieces that reach places of which they say it: family, path and seed,
    and how many random numbers were drawn.
    """
    seen = defaultdict(list)
    for path in sorted(folder.glob("*.json.gz")):
        piece = json.loads(gzip.decompress(path.read_bytes()))
        for name, places in piece.get("seen", {}).items():
            for place, found in places.items():
                function = place.split(" ")[0]
                if digests[name].get(function) == piece["digests"][name].get(function):
                    seen[name, place] += found
    return seen


def _counted(
    attack: dict[str, Callable[[int], list[str]]], problems: list[tuple[str, Seed]]
) -> dict[str, Any]:
    """Return, per file, how many problems reach each place (`Names.of`), those that reach a place
    of few, and the differences found.
    """
    from coverage import Coverage

    files = [str(path) for path in deciding_files()]
    cover = Coverage(data_file=None, branch=True, config_file=False, include=files)
    wrong = []
    cover.start()
    with mock.patch("random.Random", Numbers):
        for i, (family, seed) in enumerate(problems):
            cover.switch_context(str(i))
            wrong += [f"{family} {seed.path} {seed}: {what}" for what in attack[family](seed)]
    cover.stop()
    data, counts, seen = cover.get_data(), {}, {}
    for name in sorted(data.measured_files()):
        reader, text = cover._get_file_reporter(name), Path(name).read_text()
        places, reached = _places(reader, Names(reader, text)), defaultdict(list)
        for i in range(len(problems)):
            data.set_query_context(str(i))
            for place in {place for pair in data.arcs(name) or () for place in places(pair)}:
                reached[place].append(i)
        counts[_name(Path(name))] = {place: len(found) for place, found in reached.items()}
        seen[_name(Path(name))] = {
            place: [(problems[i][0], problems[i][1].path, *_numbers(problems[i][1])) for i in found]
            for place, found in reached.items()
            if len(found) <= FEW
        }
    return {"counts": counts, "seen": seen, "differences": wrong}


def _numbers(seed: Seed) -> tuple[int, int]:
    return int(seed), max(1, seed.drawn)


def _places(reader: Any, names: Names) -> Callable[[tuple[int, int]], frozenset[str]]:
    """Return what says the lines and the branch of a jump from line to line that was measured."""

    @cache
    def places(pair: tuple[int, int]) -> frozenset[str]:
        jumps = [jump for jump in reader.translate_arcs([pair]) if jump[0] in names.function]
        lines = reader.translate_lines({x for x in pair if x > 0}) & names.function.keys()
        return frozenset([*(names.of(*jump) for jump in jumps), *map(names.of, lines)])

    return places


class Names:
    """What places of a file are called: by function and statement, whatever line they are on.

    Attributes
    ----------
    function : dotted name of the innermost function of each line of a statement inside one:
        imports, definitions and constants run once, before any problem.
    """

    def __init__(self, reader: Any, text: str) -> None:
        self._inside, self._number = {}, Counter[int]()
        for name, node in _functions(text):  # outer ones come first
            for line in range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1):
                self._inside[line] = name
        self.function = {x: self._inside[x] for x in sorted(reader.lines()) if x in self._inside}
        count = Counter[str]()
        for line, name in self.function.items():
            self._number[line] = count[name] = count[name] + 1

    def of(self, line: int, to: int | None = None) -> str:
        """Return the name of a line, or of a jump from there; where it leaves its function, a
        comprehension or a lambda, `to` is less than 0.
        """
        name = f"{self.function[line]} {self._number[line]}"
        if to is None:
            return name
        if to < 0:
            return f"{name} {'leave' if self._inside.get(-to) != self.function[line] else 'inner'}"
        return f"{name} {self._number[to]}"


def _functions(text: str) -> list[tuple[str, ast.FunctionDef]]:
    """Return the functions of a text by dotted name, outer ones first."""
    found = []

    def visit(node: ast.AST, within: str) -> None:
        for inner in ast.iter_child_nodes(node):
            named = isinstance(inner, ast.FunctionDef | ast.ClassDef)
            if isinstance(inner, ast.FunctionDef):
                found.append((within + inner.name, inner))
            visit(inner, f"{within}{inner.name}." if named else within)

    visit(ast.parse(text), "")
    return found


def _digests(text: str) -> dict[str, str]:
    """Return a digest of the code of each function, without its docstring, its annotations, and
    whether a data type is given by name.
    """
    return {name: _digest(node) for name, node in _functions(text)}


def _digest(function: ast.FunctionDef) -> str:
    function = copy.deepcopy(function)
    for node in ast.walk(function):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            if ast.get_docstring(node) is not None:
                node.body = node.body[1:]
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
        elif isinstance(node, ast.Call):
            node.args += [key.value for key in node.keywords if key.arg == "dtype"]
            node.keywords = [key for key in node.keywords if key.arg != "dtype"]
    return hashlib.sha256(ast.dump(function).encode()).hexdigest()[:16]


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def report(options: argparse.Namespace) -> None:
    """Add up the pieces and write the tables."""
    from coverage import Coverage

    cover = Coverage(data_file=None, branch=True, config_file=False)
    cover.exclude("if TYPE_CHECKING:")
    cover.get_data()  # nothing is measured here; files are read
    counts, problems = _summed(options.pieces)
    rows = []
    for path in deciding_files():
        name = _name(path)
        whole, places = _file_rows(cover, path, counts[name])
        least = min(problems[name, function] for function in _digests(path.read_text()))
        rows.append({"file": name, "problems": least, **whole})
        for place in places:
            print(*place.values(), sep=", ")
    total = {key: sum(row[key] for row in rows) for key in rows[0] if key != "file"}
    most = max(row["problems"] for row in rows)
    rows.append({"file": "all", **total, "problems": most})
    write_csv(HERE / "coverage.csv", rows)
    print(rows[-1])
    _say_differences(options.pieces)


def _say_differences(folder: Path) -> None:
    """Print in how many problems of the pieces that keep differences there are any, and which."""
    pieces = [json.loads(gzip.decompress(p.read_bytes())) for p in sorted(folder.glob("*.gz"))]
    judged = [piece for piece in pieces if "differences" in piece]
    wrong = [what for piece in judged for what in piece["differences"]]
    print(sum(piece["problems"] for piece in judged), "problems judged,", len(wrong), "differences")
    print(*wrong, sep="\n")


def _summed(folder: Path) -> tuple[dict[str, Counter[str]], Counter[tuple[str, str]]]:
    """Return the counts of each file, and the problems of each of its functions; a piece counts for
    a function that is still as it was.
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    problems: Counter[tuple[str, str]] = Counter()
    digests = {_name(path): _digests(path.read_text()) for path in deciding_files()}
    for path in sorted(folder.glob("*.json.gz")):
        piece = json.loads(gzip.decompress(path.read_bytes()))
        for name, now in digests.items():
            then = piece["digests"].get(name, {})
            same = {function for function, digest in now.items() if then.get(function) == digest}
            problems.update({(name, function): piece["problems"] for function in same})
            for place, count in piece["counts"].get(name, {}).items():
                if place.split(" ")[0] in same:
                    counts[name][place] += count
    return counts, problems


def _file_rows(
    cover: Any, path: Path, counts: Counter[str]
) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """Return the numbers of a file, and a row for each place that fewer than ENOUGH problems
    reach.
    """
    reader = cover._get_file_reporter(str(path))
    names, text = Names(reader, path.read_text()), path.read_text().splitlines()
    body = sorted(names.function)
    branches = [pair for pair in _branches(reader) if pair[0] in names.function]
    rare = []
    for place in [*((a,) for a in body), *branches]:
        count = counts[names.of(*place)]
        if count < ENOUGH:
            to = "" if len(place) < 2 else "leave" if place[1] < 0 else text[place[1] - 1].strip()
            rare.append(
                {
                    "file": _name(path),
                    "function": names.function[place[0]].split(".")[-1],
                    "kind": "line" if len(place) < 2 else "branch",
                    "line": place[0],
                    "text": text[place[0] - 1].strip(),
                    "to": to,
                    "problems": count,
                }
            )
    row = {}
    for what, places in (("lines", [(a,) for a in body]), ("branches", branches)):
        hit = [counts[names.of(*place)] for place in places]
        row[what] = len(hit)
        row[f"{what} reached"] = sum(x > 0 for x in hit)
        row[f"{what} by {ENOUGH} problems"] = sum(x >= ENOUGH for x in hit)
    return row, rare


def _branches(reader: Any) -> list[tuple[int, int]]:
    """Return all ends of the lines that have several."""
    exits, left_out = reader.exit_counts(), reader.no_branch_lines() | reader.excluded_lines()
    return sorted(
        (start, end)
        for start, end in reader.arcs()
        if exits.get(start, 0) > 1 and not left_out & {start, end}
    )


def main() -> None:
    """Run pieces, or report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=["run", "steer", "report"])
    parser.add_argument("--pieces", type=Path, required=True, help="folder of the pieces")
    parser.add_argument("--family", default="makespan")
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--first", type=int, default=2_000_000, help="first seed")
    parser.add_argument("--seconds", type=float, default=420.0, help="begin no piece after that")
    options = parser.parse_args()
    {"run": run, "steer": steer, "report": report}[options.stage](options)


if __name__ == "__main__":
    main()
