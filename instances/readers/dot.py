"""DOT, the language of Graphviz, in both directions, without Graphviz.

Read: `digraph` with nodes, edge chains, attribute lists, node and edge defaults, subgraphs as
groups of nodes (`{a b} -> c`), quoted, numeric and HTML ids, comments. Undirected graphs are
refused, and so is an edge that is there twice, unless the graph is `strict`, where the first
counts, or the two name different tensors.

References
----------
Gansner, Koutsofios, North and Vo, "A Technique for Drawing Directed Graphs", IEEE Transactions on
Software Engineering 19(3), 1993.
"""

from __future__ import annotations

import itertools
import re
import warnings
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from placeopt.instances.readers.attributes import (
    MAX_ATTRIBUTES,
    AttributeDraft,
    Names,
    edge_attributes,
    op_attributes,
)
from placeopt.model.errors import InputError
from placeopt.model.files import one_line, read_text
from placeopt.model.graph import OpGraph

Attributes = dict[str, str]
"""What is said in brackets."""


_TOKEN = re.compile(
    r"""(?P<space>[\s]+|//[^\n]*|/\*.*?\*/|^\#[^\n]*)
      |(?P<quoted>"[^"\\]*(?:\\.[^"\\]*)*")
      |(?P<arrow>->|--)
      |(?P<mark>[{}\[\];,=:+])
      |(?P<id>-?(?:\.\d+|\d+(?:\.\d*)?)(?![\w])|\w+)
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_ANGLE = re.compile("[<>]")


class Token(NamedTuple):
    """One token; `kind` is "id" for every kind of name, else the mark itself."""

    kind: str
    text: str
    offset: int


def read(path: Path, *, max_bytes: int, **names: Any) -> OpGraph:
    """Read the first digraph of a file; `names` are options as in `Names`."""
    parser = _Parser(read_text(path, max_bytes=max_bytes))
    parser.graph()
    if parser.now.kind != "end":
        warnings.warn(f"{path.stem}: what stands behind the first graph is not read", stacklevel=2)
    title = str(parser.attributes.get("placeopt_name") or parser.name or path.stem)
    seconds = parser.attributes.get("tick_seconds", 1e-9)
    draft = AttributeDraft(title, Names(**names), tick_seconds=seconds)
    for node, (defaults, own, line) in parser.nodes.items():
        draft.add_op(node, {**defaults, **own}, line)
    seen: set[tuple[str, str]] = set()
    for source, target, attributes, line in parser.edges:
        if parser.strict and (source, target) in seen:
            continue
        seen.add((source, target))
        draft.add_edge(source, target, attributes, line)
    return draft.build()


class _Parser:
    """Recursive descent over the grammar of DOT; collects nodes and edges in order of
    appearance.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.newlines = [match.start() for match in re.finditer("\n", text)]
        self.tokens = self._scan()
        self.now = next(self.tokens)
        self.strict, self.name = False, ""
        self.attributes: Attributes = {}
        self.nodes: dict[
            str, tuple[Mapping[str, str], Attributes, int]
        ] = {}  # defaults, own attributes, line
        self.edges: list[tuple[str, str, Attributes, int]] = []
        self.depth = self.products = 0

    # --- tokens ---

    def _scan(self) -> Iterator[Token]:
        at, text = 0, self.text
        while at < len(text):
            if text[at] == "<":
                end = self._html_end(at)
                yield Token("id", text[at:end], at)
                at = end
                continue
            match = _TOKEN.match(text, at)
            if match is None:
                what = "an unterminated string" if text[at] == '"' else f"character {text[at]!r}"
                raise InputError(f"line {self.line(at)}: not valid DOT: {what}")
            kind = match.lastgroup
            if kind == "quoted":
                yield Token("id", _unquote(match.group()), at)
            elif kind == "id":
                yield Token("word", match.group(), at)
            elif kind != "space":
                yield Token(match.group(), match.group(), at)
            at = match.end()
        while True:
            yield Token("end", "", len(text))

    def _html_end(self, at: int) -> int:
        depth = 0
        for match in _ANGLE.finditer(self.text, at):
            depth += 1 if match.group() == "<" else -1
            if depth == 0:
                return match.end()
        raise InputError(f"line {self.line(at)}: not valid DOT: unterminated <...>")

    def line(self, offset: int) -> int:
        return bisect_left(self.newlines, offset) + 1

    def fail(self, expected: str) -> InputError:
        if self.now.kind == "end":
            return InputError(f"truncated DOT: expected {expected} at the end of the file")
        return InputError(
            f"line {self.line(self.now.offset)}: not valid DOT: expected {expected}, "
            f"received '{one_line(self.now.text, 40)}'"
        )

    def take(self, kind: str) -> Token:
        if self.now.kind != kind:
            raise self.fail(f"'{kind}'")
        return self.advance()

    def advance(self) -> Token:
        token, self.now = self.now, next(self.tokens)
        return token

    def accept(self, *kinds: str) -> bool:
        found = self.now.kind in kinds
        if found:
            self.advance()
        return found

    def keyword(self, *words: str) -> bool:
        return self.now.kind == "word" and self.now.text.lower() in words

    def identifier(self) -> str:
        if self.now.kind not in ("id", "word"):
            raise self.fail("a name")
        quoted = self.now.kind == "id"
        text = self.advance().text
        while quoted and self.accept("+"):
            text += self.take("id").text
        return text

    # --- grammar ---

    def graph(self) -> None:
        if self.keyword("strict"):
            self.advance()
            self.strict = True
        if self.keyword("graph"):
            raise InputError("expected a digraph, received an undirected graph")
        if not self.keyword("digraph"):
            raise self.fail("'digraph'")
        self.advance()
        if self.now.kind in ("id", "word"):
            self.name = self.identifier()
        self.block({}, {}, top=True)

    def block(self, node: Attributes, edge: Attributes, top: bool = False) -> list[str]:
        """Parse `{ ... }` and return its nodes; defaults set inside stay inside."""
        self.take("{")
        self.depth += 1
        # Deepest nesting of subgraphs
        max_depth = 50
        if self.depth > max_depth:
            raise InputError(
                f"line {self.line(self.now.offset)}: subgraphs nested more than {max_depth} deep"
            )
        members: dict[str, None] = {}
        while not self.accept("}"):
            if self.accept(";"):
                continue
            if self.keyword("graph", "node", "edge"):
                which = self.advance().text.lower()
                found = self.attribute_lists()
                if which == "node":
                    node = self.bounded({**node, **found})  # a new one: nodes before keep theirs
                elif which == "edge":
                    edge = self.bounded({**edge, **found})
                elif top:
                    self.attributes.update(found)
                continue
            self.statement(node, edge, members, top)
        self.depth -= 1
        return list(members)

    def statement(
        self, node: Attributes, edge: Attributes, members: dict[str, None], top: bool
    ) -> None:
        start = self.now.offset
        group, name = self.end_point(node, edge)
        if name is not None and self.accept("="):
            value = self.identifier()
            if top:
                self.attributes[name] = value
            return
        if name is not None:
            self.add_node(name, node, start)
        groups = [group, *self.further_groups(node, edge)]
        found = self.attribute_lists()
        members.update(dict.fromkeys(itertools.chain(*groups)))
        if len(groups) == 1:
            if name is not None:
                self.nodes[name][1].update(found)
            return
        attributes, line = {**edge, **found}, self.line(start)
        for sources, targets in itertools.pairwise(groups):
            self.connect(sources, targets, attributes, line)

    def further_groups(self, node: Attributes, edge: Attributes) -> Iterator[list[str]]:
        """Parse `-> end point` as often as it comes; yield the nodes of each."""
        while self.now.kind in ("->", "--"):
            if self.now.kind == "--":
                raise self.fail("'->' (the graph is directed)")
            self.advance()
            at = self.now.offset
            group, name = self.end_point(node, edge)
            if name is not None:
                self.add_node(name, node, at)
            yield group

    def connect(
        self, sources: list[str], targets: list[str], attributes: Attributes, line: int
    ) -> None:
        product = len(sources) * len(targets)
        self.products += product if product > 1 else 0
        # Most edges between groups of nodes, of which two stand for their product
        max_product_edges = 500_000
        if self.products > max_product_edges:
            raise InputError(
                f"line {line}: more than {max_product_edges} edges between groups of nodes"
            )
        self.edges += [(u, v, attributes, line) for u in sources for v in targets]

    def end_point(self, node: Attributes, edge: Attributes) -> tuple[list[str], str | None]:
        """Parse a node (its port is dropped) or a subgraph; return its nodes and a node's name."""
        if self.keyword("subgraph"):
            self.advance()
            if self.now.kind in ("id", "word"):
                self.identifier()
            return self.block(node, edge), None
        if self.now.kind == "{":
            return self.block(node, edge), None
        name = self.identifier()
        while self.accept(":"):
            self.identifier()
        return [name], name

    def add_node(self, name: str, defaults: Mapping[str, str], offset: int) -> None:
        if name not in self.nodes:
            self.nodes[name] = (defaults, {}, self.line(offset))

    def bounded(self, attributes: Attributes) -> Attributes:
        if len(attributes) > MAX_ATTRIBUTES:
            raise self.fail(f"at most {MAX_ATTRIBUTES} default attributes")
        return attributes

    def attribute_lists(self) -> Attributes:
        found: Attributes = {}
        while self.accept("["):
            while not self.accept("]"):
                if self.accept(",", ";"):
                    continue
                key = self.identifier()
                found[key] = self.identifier() if self.accept("=") else "true"
        return found


def _unquote(text: str) -> str:
    return re.sub(
        r"\\(\n|.)", lambda m: {"\n": "", "n": "\n"}.get(m[1], m[1]), text[1:-1], flags=re.DOTALL
    )


def write(graph: OpGraph) -> str:
    """Return the DOT text of a graph; `read` gives the same graph back."""
    unit = repr(graph.tick_seconds)
    unit = f'"{unit}"' if "e" in unit else unit
    lines = ["digraph {", f"  graph [placeopt_name={_quote(graph.name)}, tick_seconds={unit}];"]
    for op, row in zip(graph.op_names, op_attributes(graph), strict=True):
        lines.append(f"  {_quote(op)}{_attributes(row)};")
    for u, v, edge in edge_attributes(graph):
        lines.append(
            f"  {_quote(graph.op_names[u])} -> {_quote(graph.op_names[v])}{_attributes(edge)};"
        )
    return "\n".join([*lines, "}", ""])


def _attributes(row: Mapping[str, object]) -> str:
    cells = [
        f"{_quote(key) if ':' in key else key}={_quote(str(value))}" for key, value in row.items()
    ]
    return f" [{', '.join(cells)}]" if cells else ""


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
