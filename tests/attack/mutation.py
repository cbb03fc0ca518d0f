"""Mutants of a Python file: small edits of its text, each of which is likely to be a fault.

An edit replaces one node of the syntax tree inside a function, or a number that a module names.
Messages, annotations, decorators and docstrings are left alone: they decide nothing.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
SWAPPED = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "any": "all",
    "all": "any",
}
CHECKS = {"demand", "require"}
"""Functions whose first argument is what is checked, and the second one what is said."""


@dataclass(frozen=True)
class Mutant:
    """One edit of a file.

    Attributes
    ----------
    file : path from the root. line : of the edit, from 1. first, last : lines of the statement
    around it, of its head if it has a body. where : the function, by qualified name.
    operator : what kind of edit. before, after : the node's text. number : among equal edits of
    the function, from 0. start, end : bytes of the file that `text` replaces.
    """

    file: str
    line: int
    first: int
    last: int
    where: str
    operator: str
    before: str
    after: str
    number: int
    start: int
    end: int
    text: str

    @property
    def key(self) -> tuple[str, str, str, str, str, str]:
        """What names it, also after edits elsewhere in the file."""
        return self.file, self.where, self.operator, self.before, self.after, str(self.number)

    def share(self, seed: int) -> float:
        """A number in [0, 1) that the seed and the key decide."""
        said = repr((seed, self.key)).encode()
        return int.from_bytes(hashlib.sha256(said).digest()[:8], "big") / 2**64

    def applied(self, source: bytes) -> bytes:
        """Return the file's bytes with the edit."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def mutants_of(root: Path, file: str, seed: int = 0, share: float = 1.0) -> list[Mutant]:
    """Return the share of all mutants of a file that a seed chooses, in the order of its text."""
    source = (root / file).read_bytes()
    found = _Finder(file, source)
    found.visit(ast.parse(source))
    return [m for m in found.numbered() if m.share(seed) < share and compiles(m, source)]


def compiles(mutant: Mutant, source: bytes) -> bool:
    """Return whether an edited file is still Python."""
    try:
        compile(mutant.applied(source), mutant.file, "exec")
    except SyntaxError:
        return False
    return True


