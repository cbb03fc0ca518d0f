"""The command line: `placeopt COMMAND`, one line and exit code 2 for bad input, never a
traceback.
"""

from __future__ import annotations

from placeopt.cli.main import command, main

__all__ = ["command", "main"]
