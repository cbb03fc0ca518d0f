"""Reading: what a file must look like before anything that it says is looked at.

Every number has a range, every list a length, every name an alphabet; a file that deviates is no
proof, whatever it would mean to a lenient reader. Texts of the file are printed as ASCII literals,
so that no file writes lines or escape codes of its own to the terminal.
"""

import gzip
import json
import re

NUMBER = 2**63 - 1
"""Largest number of a problem: they are 64-bit integers."""

SUM = 2**127 - 1
"""Largest number of a claim or a witness. A file has fewer than 2^64 numbers, each of a problem is
below 2^63, so that no sum of them passes this; Python adds and multiplies integers exactly."""

INFINITE = float("inf")
"""What cannot be. It is only compared with and added to integers; no other float exists."""

MAX_BYTES = 2**28
"""Bytes of an unpacked file that are read unless the caller says otherwise: over a thousand times
the largest proof of the archive, and no more than a small machine has room for."""


class UnreadableError(Exception):
    """The file is no proof: a wrong type, a missing field, a number out of range."""


class FalseStatementError(Exception):
    """A statement of the proof does not hold."""


def demand(holds, statement):
    """Refuse the proof unless a statement holds."""
    if not holds:
        raise FalseStatementError(statement)


def require(holds, expected):
    """Refuse the file unless it looks as expected."""
    if not holds:
        raise UnreadableError(expected)


def shown(value):
    """Return a short ASCII text of a value from a file."""
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."


def unpacked(name, max_bytes):
    """Return the bytes of a file, unpacked if it is gzipped; at most `max_bytes` are held."""
    with open(name, "rb") as file:
        zipped = file.peek(2)[:2] == b"\x1f\x8b"
        content = (gzip.GzipFile(fileobj=file) if zipped else file).read(max_bytes + 1)
    too_long = f"expected at most {max_bytes} bytes, unpacked; --max-bytes N allows more"
    require(len(content) <= max_bytes, too_long)
    return content


def parse(text, broken=None):
    """Return the content of a JSON text: no key twice, no numbers but whole ones unless `broken`
    reads others.
    """

    def unique(pairs):
        keys = [key for key, _ in pairs]
        require(len(set(keys)) == len(keys), f"a key occurs twice among {shown(keys)}")
        return dict(pairs)

    def refuse(constant):
        raise UnreadableError(f"expected whole numbers, received {shown(constant)}")

    return json.loads(
        text, object_pairs_hook=unique, parse_constant=refuse, parse_float=broken or refuse
    )


def whole(value, low=0, high=SUM):
    """Return a whole number in low..high."""
    good = type(value) is int and low <= value <= high
    require(good, f"expected a whole number in {low}..{high}, received {shown(value)}")
    return value


def entries(value, length=None):
    """Return a list, of a length if one is given."""
    require(type(value) is list, f"expected a list, received {shown(value)}")
    good = length is None or len(value) == length
    require(good, f"expected a list of {length} entries, received {len(value)}: {shown(value)}")
    return value


def numbers(value, length=None, low=0, high=SUM):
    """Return a list of whole numbers in low..high."""
    return [whole(x, low, high) for x in entries(value, length)]


def table(value, rows, columns, low=0, high=SUM):
    """Return a list of `rows` lists of `columns` whole numbers each; None: of any length."""
    return [numbers(row, columns, low, high) for row in entries(value, rows)]


def distinct(value, size):
    """Return a list of distinct indices below `size`, at least one."""
    found = numbers(value, None, 0, size - 1)
    good = 0 < len(found) == len(set(found))
    require(good, f"expected distinct indices, at least one, received {shown(value)}")
    return found


def pair_of(first, second, size):
    """Return two different indices below `size`."""
    return distinct([first, second], size)


def fields(value, required, optional=""):
    """Return an object that has all required fields, perhaps optional ones, and no others."""
    require(type(value) is dict, f"expected an object, received {shown(value)}")
    needed, allowed = set(required.split()), set(f"{required} {optional}".split())
    missing, unknown = needed - set(value), set(value) - allowed
    require(not missing, f"the fields {sorted(missing)} are missing")
    require(not unknown, f"the fields {shown(sorted(unknown))} are unknown")
    return value


def choice(value, options):
    """Return a text that is one of some."""
    known = options.split()
    require(
        type(value) is str and value in known, f"expected one of {known}, received {shown(value)}"
    )
    return value


def name(value):
    """Return a name of letters, digits and . _ + - that is safe to print."""
    good = type(value) is str and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}", value)
    expected = "expected a name of at most 64 letters, digits and . _ + -"
    require(good, f"{expected}, received {shown(value)}")
    return value


def texts(value, length):
    """Return a list of texts; they are never printed."""
    for x in entries(value, length):
        require(type(x) is str, f"expected a text, received {shown(x)}")
    return value


def words_of(words, least, most=None):
    """Return the words of a step, None for those left out at the end."""
    most = least if most is None else most
    good = least <= len(words) <= most
    require(good, f"expected {least} to {most} words of a step, received {len(words)}")
    return [*words, *[None] * (most - len(words))]
