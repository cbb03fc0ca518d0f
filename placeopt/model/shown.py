"""What a prompt and a notebook show of an answer: one short line, and a small table."""

from __future__ import annotations

from html import escape


class Shown:
    """Base of what calls return: a short `repr`, and the same as HTML.

    A class says in `shown` what a person wants to know. A dataclass needs `repr=False`, else the
    generated one, with all its arrays, takes the place of this one.
    """

    def shown(self) -> dict[str, str]:
        """Return what to show, by what it is, the name first; empty texts are left out."""
        return {}

    def __repr__(self) -> str:
        name, *rest = (f"{key} {text}".strip() for key, text in self.shown().items() if text)
        return f"<{type(self).__name__} {name}{': ' if rest else ''}{', '.join(rest)}>"

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><th style='text-align:left'>{escape(key)}</th><td>{escape(text)}</td></tr>"
            for key, text in self.shown().items()
            if text
        )
        if not cells:
            return f"<code>{escape(repr(self))}</code>"
        return f"<table><tbody>{cells}</tbody></table>"
