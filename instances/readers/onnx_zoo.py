"""The models inside the installed onnx package, by name: `onnx:resnet50`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from placeopt.model.errors import InputError, MissingExtraError, nearest

ALIASES = {
    "alexnet": "bvlc_alexnet",
    "zfnet": "zfnet512",
    "vgg": "vgg19",
    "googlenet": "inception_v1",
}


def list_models() -> dict[str, Path]:
    """Return the files of the models that the onnx package ships, by name, sorted.

    The package itself is not imported. Test models of single ops are left out: only the folder
    "light", wherever the installed version keeps it.
    """
    spec = importlib.util.find_spec("onnx")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("onnx", "onnx", "reading onnx:NAME")
    found: dict[str, Path] = {}
    for folder in spec.submodule_search_locations:
        for path in sorted(Path(folder).glob("backend/test/data/**/light_*.onnx")):
            found.setdefault(path.stem.removeprefix("light_"), path)
    return dict(sorted(found.items()))


def find_model(name: str) -> Path:
    """Return the file of a model by name.

    Raises
    ------
    InputError
        If there is none; the message lists the names.
    """
    models = list_models()
    key = name.strip().lower().replace("-", "_").removeprefix("light_")
    key = key if key in models else ALIASES.get(key, key)
    if key in models:
        return models[key]
    if not models:
        raise InputError(f"onnx:{name}: the installed onnx package brings no models; give a file")
    near = nearest(key, models)
    hint = f"did you mean onnx:{near}? " if near else ""
    raise InputError(
        f"onnx:{name[:60]}: no such model in the onnx package; {hint}known: {', '.join(models)}"
    )
