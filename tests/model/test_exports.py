"""What is imported on first use is known to checkers of types, as an export."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ["placeopt", "placeopt.schedules", "placeopt.streams"])
def test_checkers_see_every_lazy_export(name):
    """A name is only exported to a strict checker where it is imported under the same name again."""
    module = import_module(name)
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    (block,) = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    aliases = [alias for node in block.body for alias in node.names]
    assert [alias.name for alias in aliases if alias.asname != alias.name] == []
    assert {*module.__all__} - {"SPECS", "__version__"} <= {alias.name for alias in aliases}
    for alias in aliases:
        assert hasattr(module, alias.name)
