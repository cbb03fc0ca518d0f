"""The tables of the pages, by name: each a function from the CSV files to lines of Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from page_tables import (
    behind,
    doppler_graphs,
    engine,
    front_page,
    groupings,
    origins,
    own_systems,
    placement_systems,
    proofs,
    scheduling_systems,
    studies,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from page_tables.source import Source

TABLES: dict[str, Callable[[Source], list[str]]] = {
    **front_page.TABLES,
    **doppler_graphs.TABLES,
    **groupings.TABLES,
    **placement_systems.TABLES,
    **scheduling_systems.TABLES,
    **own_systems.TABLES,
    **studies.TABLES,
    **engine.TABLES,
    **proofs.TABLES,
    **behind.TABLES,
    **origins.TABLES,
}
"""Name: what draws it."""