class _Finder(ast.NodeVisitor):
    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source = file, source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.names: list[str] = []
        self.functions = 0
        self.made: list[Mutant] = []
        self.lines = (1, 1)

    def numbered(self) -> Iterator[Mutant]:
        """Yield all, numbered among equal edits."""
        seen: Counter[tuple[str, ...]] = Counter()
        for mutant in sorted(self.made, key=lambda m: (m.start, m.end, m.operator, m.text)):
            yield replace(mutant, number=seen[mutant.key])
            seen[mutant.key] += 1

    # --- text
    # --------------------------------------------------------------------------------------------

    def _span(self, node: ast.AST) -> tuple[int, int]:
        first = self.starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        last = self.starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        return first, last

    def _text(self, node: ast.AST) -> str:
        first, last = self._span(node)
        return self.source[first:last].decode()

    def _edit(self, operator: str, node: ast.AST, text: str) -> None:
        first, last = self._span(node)
        self._edit_span(operator, node, first, last, text, self._text(node), text)

    def _edit_span(
        self, operator: str, node: ast.AST, first: int, last: int, text: str, old: str, new: str
    ) -> None:
        line = self.source.count(b"\n", 0, first) + 1
        before, after = (re.sub(r"\s+", " ", said) for said in (old, new))
        where = ".".join(self.names) or "<module>"
        self.made.append(
            Mutant(
                self.file, line, *self.lines, where, operator, before, after, 0, first, last, text
            )
        )

    def visit(self, node: ast.AST) -> None:
        """Keep the lines of the statement that is being looked into."""
        outer = self.lines
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno
            self.lines = node.lineno, max(node.lineno, last or 0)
        super().visit(node)
        self.lines = outer

    # --- where
    # -------------------------------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Look into the body only."""
        self.names.append(node.name)
        self.functions += 1
        self._body(node.body)
        self.functions -= 1
        self.names.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Look into the methods only."""
        self.names.append(node.name)
        for part in node.body:
            if isinstance(part, ast.FunctionDef):
                self.visit(part)
        self.names.pop()

    def _body(self, body: list[ast.stmt]) -> None:
        for part in body:
            docstring = isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)
            if not docstring:
                self.visit(part)

    def visit_Module(self, node: ast.Module) -> None:
        """Look into functions, and into numbers that the module names."""
        for part in node.body:
            if isinstance(part, ast.FunctionDef | ast.ClassDef):
                self.visit(part)
            elif isinstance(part, ast.Assign) and all(
                isinstance(n, ast.expr_context | ast.operator | ast.Constant | ast.BinOp | ast.Name)
                or n is part
                for n in ast.walk(part)
            ):
                for number in ast.walk(part.value):
                    if isinstance(number, ast.Constant):
                        self.visit_Constant(number)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Leave the annotation alone."""
        if node.value is not None:
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Leave what is said alone."""
        if self.functions:
            self._edit("statement removed", node, "pass")

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave what is said alone."""

    # --- operators
    # ---------------------------------------------------------------------------------------

    def visit_Compare(self, node: ast.Compare) -> None:
        """Turn each comparison."""
        left = node.left
        for op, right in zip(node.ops, node.comparators, strict=True):
            first, last = self._span(left)[1], self._span(right)[0]
            old, new = COMPARISONS[type(op)]
            between = self.source[first:last].decode()
            pattern = r"\s+".join(map(re.escape, old.split()))
            text = re.sub(pattern, new, between, count=1)
            said = self._text(left), self._text(right)
            self._edit_span(
                "comparison",
                node,
                first,
                last,
                text,
                f"{said[0]} {old} {said[1]}",
                f"{said[0]} {new} {said[1]}",
            )
            left = right
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Drop a term of a sum."""
        if isinstance(node.op, ast.Add | ast.Sub) and not isinstance(node.left, ast.JoinedStr):
            self._edit("term dropped", node, f"({self._text(node.left)})")
            if isinstance(node.op, ast.Add):
                self._edit("term dropped", node, f"({self._text(node.right)})")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Drop what is added to a name, unless it only counts words."""
        self._edit("term dropped", node, "pass")
        self.visit(node.value)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """Swap `and` and `or` between the first two, and drop each part."""
        texts = [f"({self._text(part)})" for part in node.values]
        old, new = (" and ", " or ") if isinstance(node.op, ast.And) else (" or ", " and ")
        self._edit("and/or", node, f"({new.join(texts)})")
        for i in range(len(texts)):
            self._edit("condition removed", node, f"({old.join(texts[:i] + texts[i + 1 :])})")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """Drop `not`, and the sign."""
        if isinstance(node.op, ast.Not):
            self._edit("condition negated", node, f"({self._text(node.operand)})")
        self.visit(node.operand)

    def _negate(self, test: ast.expr) -> None:
        if not isinstance(test, ast.Compare | ast.UnaryOp):  # these are turned as such
            self._edit("condition negated", test, f"(not ({self._text(test)}))")

    def visit_If(self, node: ast.If) -> None:
        """Negate the condition, and leave the branch out."""
        self._negate(node.test)
        self._edit("condition removed", node.test, "False")
        self.visit(node.test)
        self._body(node.body)
        self._body(node.orelse)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """Take one value or the other one whatever the condition says."""
        self._edit("condition removed", node, f"({self._text(node.body)})")
        self._edit("condition removed", node, f"({self._text(node.orelse)})")
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        """Negate the condition."""
        self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        """Take every element."""
        for test in node.ifs:
            self._edit("condition removed", test, "True")
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """Shift an index, or an end of a slice, by one."""
        index = node.slice
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        for part in parts:
            if isinstance(part, ast.Slice):
                for end in (part.lower, part.upper):
                    if end is not None:
                        self._edit("index shifted", end, f"({self._text(end)}) + 1")
            elif isinstance(part, ast.Constant) and type(part.value) is int:
                self._edit("index shifted", part, str(part.value + 1))
            elif isinstance(part, ast.Name | ast.BinOp) and isinstance(node.ctx, ast.Load):
                self._edit("index shifted", part, f"({self._text(part)}) - 1")
        self.visit(node.value)
        for part in parts:
            if not isinstance(part, ast.Constant):
                self.visit(part)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Add one to an integer; turn a truth value."""
        if type(node.value) is int:
            self._edit("constant", node, str(node.value + 1))
        elif type(node.value) is bool:
            self._edit("constant", node, str(not node.value))

    def visit_Call(self, node: ast.Call) -> None:
        """Swap min and max, any and all; shorten zip and range."""
        name = node.func
        said = name.id if isinstance(name, ast.Name) else getattr(name, "attr", "")
        if said in SWAPPED:
            first, last = self._span(name)
            text = SWAPPED[said]
            whole = self._text(node)
            start = last - len(said)
            after = self._text(name)[: -len(said)] + text + whole[last - first :]
            self._edit_span("min/max", node, start, last, text, whole, after)
        if said == "zip":
            self._edit("zip shortened", node, f"list({self._text(node)})[:-1]")
        if said == "range":
            self._edit("range shortened", node, f"{self._text(node)}[:-1]")
            self._edit("range shortened", node, f"{self._text(node)}[1:]")
        self.visit(node.func)
        for part in node.args[:1] if said in CHECKS else node.args:
            self.visit(part)
        for keyword in node.keywords:
            if keyword.arg not in ("strict", "dtype"):
                self.visit(keyword.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        """Leave a statement out that is called for its effect."""
        if isinstance(node.value, ast.Call | ast.Yield):
            self._edit("statement removed", node, "pass")
        self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Leave an assignment to a member or an element out."""
        if all(isinstance(part, ast.Subscript | ast.Attribute) for part in node.targets):
            self._edit("statement removed", node, "pass")
        self.generic_visit(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        """Go on instead."""
        self._edit("statement removed", node, "pass")

    def visit_Break(self, node: ast.Break) -> None:
        """Go on instead."""
        self._edit("statement removed", node, "pass")

    def visit_Return(self, node: ast.Return) -> None:
        """Leave a return out that others follow: the last line of a function stays."""
        if node.col_offset > 4 * (len(self.names)):
            self._edit("return removed", node, "pass")
        if node.value is not None:
            self.visit(node.value)
