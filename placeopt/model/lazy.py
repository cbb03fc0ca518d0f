"""Packages whose public names are imported on first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def on_first_use(
    package: str, homes: Mapping[str, str], modules: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], list[str]]:
    """Return the `__getattr__` of a package, and the names that it finds.

    Parameters
    ----------
    homes : the public names, blanks between them, that live in each module of the package.
    modules : by public name the modules that are public themselves.
    """
    inside = modules or {}
    home = {name: module for module, names in homes.items() for name in names.split()}

    def find(name: str) -> Any:
        if name in home:
            value = getattr(import_module(f"{package}.{home[name]}"), name)
        elif name in inside:
            value = import_module(f"{package}.{inside[name]}")
        else:
            raise AttributeError(f"module '{package}' has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    return find, [*home, *inside]
