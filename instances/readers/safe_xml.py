"""XML that cannot bite: no document type, no entities, bounded depth and size.

Entity expansion ("billion laughs") and external entities both need a document type declaration,
which no graph format uses: it is refused at the first byte of it, before anything is expanded.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any, NoReturn
from xml.parsers import expat

from placeopt.model.errors import InputError
from placeopt.model.files import read_bytes

MAX_ELEMENTS = 4_000_000


def parse_xml(path: Path, tag: str, *, max_bytes: int) -> ET.Element:
    """Return the root element of a file; namespaces are dropped from the tags.

    Raises
    ------
    InputError
        If the file is too large, not well-formed, truncated, nested more than 64 deep, or has a
        DOCTYPE or another root than `tag`.
    """
    data = read_bytes(path, max_bytes=max_bytes)
    builder = _Builder()
    parser = expat.ParserCreate(namespace_separator="}")
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = builder.refuse_doctype
    parser.EntityDeclHandler = builder.refuse_doctype
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.tree.data
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        text = expat.errors.messages[error.code]
        kind = (
            "truncated or not well-formed XML"
            if error.code in _TRUNCATED
            else "not well-formed XML"
        )
        raise InputError(f"{kind}: {text} at line {error.lineno} column {error.offset}") from error
    root = builder.tree.close()
    if root.tag != tag:
        raise InputError(f"expected the root element <{tag}>, received <{root.tag[:40]}>")
    return root


_TRUNCATED = {
    expat.errors.codes[message]
    for message in (
        expat.errors.XML_ERROR_NO_ELEMENTS,
        expat.errors.XML_ERROR_UNCLOSED_TOKEN,
        expat.errors.XML_ERROR_PARTIAL_CHAR,
    )
}


class _Builder:
    """Builds the element tree, counting depth and elements."""

    def __init__(self) -> None:
        self.tree = ET.TreeBuilder()
        self.depth = self.count = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.depth += 1
        self.count += 1
        max_depth = 64
        if self.depth > max_depth:
            raise InputError(f"XML nested more than {max_depth} deep at element <{tag[:40]}>")
        if self.count > MAX_ELEMENTS:
            raise InputError(f"more than {MAX_ELEMENTS} XML elements")
        self.tree.start(tag.rsplit("}", 1)[-1], attributes)

    def end(self, tag: str) -> None:
        self.depth -= 1
        self.tree.end(tag.rsplit("}", 1)[-1])

    @staticmethod
    def refuse_doctype(*_: Any) -> NoReturn:
        raise InputError(
            "XML with a document type declaration (DOCTYPE) is refused: it can expand without limit"
        )
