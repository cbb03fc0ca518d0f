"""What the commands share: options, loading, tables and numbers for people."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from fractions import Fraction
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from placeopt.model.errors import InputError, nearest
from placeopt.model.files import Data
from placeopt.model.objective import objective_of, time_text as seconds_text
from placeopt.model.query import told as told, without_none
from placeopt.model.sizes import bytes_text as bytes_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from placeopt.solving.tracker import OnProgress, Progress

CODES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]+")
"""Control characters other than ends of lines and tabs."""


def cluster_completions(incomplete: str) -> list[str]:
    """Return the clusters that begin as typed."""
    from placeopt.instances.clusters import cluster_names

    return [name for name in cluster_names() if name.startswith(incomplete)]


def solver_completions(incomplete: str) -> list[str]:
    """Return the solvers that begin as typed; the last of several separated by commas."""
    from placeopt.solving.registry import specs

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in specs() if name.startswith(last)]


def source_completions(incomplete: str) -> list[str]:
    """Return the generators that begin as typed; files are left to the shell."""
    from placeopt.instances.generators import generator_names

    return [
        name
        for name in (f"gen:{known}" for known in generator_names())
        if name.startswith(incomplete)
    ]


Source = Annotated[
    str,
    Argument(
        help="A file, onnx:NAME, torch:FILE.py:NAME or gen:NAME?key=value.",
        show_default=False,
        autocompletion=source_completions,
    ),
]
ClusterOption = Annotated[
    str | None,
    Option(
        "--cluster",
        "-c",
        help="Devices: 4xA100, cpu+gpu, uniform:4 or FILE.toml; see 'placeopt clusters'.",
        autocompletion=cluster_completions,
    ),
]
Format = Annotated[str | None, Option(help="Format of the file, if it is not detected.")]
Dim = Annotated[
    list[str] | None, Option(help="Fix a symbolic ONNX dimension: NAME=VALUE. Repeatable.")
]
TripCount = Annotated[
    int | None, Option(min=1, help="Turns of loops whose number is not in the model (default 1).")
]
SolverOptions = Annotated[
    list[str] | None,
    Option(help="Option of the solver, KEY=VALUE; needs a single solver. Repeatable."),
]
Training = Annotated[bool, Option("--training", help="Add the backward pass.")]
Group = Annotated[
    str | None,
    Option(help="Keep the ops of a module on one device: layer, block, N (groups) or none."),
]
Costs = Annotated[
    Path | None, Option(help="Op times: a file of 'placeopt profile', or a trace of a profiler.")
]
MemoryLimit = Annotated[
    str | None,
    Option(
        help="Bytes of every device, with a unit: 16GiB, or one each: 16GiB,40GiB. Counts what "
        "lives at the peak."
    ),
]
SolutionFile = Annotated[
    Path,
    Argument(
        help="Placement (JSON or CSV: op,device[,priority]) or saved result.", show_default=False
    ),
]
Queue = Annotated[str | None, Option(help="fifo, priority or planned.")]
Json = Annotated[bool, Option("--json", help="Print one JSON object and nothing else.")]
Seconds = Annotated[
    float, Option("--seconds", "-t", min=0, help="Time limit of the search, in seconds.")
]
Seed = Annotated[
    int,
    Option(min=0, help="Random seed; the same seed and evaluation budget give the same answer."),
]
FILE_SUFFIXES = {".json", ".csv", ".gz", ".png", ".svg", ".pdf", ".html", ".txt", ".toml"}
"""Ends of names that files have and folders do not."""

OutFolder = Annotated[
    Path | None,
    Option("--out", "-o", help="Folder for the results and pictures.", show_default=False),
]


def dims(values: list[str] | None) -> dict[str, int]:
    """Return the dimensions of --dim NAME=VALUE."""
    found: dict[str, int] = {}
    for value in values or []:
        name, equals, number = value.partition("=")
        if not (name and equals and number.isdecimal() and int(number) > 0):
            raise InputError(
                f"--dim: expected NAME=VALUE with a positive whole number, received '{value}'"
            )
        found[name] = int(number)
    return found


def options(values: list[str] | None) -> Data:
    """Return the options of --option KEY=VALUE; values are read as JSON where that works, else as
    text.
    """
    found: Data = {}
    for value in values or []:
        key, equals, text = value.partition("=")
        if not (key and equals):
            raise InputError(f"--option: expected KEY=VALUE, received '{value}'")
        option: Any = text
        with suppress(ValueError, RecursionError):
            option = json.loads(text)
        found[key.replace("-", "_")] = option
    return found


def words(texts: list[str] | None) -> list[str]:
    """Return what is repeated or separated by commas."""
    return [word.strip() for text in texts or () for word in text.split(",") if word.strip()]


def reader_options(
    dim: list[str] | None, trip_count: int | None, shared: str | None = None
) -> Data:
    """Return the reader options of the command line."""
    given = {"dims": dims(dim) or None, "trip_count": trip_count, "shared": shared}
    return without_none(given)


def is_word(source: str) -> bool:
    """Whether a source is a bare word: no path, no prefix, and no file of that name."""
    place = re.search(r"[:?#/\\]|\.[A-Za-z][A-Za-z0-9]+$", source)
    return not place and not os.path.exists(source)


def check_source(source: str) -> None:
    """Refuse a bare word, and say which command takes it, or which name is near."""
    if not is_word(source):
        return
    near, hint = near_model(source), "expected a file, gen:NAME, onnx:NAME or torch:FILE.py:NAME"
    if near:
        hint = f"did you mean {near}?" if ":" in near else f"'placeopt plan' takes {near}"
    raise InputError(f"file '{source}': no such file; {hint}")


def near_model(word: str) -> str:
    """Return the generator or public model that is most like a word, "" if none is."""
    from placeopt.instances.generators import generator_names
    from placeopt.plans.model_shapes import public_names

    generators = generator_names()
    near = nearest(word.lower(), [*generators, *public_names()])
    return f"gen:{near}" if near in generators else near


def console(*, quiet: bool = False, stderr: bool = False) -> Console:
    """Return a console for people: plain text, and as wide as needed, when it is not a terminal.

    Brackets are brackets, and control characters are blanks: names and messages are not ours.
    """
    from rich.console import Console

    class WithoutCodes(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(CODES.sub(" ", text), **options)

        def on_broken_pipe(self) -> None:
            print_to_nowhere(self.file)

    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return WithoutCodes(
        width=None if terminal else 140,
        markup=False,
        highlight=False,
        emoji=False,
        quiet=quiet,
        stderr=stderr,
    )


def print_to_nowhere(output: IO[str]) -> None:
    """Let a command go on whose output nobody reads any more (`placeopt ... | head`)."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())


