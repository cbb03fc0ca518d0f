"""Files: bounded reading, strict JSON, and writing that never leaves half a file behind.

Every reader goes through here, so that a file of the wrong kind, a truncated one or a gigabyte of
nonsense costs one clear line and bounded memory.

CSV as it is written everywhere: commas, line feeds, quotes where they are needed.
"""

from __future__ import annotations

import contextlib
import csv
import gc
import hashlib
import io
import json
import os
import re
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from placeopt.model.errors import CONTROL, InputError, twice_in

Data = dict[str, Any]
"""Values by name: an object of JSON, a row of a table, options."""

TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
"""What words of files and options mean."""

MAX_BYTES = 128 * 2**20
"""Text files larger than this are refused before they are read (a graph of 10^5 ops has about 2^24
bytes)."""

MAX_TOML_BYTES = 2**20
"""Most bytes of a TOML file: the parser is slow."""


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """For readers, which make millions of small objects and no cycles: looking for some takes most
    of the time.
    """
    active = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if active:
            gc.enable()


def is_file(path: str | Path) -> bool:
    """Whether there is a file; False also for what cannot be a path (too long, or with a null
    character).
    """
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def regular_file(path: str | Path, what: str = "file") -> Path:
    """Return `path` as a Path, refusing what is missing, a folder or not a regular file."""
    path = Path(path)
    try:
        folder, there, regular = path.is_dir(), path.exists(), path.is_file()
    except (OSError, ValueError) as error:  # a name too long, or with a null character
        raise InputError(f"{what} '{one_line(str(path))}': {one_line(str(error))}") from error
    if folder:
        raise InputError(f"{what} '{path}': expected a file, received a folder; name a file in it")
    if not there:
        raise InputError(f"{what} '{path}': no such file")
    if not regular:
        raise InputError(f"{what} '{path}': expected a regular file (not a pipe or a device)")
    return path


def read_bytes(path: str | Path, *, max_bytes: int = MAX_BYTES, what: str = "file") -> bytes:
    """Return the content of a file of at most `max_bytes`.

    Raises
    ------
    InputError
        If the file is missing, a folder, unreadable or too large; it is not read in that case.
    """
    path = regular_file(path, what)
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise InputError(
                f"{what} '{path}': {size} bytes, more than the limit of {max_bytes}; "
                "raise it with max_bytes if the file is right"
            )
        with path.open("rb") as stream:
            data = stream.read(max_bytes + 1)
    except OSError as error:
        raise InputError(f"{what} '{path}': cannot be read: {error.strerror or error}") from error
    if len(data) > max_bytes:
        raise InputError(f"{what} '{path}': more than the limit of {max_bytes} bytes")
    return data


def read_text(path: str | Path, *, max_bytes: int = MAX_BYTES, what: str = "file") -> str:
    """Return the UTF-8 text of a file (a byte-order mark is dropped); otherwise like
    `read_bytes`.
    """
    return text_of(read_bytes(path, max_bytes=max_bytes, what=what), f"{what} '{path}'")


