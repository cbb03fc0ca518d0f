"""Keep what torch.export logs and prints about a module that it cannot export off the screen."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def quiet_export() -> Iterator[None]:
    """Silence warnings, logs and prints inside the block; errors are raised as ever."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    nowhere = io.StringIO()
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(nowhere),
            contextlib.redirect_stderr(nowhere),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def export_reason(message: str) -> str:
    """Return why torch.export cannot export a module, with the fix where it is known."""
    first = message.strip().split("\n")[0]
    if "data-dependent" in first:
        return (
            "its control flow depends on the values of tensors; use torch.cond or torch.where "
            f"instead of if ({first})"
        )
    return first
