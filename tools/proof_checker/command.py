"""The command line: python check_proof.py [--max-bytes N] [--problem FILE] FILE ...

Exit code 0: all claims of all files hold; 1: a statement does not, the first one is printed; 2: a
file is no proof, or the output takes no more. Of several files the largest code counts. A proof
speaks of the problem in its file, whatever that is called: with --problem it has to be the one of
another file, as `placeopt convert` writes it.
"""

import argparse
import sys
from contextlib import suppress

from proof_checker.proof import check
from proof_checker.reading import (
    MAX_BYTES,
    FalseStatementError,
    UnreadableError,
    parse,
    require,
    shown,
    unpacked,
)


def main(name, max_bytes=MAX_BYTES, about=None):
    """Check one file, and that it is about the problem of a file if one is given, and say so;
    return the exit code.
    """
    shows = ascii(str(name))[1:-1]
    try:
        problem = None if about is None else problem_of(unpacked(about, max_bytes))
        claim, believed = check(parse(unpacked(name, max_bytes).decode()), problem)
    except FalseStatementError as error:
        print(f"{shows}: refused, this does not hold: {error}")
        return 1
    except UnreadableError as error:
        print(f"{shows}: no proof: {error}")
        return 2
    except Exception as error:  # not JSON, not UTF-8, nested too deeply, not there
        print(f"{shows}: no proof: {type(error).__name__}: {shown(str(error))[1:-1]}")
        return 2
    print(
        f"{shows}: accepted: {claim}; believed: {'' if believed else 'nothing'}",
        *believed,
        sep="\n  ",
    )
    return 0


def problem_of(content):
    """Return a problem as a proof holds it: without what says how long a tick is."""
    data = parse(content.decode(), str)
    require(type(data) is dict, "--problem: expected the JSON of a problem")
    return {key: x for key, x in data.items() if key not in ("format", "version", "tick_seconds")}


def command():
    """Check the files that the command line names; exit with the largest code."""
    parser = argparse.ArgumentParser(prog="check_proof", description="Check proofs of placeopt.")
    parser.add_argument("files", nargs="+", metavar="FILE", help="a proof: JSON, plain or gzipped")
    said = f"most bytes of a file, unpacked (default {MAX_BYTES})"
    parser.add_argument("--max-bytes", type=int, default=MAX_BYTES, metavar="N", help=said)
    said = "refuse proofs about any other problem than this JSON of placeopt convert"
    parser.add_argument("--problem", metavar="FILE", help=said)
    options = parser.parse_args()
    try:
        code = max(main(name, options.max_bytes, options.problem) for name in options.files)
        print(end="", flush=True)
    except OSError as error:
        print(f"check_proof: cannot say what was found: {error}", file=sys.stderr)
        with suppress(OSError):
            sys.stdout.close()
        code = 2
    sys.exit(code)
