"""An ONNX model as one file per part, a manifest, and the runner that runs them.

CUDA devices get the CUDA execution provider with their number, and the CPU behind it; a device of
another name is taken for a CPU.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placeopt.model.errors import InputError, MissingExtraError
from placeopt.model.files import one_line, write_text
from placeopt.programs import onnx_runner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from placeopt.programs.onnx_program import OnnxProgram, Part

EXTERNAL = 2**30
"""A part of more bytes keeps its weights in a file of its own: protobuf ends at 2 GiB."""


def parts_of(
    program: OnnxProgram,
    groups: Sequence[Sequence[int]],
    home: Sequence[int],
    devices: Sequence[str],
) -> tuple[dict[str, Any], dict[str, Callable[[Path], None]]]:
    """Return the manifest and the files of a model cut into groups of calls, in order."""
    parts = program.cut(groups)
    # Two devices may have one name in the framework (two threads of one CPU): the manifest keeps
    # them apart.
    titles = [
        f"{name}#{d}" if devices.count(name) > 1 else name for d, name in enumerate(tuple(devices))
    ]
    files: dict[str, Callable[[Path], None]] = {}
    rows = []
    for i, (part, d) in enumerate(zip(parts, home, strict=True)):
        file = f"part{i:03d}.onnx"
        rows.append(
            {
                "file": file,
                "device": titles[d],
                "inputs": list(part.inputs),
                "outputs": list(part.outputs),
            }
        )
        files[file] = _writer(part)
    manifest = {
        "model": program.program.name,
        "devices": {title: providers(name) for title, name in zip(titles, devices, strict=True)},
        "inputs": list(program.inputs),
        "outputs": list(program.outputs),
        "parts": rows,
    }
    text = json.dumps(manifest, indent=1) + "\n"
    runner = Path(onnx_runner.__file__).read_text(encoding="utf-8")
    files["manifest.json"] = lambda path: _write(path, text)
    files["runner.py"] = lambda path: _write(path, runner)
    return manifest, files


def providers(device: str) -> list[Any]:
    """Return the execution providers of a device, the preferred one first."""
    kind, _, number = device.partition(":")
    if kind == "cuda":
        return [["CUDAExecutionProvider", {"device_id": int(number or 0)}], "CPUExecutionProvider"]
    return ["CPUExecutionProvider"]


def open_runner(folder: Path, threads: int = 0) -> onnx_runner.Runner:
    """Return the runner of a folder.

    Raises
    ------
    InputError
        If onnxruntime cannot load a part.
    MissingExtraError
        If onnxruntime is not installed.
    """
    try:
        import onnxruntime  # noqa: F401
    except ImportError:
        raise MissingExtraError("onnxruntime", "onnxruntime", "running ONNX models") from None
    try:
        return onnx_runner.Runner(folder, threads=threads)
    except OSError:
        raise
    except Exception as error:
        raise InputError(
            f"{folder}: onnxruntime cannot load a part: {one_line(str(error), 200)}"
        ) from error


def _writer(part: Part) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        import onnx

        large = part.proto.ByteSize() > EXTERNAL
        onnx.save(
            part.proto,
            path,
            save_as_external_data=large,
            location=f"{path.name}.data" if large else None,
        )

    return write


def _write(path: Path, text: str) -> None:
    write_text(path, text)
