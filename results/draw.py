"""Draw every table of README.md and of the pages in results/ from the committed CSV files.

    python results/draw.py            # redraw all
    python results/draw.py --check    # only say which tables are stale; exits with 1 if one is

What stands between `<!-- table: NAME -->` and `<!-- end of table -->` is drawn by the function that
results/page_tables names NAME; nothing there is written by hand.
"""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path

RESULTS = Path(__file__).resolve().parent
sys.path.insert(0, str(RESULTS))

from page_tables import TABLES  # noqa: E402 - results/ is no package
from page_tables.source import Source  # noqa: E402

BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)


def pages(folder: Path = RESULTS) -> list[Path]:
    """Return README.md, the pages of the studies, and the page of what falls short."""
    above = folder.parent
    return [above / "README.md", *sorted(folder.rglob("README.md")), above / "docs/behind.md"]


def redraw(text: str, source: Source) -> tuple[str, list[str]]:
    """Return a page with its tables drawn anew, and the names of those that differed.

    `recorded` comes last: it says where the rows of the others are from.
    """
    stale: list[str] = []
    source.files.clear()

    def drawn(match: re.Match[str], last: bool) -> str:
        name = match[2]
        if name not in TABLES:
            raise LookupError(f"no table is called '{name}'; known: {', '.join(TABLES)}")
        if (name == "recorded") != last:
            return match[0]
        body = "\n".join(TABLES[name](source)) + "\n"
        if body != match[3]:
            stale.append(name)
        return match[1] + body + match[4]

    for last in (False, True):
        text = BLOCK.sub(partial(drawn, last=last), text)
    return text, stale


def main(arguments: list[str]) -> int:
    """Redraw, or check."""
    check = "--check" in arguments
    source, found = Source(), 0
    for page in pages():
        text = page.read_text(encoding="utf-8")
        new, stale = redraw(text, source)
        for name in stale:
            print(
                f"{page.relative_to(RESULTS.parent)}: table '{name}' is stale"
                + ("" if check else ", drawn anew")
            )
        found += len(stale)
        if stale and not check:
            page.write_text(new, encoding="utf-8")
    return 1 if check and found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
