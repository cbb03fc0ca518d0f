"""The command line: `placeopt COMMAND`, one line and exit code 2 for bad input, never a
traceback.

The typer application and the one place where errors become a line and an exit code; usage errors in
the words of the command: what was expected, what was received, what to do.
"""

from __future__ import annotations

import importlib
import io
import os
import re
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import typer

from placeopt.cli import interrupt
from placeopt.cli.common import only_json, print_to_nowhere
from placeopt.model.errors import CONTROL, InputError, SolverError, did_you_mean

app = typer.Typer(
    name="placeopt",
    help="Find, compare and certify device placements and pipeline schedules of ML computation "
    "graphs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

PANELS = {
    "Place a model": (
        *("info", "solve", "bound", "verify", "evaluate"),
        *("plot", "profile", "export", "run", "convert"),
    ),
    "Pipeline and train": ("plan", "schedule", "shard"),
    "Serve": ("jobs",),
    "Study": ("bench", "report"),
    "Look up and set up": ("solvers", "clusters", "generators", "shapes", "warm-up"),
}
"""Commands by the panel of `placeopt --help` that lists them. The command `schedule` is the
function `schedule_command` of `placeopt/cli/schedule.py`, unless `BESIDE` names another file."""

BESIDE = {
    "report": "bench",
    "shapes": "schedule",
    **dict.fromkeys(("info", "convert"), "graph"),
    **dict.fromkeys(("bound", "verify", "evaluate", "plot"), "solution"),
    **dict.fromkeys(("solvers", "clusters", "generators", "warm-up"), "look_up"),
}

NAMES = tuple(name for commands in PANELS.values() for name in commands)


def _version(wanted: bool) -> None:
    if wanted:
        from placeopt.version import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Find, compare and certify device placements and pipeline schedules of ML computation
    graphs.
    """


def _command(name: str) -> Any:
    """Return the function of a command, whose module is imported now."""
    word = name.replace("-", "_")
    module = importlib.import_module(f".{BESIDE.get(name, word)}", __package__)
    return getattr(module, f"{word}_command")


def _build(arguments: list[str]) -> Any:
    """Register the commands; only the named one is imported, unless help asks for all of them."""
    wanted = next((word for word in arguments if not word.startswith("-")), None)
    app.registered_commands.clear()
    for panel, commands in PANELS.items():
        for name in commands:
            if wanted not in NAMES or wanted == name:
                app.command(name, rich_help_panel=panel)(_command(name))
    return typer.main.get_command(app)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit.

    0 done, 1 a check failed or nothing was found, 2 bad input, 3 a solver contradicts itself, 130
    or 143 interrupted by SIGINT or SIGTERM.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    warnings.formatwarning = _one_line
    with interrupt.signals_handled():
        try:
            with only_json("--json" in arguments):
                code = _build(arguments)(
                    args=arguments, prog_name="placeopt", standalone_mode=False
                )
            sys.stdout.flush()
            if interrupt.received() and interrupt.claim_output():
                print("placeopt: error: interrupted", file=sys.stderr)
            if interrupt.received():  # typer turns KeyboardInterrupt into a code of its own
                code = interrupt.exit_code()
        except KeyboardInterrupt:
            _fail("interrupted", interrupt.exit_code())
        except Exception as error:
            if interrupt.received():  # a library that was being imported says that its own way
                _fail("interrupted", interrupt.exit_code())
            _explain(error, arguments)
    interrupt.leave(code if isinstance(code, int) else 0)


def command() -> NoReturn:
    """Run the command line as a process of its own, which ends at once: taking numba and CP-SAT
    down lasts most of a second.
    """
    _take_any_output()
    os.environ.pop("MPLBACKEND", None)  # pictures need no window, and an unknown one is an error
    try:
        main()
    except SystemExit as ended:
        interrupt.end_process(
            ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        )
    interrupt.end_process(0)


def _take_any_output() -> None:
    """Print to nowhere where an output is closed, and with escapes what its encoding cannot say;
    what libraries print past Python is no JSON.
    """
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    if "--json" in sys.argv and sys.__stdout__ is not None:
        sys.stdout = os.fdopen(os.dup(1), "w", encoding=sys.__stdout__.encoding)
        os.dup2(sys.stderr.fileno(), 1)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _explain(error: Exception, arguments: list[str]) -> None:
    """Say in one line what went wrong and exit; what nobody foresaw is raised again."""
    if isinstance(error, BrokenPipeError):
        print_to_nowhere(sys.stdout)
        sys.exit(0)
    if isinstance(error, InputError):
        _fail(in_options(str(error), _options_of(arguments)))
    if isinstance(error, SolverError):
        _fail(str(error), 3)
    if isinstance(error, MemoryError):
        _fail("out of memory: use a smaller problem or a machine with more memory")
    if isinstance(error, OSError):
        # only the working folder can be missed without a name
        nameless = "working folder" if isinstance(error, FileNotFoundError) else "output"
        _fail(f"{error.filename or nameless}: {error.strerror or error}")
    if sys.stdout.closed or sys.stderr.closed:
        _fail("output: a solver or an objective of yours has closed it")
    if type(error).__name__ == "Abort":
        _fail("interrupted", interrupt.exit_code())
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # typer's own usage errors
        _fail(usage_line(error, arguments, NAMES), error.exit_code)
    if interrupt.received():  # what it has broken off, an import say, may fail in any way
        _fail("interrupted", interrupt.exit_code())
    raise error


def _options_of(arguments: list[str]) -> list[str]:
    """Return the options of the command that is run."""
    command = next((word for word in arguments if word in NAMES), None)
    found = getattr(typer.main.get_command(app), "commands", {}).get(command)
    return [] if found is None else [name for option in found.params for name in option.opts]


def _one_line(message: Warning | str, *_: Any, **__: Any) -> str:
    """Return a warning as it is shown to people."""
    return f"placeopt: warning: {_plain(str(message))}\n"


def _plain(message: str) -> str:
    return " ".join(CONTROL.sub(" ", message).split())


def _fail(message: str, code: int = 2) -> None:
    """Print one line to stderr and exit; an empty one where the help was printed instead."""
    if message and interrupt.may_print():
        print(f"placeopt: error: {_plain(message)}", file=sys.stderr)
    with suppress(OSError, ValueError):  # a full disk, or an output that is closed
        sys.stdout.flush()
    interrupt.leave(code)


_NUMBERS = (
    (r"greater than or equal to (\S+)", "a number of at least {}"),
    (r"valid integer", "a whole number"),
    (r"valid number", "a number"),
    (r"valid boolean", "true or false"),
)
"""What pydantic says of a value that an option does not take, and what to say instead."""


def usage_line(error: Any, arguments: Sequence[str], commands: Sequence[str]) -> str:
    """Return typer's own usage error as one line that names the fix."""
    message = str(error.format_message())
    command = next((word for word in arguments if word in commands), "")
    example = f"; 'placeopt {command} --help' has an example" if command else ""
    if message.startswith("No such command"):
        word = next((word for word in arguments if not word.startswith("-")), "")
        return f"no such command '{word}'; {did_you_mean(word, commands)}"
    if message.startswith("No such option"):
        return f"{command}: {_unknown_option(message)}{example}"
    if found := re.match(r"Missing argument '(\w+)'", message):
        return f"{command}: expected {found[1].upper()}{_meaning(error)}{example}"
    if found := re.match(r"Missing option '(--[\w-]+)'", message):
        return f"{command}: expected {found[1]}{_meaning(error)}{example}"
    if found := re.match(r"Got unexpected extra argument(?:\(s\)|s)? \((.*)\)", message):
        return f"{command}: did not expect '{found[1]}'{example}"
    if found := re.match(r"Invalid value for '(--[\w-]+)'[^:]*: (.*)", message):
        return f"{found[1]}: expected {_expected(found[2])}{_received(found[1], error, arguments)}"
    return f"{command}: {message.rstrip('.')}{example}" if command else message


def in_options(message: str, options: Sequence[str]) -> str:
    """Return an error of the Python API in the words of the command line.

    `memory: expected ...` becomes `--memory: expected ...` where the command has that option, and
    `cluster='4xA100'` becomes `--cluster 4xA100`.
    """
    word, colon, rest = message.partition(": ")
    option = f"--{word.replace('_', '-')}"
    if colon and re.fullmatch(r"[a-z_]+", word) and option in options:
        message = f"{option}: {rest}"
    if "--cluster" in options:
        message = re.sub(r"\bcluster='([^']*)'", r"--cluster \1", message)
    return message


def _unknown_option(message: str) -> str:
    word = re.search(r"(--?[\w-]+)", message)
    known = re.findall(r"--[\w-]+", message.partition("(")[2])
    near = f"; did you mean {' or '.join(known)}?" if known else ""
    return f"no such option {word[1] if word else ''}{near}"


def _meaning(error: Any) -> str:
    meaning = getattr(getattr(error, "param", None), "help", None)
    return f": {str(meaning).rstrip('.')}" if meaning else ""


def _expected(reason: str) -> str:
    for pattern, words in _NUMBERS:
        if found := re.search(pattern, reason):
            return words.format(*found.groups())
    return f"another value ({reason.rstrip('.')})"


def _received(option: str, error: Any, arguments: Sequence[str]) -> str:
    """Return the value that was given for an option, however it was spelled."""
    names = [option, *getattr(getattr(error, "param", None), "opts", ())]
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name in names:
            return f", received '{value if equals else following}'"
    return ""
