"""Usage errors in the words of the command: what was expected, what was received, what to do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from placeopt.model.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    if colon and re.fullmatch(r"[a-z_]+", word) and f"--{word.replace('_', '-')}" in options:
        message = f"--{word.replace('_', '-')}: {rest}"
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