def say(*words: Any, **how: Any) -> None:
    """Print something for people."""
    console().print(*words, **how)


def table(*headings: str, **options: Any) -> Table:
    """Return a table without lines, to be filled and printed."""
    from rich.table import Table

    return Table(*headings, box=None, pad_edge=False, **options)


@contextmanager
def progress(quiet: bool) -> Iterator[tuple[Callable[[str], None], Callable[[str], None]]]:
    """Show what runs, for how long, and words about it on a terminal; nothing elsewhere.

    Yields (announce what starts now, show words about it).
    """
    if quiet or not sys.stderr.isatty():
        yield (lambda _: None), (lambda _: None)
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.fields[what]:>16}", markup=False),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", what="", total=None)

        def announce(what: str) -> None:
            bar.reset(task, description="", what=what)

        def show(words: str) -> None:
            bar.update(task, description=words)

        yield announce, show


@contextmanager
def search_progress(
    problem: Any, quiet: bool
) -> Iterator[tuple[Callable[[str], None], OnProgress | None]]:
    """Show what runs, for how long, incumbent, bound and gap on a terminal; nothing elsewhere.

    Yields (announce what starts now, callback for a search on `problem`).
    """
    with progress(quiet) as (announce, show):
        yield announce, progress_callback(problem, show)


def progress_callback(problem: Any, show: Callable[[str], None]) -> OnProgress:
    """Return a callback that shows the incumbent, bound and gap of a search on `problem`."""
    objective = objective_of(problem)

    def report(found: Progress) -> None:
        words = f"{found.evaluations} evaluations"
        if found.incumbent is not None:
            distance = float(found.incumbent - found.lower_bound)
            gap = distance / max(1.0, float(found.incumbent))
            words = (
                f"incumbent {objective.text(problem, found.incumbent)}  bound "
                f"{objective.text(problem, found.lower_bound)}  gap {percent(gap)}  {words}"
            )
        show(f"{words}  {found.note}".rstrip())

    return report


