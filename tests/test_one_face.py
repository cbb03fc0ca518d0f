"""The commands have one face: grouped in the help, and an option means the same everywhere."""

from __future__ import annotations

import re
from contextlib import contextmanager
from importlib import import_module

import pytest
from typer.testing import CliRunner

from placeopt.cli import common

cli = import_module("placeopt.cli")
NAMES, PANELS = cli.NAMES, cli.PANELS

MODELS = ("info", "solve", "bound", "verify", "evaluate", "plot", "profile", "export", "run")
MODELS = (*MODELS, "convert", "plan", "schedule", "shard")


@pytest.fixture(scope="module")
def commands():
    """Every command as click has it."""
    app = cli._build([])
    return dict(app.commands)


def options(command) -> list:
    """The options of a command that its help shows."""
    return [x for x in command.params if x.param_type_name == "option" and not x.hidden]


def read_as(option) -> str:
    """What an option is read as, in the words of the installed version of typer."""
    described = getattr(option, "type_descriptor", None)
    if described is not None:
        return str(described.annotation).replace("list[str]", str(str))  # repeatable
    return type(option.type).__name__.replace("Range", "")


def test_the_help_lists_every_command_in_its_panel(commands):
    """`placeopt --help` has a panel for each group, in order, and every command is in one."""
    assert set(commands) == set(NAMES)
    shown = CliRunner().invoke(cli.app, ["--help"], env={"COLUMNS": "100"}).output
    places = [shown.index(f" {panel} ") for panel in PANELS]
    assert places == sorted(places)
    for panel, names in PANELS.items():
        part = shown[shown.index(f" {panel} ") :]
        for name in names:
            assert re.search(rf"│ {name} ", part), f"{name} is not listed after {panel}"


def test_a_short_option_stands_for_one_long_option(commands):
    """-o is --out, -t --seconds, ... in every command that has them, and nothing else."""
    meaning: dict[str, str] = {}
    spelled: dict[str, set[str]] = {}
    for name, command in commands.items():
        for option in options(command):
            long = next(x for x in option.opts if x.startswith("--"))
            short = {x for x in option.opts if not x.startswith("--")}
            assert spelled.setdefault(long, short) == short, f"{name} {long}: {short}"
            for letter in short:
                assert meaning.setdefault(letter, long) == long, f"{name}: {letter} is {long}"
    assert meaning["-o"] == "--out"
    assert meaning["-t"] == "--seconds"


def test_an_option_takes_the_same_type_everywhere(commands):
    """Two commands with the same option read it alike."""
    types: dict[str, tuple[str, str]] = {}
    for name, command in commands.items():
        for option in options(command):
            long = next(x for x in option.opts if x.startswith("--"))
            kind = read_as(option)
            other, known = types.setdefault(long, (name, kind))
            assert known == kind, f"{long} is {known} in {other}, {kind} in {name}"


def test_every_command_takes_json_and_models_are_positional(commands):
    """--json is everywhere; a model is the first argument, never an option."""
    for name, command in commands.items():
        assert any("--json" in x.opts for x in options(command)), name
        first = command.params[0] if command.params else None
        if name in MODELS:
            assert first.param_type_name == "argument", name
            assert first.name in ("source", "model"), name


def test_every_command_has_a_summary_and_an_example(commands):
    """The help of a command begins with one sentence and has an example to copy."""
    for name, command in commands.items():
        text = " ".join(command.help.split())
        assert re.match(r"[A-Z][^.]+\.", text), name
        assert "Example" in text, name
        assert f"`placeopt {name}" in text, name


@pytest.mark.parametrize(
    "command",
    [
        "solve gen:fork-join -c uniform:2 -s annealing -t 0.3",
        "schedule shape:V?devices=2 -s repetend -t 5",
        "plan gen:gpt2?layers=2&detail=coarse -c 2xV100 -b 4 -t 1 --runner-ups 0",
        "shard gen:gpt2?layers=1&detail=coarse --mesh 2 -c 2xA100 -t 1",
        "jobs stream:ramp?models=gen:chain-mm&device=A100&jobs=20&beta=2&interval=2 "
        "-p constant-degree --episodes 1",
    ],
    ids=lambda command: command.split()[0],
)
def test_searches_show_incumbent_bound_and_gap(monkeypatch, capsys, command):
    """On a terminal every search says what runs, its incumbent, its bound and its gap."""
    announced, shown = [], []

    @contextmanager
    def progress(quiet):
        assert not quiet
        yield announced.append, shown.append

    monkeypatch.setattr(common, "progress", progress)
    with pytest.raises(SystemExit) as stop:
        cli.main(command.split())
    assert stop.value.code == 0, capsys.readouterr().err
    assert announced
    pattern = r"incumbent \S.* bound \S.* gap [\d.]+ % .*evaluations"
    assert any(re.match(pattern, words) for words in shown), shown
