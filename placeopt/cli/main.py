"""The typer application and the one place where errors become a line and an exit code."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from typing import Any, NoReturn

import typer

from placeopt.cli import interrupt
from placeopt.cli.usage import in_options, usage_line
from placeopt.model.errors import InputError, SolverError

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
    "Place a model": {
        "info": ("placeopt.cli.info", "info_command"),
        "solve": ("placeopt.cli.solve", "solve_command"),
        "bound": ("placeopt.cli.bound", "bound_command"),
        "verify": ("placeopt.cli.verify", "verify_command"),
        "evaluate": ("placeopt.cli.evaluate", "evaluate_command"),
        "plot": ("placeopt.cli.plot", "plot_command"),
        "profile": ("placeopt.cli.profile", "profile_command"),
        "export": ("placeopt.cli.export", "export_command"),
        "run": ("placeopt.cli.run", "run_command"),
        "convert": ("placeopt.cli.convert", "convert_command"),
    },
    "Pipeline and train": {
        "plan": ("placeopt.cli.plan", "plan_command"),
        "schedule": ("placeopt.cli.schedule", "schedule_command"),
        "shard": ("placeopt.cli.shard", "shard_command"),
    },
    "Serve": {
        "jobs": ("placeopt.cli.jobs", "jobs_command"),
    },
    "Study": {
        "bench": ("placeopt.cli.bench", "bench_command"),
        "report": ("placeopt.cli.bench", "report_command"),
    },
    "Look up and set up": {
        "solvers": ("placeopt.cli.lists", "solvers_command"),
        "clusters": ("placeopt.cli.lists", "clusters_command"),
        "generators": ("placeopt.cli.lists", "generators_command"),
        "shapes": ("placeopt.cli.schedule", "shapes_command"),
        "warm-up": ("placeopt.cli.warm_up", "warm_up_command"),
    },
}
"""Commands by the panel of `placeopt --help` that lists them: module and function of each."""

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


def _build(arguments: list[str]) -> Any:
    """Register the commands; only the named one is imported, unless help asks for all of them."""
    wanted = next((word for word in arguments if not word.startswith("-")), None)
    app.registered_commands.clear()
    for panel, commands in PANELS.items():
        for name, (module, function) in commands.items():
            if wanted not in NAMES or wanted == name:
                command = getattr(importlib.import_module(module), function)
                app.command(name, rich_help_panel=panel)(command)
    return typer.main.get_command(app)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit.

    0 done, 1 a check failed or nothing was found, 2 bad input, 3 a solver contradicts itself, 130
    or 143 interrupted by SIGINT or SIGTERM.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    with interrupt.signals_handled():
        try:
            code = _build(arguments)(args=arguments, prog_name="placeopt", standalone_mode=False)
            sys.stdout.flush()
            if interrupt.received():  # typer turns KeyboardInterrupt into a code of its own
                if interrupt.claim_output():
                    print("placeopt: error: interrupted", file=sys.stderr)
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
    try:
        main()
    except SystemExit as ended:
        interrupt.end_process(
            ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        )
    interrupt.end_process(0)


def _explain(error: Exception, arguments: list[str]) -> None:
    """Say in one line what went wrong and exit; what nobody foresaw is raised again."""
    if isinstance(error, BrokenPipeError):
        # The reader of our output went away (`placeopt ... | head`): nothing is left to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    if isinstance(error, InputError):
        _fail(in_options(str(error), _options_of(arguments)))
    if isinstance(error, SolverError):
        _fail(str(error), 3)
    if isinstance(error, MemoryError):
        _fail("out of memory: use a smaller problem or a machine with more memory")
    if isinstance(error, OSError):
        _fail(f"{error.filename or 'output'}: {error.strerror or error}")
    if type(error).__name__ == "Abort":
        _fail("interrupted", interrupt.exit_code())
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # typer's own usage errors
        _fail(usage_line(error, arguments, NAMES), error.exit_code)
    raise error


def _options_of(arguments: list[str]) -> list[str]:
    """Return the options of the command that is run."""
    command = next((word for word in arguments if word in NAMES), None)
    found = getattr(typer.main.get_command(app), "commands", {}).get(command)
    return [] if found is None else [name for option in found.params for name in option.opts]


def _fail(message: str, code: int = 2) -> None:
    """Print one line to stderr and exit."""
    if interrupt.claim_output() or not interrupt.received():
        print(f"placeopt: error: {' '.join(message.split())}", file=sys.stderr)
    with suppress(OSError):
        sys.stdout.flush()
    interrupt.leave(code)
