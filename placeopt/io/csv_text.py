"""CSV as it is written everywhere: commas, line feeds, quotes where they are needed."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows, the header first, as the text of a CSV file."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue()