_json_outputs: list[Any] = []
"""The output, while only JSON is written to it."""


@contextmanager
def only_json(wanted: bool) -> Iterator[None]:
    """Send all that is printed in the block to the error stream, but what `print_json` prints:
    plug-ins, models of the user's own and libraries may say something, too.
    """
    if not wanted:
        yield
        return
    _json_outputs.append(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _json_outputs.pop()


def print_json(data: Data) -> None:
    """Print one JSON object, with NaN and infinity as null."""
    text, output = json_text(data), [sys.stdout, *_json_outputs][-1]
    try:
        text.encode(output.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json_text(data, ascii=True)
    output.write(text)
    with suppress(OSError):  # whoever flushes it at the end says so
        output.flush()


def json_text(data: Data, *, ascii: bool = False) -> str:
    """Return one JSON object and a line feed, with NaN and infinity as null."""
    return json.dumps(plain_json(data), ensure_ascii=ascii) + "\n"


def plain_json(value: Any) -> Any:
    """Return what JSON can say: text keys, lists, plain numbers, null for what is not finite."""
    if isinstance(value, dict):
        return {str(key): plain_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(item) for item in value]
    if hasattr(value, "tolist"):
        return plain_json(value.tolist())
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def time_text(ticks: float | None, tick_seconds: float) -> str:
    """Return ticks as a time for people, in four digits."""
    return seconds_text(None if ticks is None else float(ticks) * tick_seconds)


def gib_text(size: float) -> str:
    """Return a number of bytes in GiB, without the unit: for tables whose rows are to be
    compared.
    """
    return f"{size / 2**30:.3g}" if size < 1000 * 2**30 else f"{size / 2**30:.0f}"


def kept_text(weights: float, gradients: float, states: float, *, training: bool) -> str:
    """Return what a device keeps for as long as it works, in GiB, by what it is."""
    told = f"weights {gib_text(weights)}"
    if training:
        told += f" + gradients {gib_text(gradients)} + optimizer states {gib_text(states)}"
    return told


def count_text(value: float) -> str:
    """Return a large number with a decimal prefix."""
    for unit, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value:.4g}"


def percent(gap: float | None) -> str:
    """Return a gap for people: "0 (optimal)" is said by the status, not here."""
    return "-" if gap is None else f"{100 * gap:.2f} %"


def out_folder(out: Path | None) -> Path | None:
    """Make the output folder now, so that a wrong path is known before the work is done.

    A new name that ends like a file is refused: its writer means a file.
    """
    if out is None:
        return None
    if out.suffix.lower() in FILE_SUFFIXES and not out.exists():
        raise InputError(
            f"--out '{out}': expected a folder, received the name of a file; "
            f"give a folder: --out {out.with_suffix('')}"
        )
    _try_folder(out, "--out")
    return out


def out_file(path: Path | None, option: str = "--out", *read: Path | str | None) -> None:
    """Refuse what cannot be the file to write, before the work is done, also one that is `read`;
    devices and pipes take all.
    """
    if path is None or (path.exists() and not path.is_dir() and not path.is_file()):
        return
    if path.is_dir():
        raise InputError(
            f"{option} '{path}': expected a file, received a folder; name a file in it"
        )
    for other in map(str, filter(None, read)):
        name = other if os.path.exists(other) else other.partition("?")[0]
        if path.exists() and os.path.exists(name) and path.samefile(name):
            raise InputError(f"{option} '{path}': the command reads this file; name another one")
    _try_folder(path.resolve().parent, option)


def check_suffix(path: Path, suffixes: Collection[str]) -> None:
    """Refuse a file to write whose name says of no format that is written."""
    if path.suffix.lower() not in suffixes:
        raise InputError(
            f"--out: expected a file ending in {', '.join(suffixes)}, received '{path}'"
        )


def _try_folder(folder: Path, option: str) -> None:
    """Make a folder, and a file in it for a moment, of a name that nobody else has."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(
            f"{option} '{folder}': expected a folder, received a file; give another name"
        ) from error
    except OSError as error:
        raise InputError(
            f"{option} '{folder}': cannot write there: {error.strerror or error}; give another "
            "folder"
        ) from error
