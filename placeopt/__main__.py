"""`placeopt` and `python -m placeopt` are the command line: signals are handled before anything
else is imported.
"""

import os
import signal
from types import FrameType


def _leave(number: int, frame: FrameType | None) -> None:
    """End with one line while the command line is still being imported."""
    os.write(2, b"placeopt: error: interrupted\n")
    os._exit(128 + number)


def main() -> None:
    """Run the command line as a process of its own."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    from placeopt.cli import command

    command()


if __name__ == "__main__":
    main()
