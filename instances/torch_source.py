"""`torch:FILE.py:NAME`: a module of the user's own, with example inputs, from a Python file or an
installed package.

NAME is a function (or a class) without arguments, or an object. It gives the module, or (module,
inputs), or (module, inputs, keyword inputs); inputs are what the module's `forward` takes. The file
is executed: it is the user's own.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from placeopt.model.errors import InputError, MissingExtraError, did_you_mean
from placeopt.model.files import one_line, regular_file

PREFIX = "torch:"


@dataclass(frozen=True, eq=False)
class TorchModel:
    """A module and what it is called with."""

    module: Any
    inputs: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)


def is_torch_source(source: Any) -> bool:
    """Whether a source names a module of the user's own, or is one."""
    return (isinstance(source, str) and source.startswith(PREFIX)) or is_module(source)


def is_module(source: Any) -> bool:
    """Whether an object is a torch module; torch is not imported for that."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(source, torch.nn.Module)


def torch_model(
    source: Any, inputs: Any = None, kwargs: dict[str, Any] | None = None
) -> TorchModel:
    """Return the module of `torch:FILE.py:NAME` (or a module itself) and its inputs.

    Raises
    ------
    InputError
        If there is no such file or name, it fails, or gives something else than a module and its
        inputs.
    MissingExtraError
        If torch is not installed.
    """
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "torch", "reading torch modules") from None
    if isinstance(source, str):
        shown, made = source, _made(source)
    else:
        shown, made = type(source).__name__, source
    parts = tuple(made) if isinstance(made, tuple | list) else (made,)
    if not 1 <= len(parts) <= 3 or not isinstance(parts[0], torch.nn.Module):
        raise InputError(
            f"{shown}: expected a torch.nn.Module, (module, inputs) or (module, inputs, keyword "
            f"inputs), received {type(made).__name__}"
        )
    module, own_inputs, own_kwargs = parts + (None, {})[len(parts) - 1 :]
    inputs = own_inputs if inputs is None else inputs
    if inputs is None:
        raise InputError(
            f"{shown}: the module's example inputs are missing; return (module, inputs), or pass "
            "inputs=(...)"
        )
    given = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    return TorchModel(module, given, dict(kwargs or own_kwargs))


def _made(source: str) -> Any:
    """Return what NAME is, or gives when it is called."""
    place, colon, name = source.removeprefix(PREFIX).rpartition(":")
    if not colon or not place or not name.isidentifier():
        raise InputError(f"{source}: expected torch:FILE.py:NAME or torch:PACKAGE.MODULE:NAME")
    home = _import_file(source, place) if place.endswith(".py") else _import_package(source, place)
    if not hasattr(home, name):
        raise InputError(
            f"{source}: no '{name}' in {place}; "
            f"{did_you_mean(name, [x for x in vars(home) if x[:1] != '_'])}"
        )
    found = getattr(home, name)
    if callable(found) and not is_module(found):
        try:
            return found()
        except Exception as error:
            raise InputError(
                f"{source}: {name}() raised {type(error).__name__}: {one_line(str(error))}"
            ) from error
    return found


def _import_file(source: str, place: str) -> Any:
    path = regular_file(place).resolve()
    title = f"_placeopt_model_{path.stem}_{abs(hash(path))}"
    if title in sys.modules:
        return sys.modules[title]
    spec = importlib.util.spec_from_file_location(title, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{source}: {place} cannot be imported")
    home = importlib.util.module_from_spec(spec)
    sys.modules[title] = home  # classes that are pickled or exported look for their module there
    folder = str(Path(path).parent)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(home)
    except Exception as error:
        del sys.modules[title]
        raise InputError(
            f"{source}: {place} raised {type(error).__name__}: {one_line(str(error))}"
        ) from error
    finally:
        sys.path.remove(folder)
    return home


def _import_package(source: str, place: str) -> Any:
    try:
        return importlib.import_module(place)
    except ImportError as error:
        raise InputError(f"{source}: {place} cannot be imported: {one_line(str(error))}") from error
