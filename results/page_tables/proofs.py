"""The tables of results/proofs/README.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from page_tables.source import Source, table

if TYPE_CHECKING:
    from collections.abc import Callable


def claims(source: Source) -> list[str]:
    """What stands behind each "proved", "optimal" and "met" of the front pages."""
    rows = source.rows("proofs/claims.csv")
    return table(
        ["claim", "page", "proofs", "believed"],
        [[r["claim"], r["page"], r["proof"], r["believed"]] for r in rows if not r["note"]],
    )


def families(source: Source) -> list[str]:
    """What the checker says of every committed proof, and of those that were tampered with."""
    rows, tampered = source.rows("proofs/check.csv"), source.rows("proofs/tampering.csv")
    found = []
    for row in rows:
        changed = [x for x in tampered if x["family"] == row["family"]]
        total, accepted = (sum(int(x[key]) for x in changed) for key in ("tampered", "accepted"))
        keys = ("family", "proofs", "accepted", "met", "believed")
        found.append([*(row[key] for key in keys), f"{total - accepted} of {total}"])
    return table(
        [
            "proofs",
            "number",
            "accepted",
            "value and bound equal",
            "statements believed",
            "tampered with, refused",
        ],
        found,
    )


TABLES: dict[str, Callable[[Source], list[str]]] = {
    "proof-claims": claims,
    "proof-families": families,
}