def text_of(data: bytes, where: str) -> str:
    """Return bytes as UTF-8 text, without a byte-order mark."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: expected UTF-8 text, received byte {data[error.start]:#04x} "
            f"at offset {error.start}"
        ) from error


def parse_json(text: str, where: str) -> Any:
    """Parse JSON strictly: no NaN, no Infinity, no key twice in an object, and one line that says
    what is wrong.

    `where` is the file, for messages.
    """

    def refuse(constant: str) -> None:
        raise InputError(f"{where}: expected finite numbers, received {constant}")

    def unique(pairs: list[tuple[str, Any]]) -> Data:
        table = dict(pairs)
        if len(table) != len(pairs):
            twice = twice_in(key for key, _ in pairs)
            raise InputError(f"{where}: '{one_line(twice)}' occurs twice; keep one")
        return table

    try:
        return json.loads(text, parse_constant=refuse, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
            text = f"truncated JSON: it ends in the middle (line {error.lineno})"
        else:
            text = f"not valid JSON: {error.msg} at line {error.lineno} column {error.colno}"
        raise InputError(f"{where}: {text}") from error
    except RecursionError as error:
        raise InputError(f"{where}: JSON nested too deeply") from error
    except InputError:
        raise
    except ValueError as error:  # an integer of thousands of digits
        raise InputError(f"{where}: not valid JSON: {one_line(str(error))}") from error


def read_json(path: str | Path, *, max_bytes: int = MAX_BYTES, what: str = "file") -> Any:
    """Return the parsed JSON of a file; see `read_text` and `parse_json`."""
    text = read_text(path, max_bytes=max_bytes, what=what)
    return parse_json(text, f"{what} '{path}'")


def table_beside(module: str, name: str) -> Any:
    """Return the table, in JSON, that stands beside a module, whose `__file__` is given."""
    return json.loads(Path(module).with_name(name).read_text("utf-8"))


def read_toml(path: str | Path, *, what: str = "file") -> Data:
    """Return the table of a TOML file; one line says what is wrong, see `read_text`.

    The parser recurses into nested values and walks dotted keys part by part, so lines of thousands
    of either are refused first.
    """
    text, where = read_text(path, max_bytes=MAX_TOML_BYTES, what=what), f"{what} '{path}'"
    # Most nested or dotted parts of a line: the parser is deep
    max_toml_parts = 1000
    for number, line in enumerate(text.splitlines(), start=1):
        if max(line.count("."), line.count("["), line.count("{")) > max_toml_parts:
            raise InputError(
                f"{where}: line {number}: more than {max_toml_parts} nested or dotted parts"
            )
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise InputError(f"{where}: TOML nested too deeply") from error
    except ValueError as error:  # no TOML, or an integer of thousands of digits
        raise InputError(f"{where} is not valid TOML: {one_line(str(error))}") from error


def first_bytes(path: str | Path, count: int) -> bytes:
    """Return what a file begins with; nothing where it cannot be read, or is a pipe, at which one
    would wait: the reader says what is wrong with it.
    """
    try:
        with regular_file(path).open("rb") as file:
            return file.read(count)
    except (OSError, InputError):
        return b""


def says_format(path: str | Path, name: str, within: int) -> bool:
    """Whether a file says, in its first bytes, that it is a JSON of the format `name`; not where it
    cannot be read.
    """
    head = first_bytes(path, within)
    return re.search(rb'"format"\s*:\s*"' + re.escape(name.encode()) + b'"', head) is not None


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file at once: whoever reads it sees the old content or the new, never a part.

    Folders on the way are made. What UTF-8 cannot hold (half of a character, from a name of a file
    that is no text) is written as JSON escapes it. Raises InputError where the file cannot be
    written.
    """
    return write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: str | Path, data: bytes) -> Path:
    """Write a file at once; see `write_text`. Links, devices and pipes stay what they are."""
    path, temporary = Path(path), None
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return path
        place = Path(os.path.realpath(path))
        place.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(
            prefix=f".{path.name[:64]}.", suffix=".tmp", dir=place.parent
        )
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp is private; a result file is not
        os.replace(temporary, place)
    except BaseException as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        if not isinstance(error, OSError):
            raise
        raise InputError(f"file '{path}': cannot be written: {error.strerror or error}") from error
    return path


def write_json(path: str | Path, data: Any, indent: int | None = 1) -> Path:
    """Write a JSON file at once; see `write_text`."""
    return write_text(path, json.dumps(data, indent=indent, ensure_ascii=False) + "\n")


def digest(data: Mapping[str, Any]) -> str:
    """SHA-256 of plain JSON values in canonical form."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def one_line(text: str, length: int = 80) -> str:
    """Return a text on one line, without control characters, cut to `length`."""
    text = " ".join(CONTROL.sub(" ", text).split())
    return text if len(text) <= length else text[: length - 3] + "..."


def raised(error: BaseException, length: int = 160) -> str:
    """Return the class of an error and what it says, on one line; classes of others may be unable
    to say anything.
    """
    try:
        said = str(error)
    except Exception:
        said = ""
    return one_line(f"{type(error).__name__}: {said}" if said else type(error).__name__, length)


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows, the header first, as the text of a CSV file."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue()


def csv_rows(
    text: str, where: str = "", *, separator: str = ","
) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV, without blanks around cells, each with the line it ends in.

    Raises
    ------
    InputError
        If the text is no CSV; the message begins with `where`.
    """
    blanks = " " in text or "\t" in text
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=separator)
    try:
        for row in reader:
            yield reader.line_num, [cell.strip() for cell in row] if blanks else row
    except csv.Error as error:
        raise InputError(f"{where}line {reader.line_num}: not valid CSV: {error}") from error


def csv_columns(
    text: str, where: str, separator: str = ","
) -> tuple[list[str], list[dict[Any, Any]]]:
    """Return the columns of a CSV text, in small letters, and its rows by column; cells behind the
    last column are under None, those that a row lacks are None.

    Raises
    ------
    InputError
        If it is no CSV, or two columns have one name; the message begins with `where`.
    """
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        names = [str(name or "").strip().lower() for name in reader.fieldnames or ()]
        reader.fieldnames = names
        rows = list(reader)
    except csv.Error as error:
        raise InputError(f"{where}: cannot be read as CSV: {error}") from error
    named = list(filter(None, names))
    if len(set(named)) < len(named):
        raise InputError(f"{where}: column '{twice_in(named)}' is there twice; rename or drop one")
    return names, rows
