"""Runs the parts of an ONNX model that `placeopt export --to onnxruntime` wrote. Needs onnxruntime
and numpy only.

    from runner import Runner
    results = Runner(".").run({"x": x})          # a dict of the model's results by name

A thread per device runs the ready part that comes first, as soon as its inputs are there; a part is
one ONNX file. From the command line, `python runner.py inputs.npz results.npz`. This file is copied
beside the parts and stands alone.
"""

from __future__ import annotations

import heapq
import json
import os
import sys
import threading
import time
from typing import Any


class Runner:
    """The parts of a model, loaded.

    Parameters
    ----------
    folder : where manifest.json is; by default this file's.
    providers : execution providers by device, in place of those of the manifest.
    threads : threads inside an operator, for every part on a CPU; 0 lets onnxruntime choose.
    """

    def __init__(
        self, folder: Any = None, providers: dict[str, Any] | None = None, threads: int = 0
    ) -> None:
        import onnxruntime

        folder = os.path.dirname(os.path.abspath(__file__)) if folder is None else str(folder)
        with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as file:
            self.manifest = json.load(file)
        self.devices = list(self.manifest["devices"])
        wanted = {**self.manifest["devices"], **(providers or {})}
        present = set(onnxruntime.get_available_providers())
        self.providers = {
            device: [x for x in rows if _name(x) in present] or ["CPUExecutionProvider"]
            for device, rows in wanted.items()
        }
        self.missing = sorted({_name(x) for rows in wanted.values() for x in rows} - present)
        self.parts = self.manifest["parts"]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        if threads:
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.sessions = [
            onnxruntime.InferenceSession(
                os.path.join(folder, part["file"]),
                options,
                providers=self.providers[part["device"]],
            )
            for part in self.parts
        ]
        self.times: list[
            tuple[float, float]
        ] = []  # (start, finish) of every part of the last run, seconds since its beginning

    def run(self, feeds: dict[str, Any]) -> dict[str, Any]:
        """Return the results by name for inputs by name."""
        missing = [name for name in self.manifest["inputs"] if name not in feeds]
        if missing:
            raise ValueError(
                f"input '{missing[0]}' is missing; the model takes "
                f"{', '.join(self.manifest['inputs'])}"
            )
        return _Run(self, feeds).results()


def _name(provider: Any) -> str:
    return provider if isinstance(provider, str) else str(provider[0])


class _Run:
    """One execution: what is there, what waits, and for whom."""

    def __init__(self, runner: Runner, feeds: dict[str, Any]) -> None:
        self.runner, self.values = runner, dict(feeds)
        self.error: Exception | None = None
        parts = runner.parts
        self.waiting = [sum(name not in self.values for name in part["inputs"]) for part in parts]
        self.readers: dict[str, list[int]] = {}
        for i, part in enumerate(parts):
            for name in part["inputs"]:
                self.readers.setdefault(name, []).append(i)
        self.ready: dict[str, list[int]] = {device: [] for device in runner.devices}
        for i, part in enumerate(parts):
            if not self.waiting[i]:
                heapq.heappush(self.ready[part["device"]], i)
        self.left, self.changed = len(parts), threading.Condition()
        self.times = [(0.0, 0.0)] * len(parts)

    def results(self) -> dict[str, Any]:
        """Run all parts and return the model's results."""
        self.began = time.perf_counter()
        threads = [
            threading.Thread(target=self._work, args=(device,), daemon=True)
            for device in self.runner.devices
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.error is not None:
            raise self.error
        self.runner.times = self.times
        return {name: self.values[name] for name in self.runner.manifest["outputs"]}

    def _work(self, device: str) -> None:
        """Run the parts of a device until nothing is left."""
        try:
            while (i := self._next(self.ready[device])) is not None:
                part = self.runner.parts[i]
                feeds = {name: self.values[name] for name in part["inputs"]}
                start = time.perf_counter() - self.began
                made = self.runner.sessions[i].run(part["outputs"], feeds)
                self.times[i] = (start, time.perf_counter() - self.began)
                self._deliver(part["outputs"], made)
        except Exception as error:  # every thread has to end
            with self.changed:
                self.error = self.error or error
                self.changed.notify_all()

    def _next(self, queue: list[int]) -> int | None:
        """Wait for the first part of a queue; None when the run is over."""
        with self.changed:
            self.changed.wait_for(lambda: queue or self.error or not self.left)
            return heapq.heappop(queue) if queue and not self.error else None

    def _deliver(self, names: list[str], values: list[Any]) -> None:
        with self.changed:
            self.left -= 1
            self.values.update(zip(names, values, strict=True))
            for j in [j for name in names for j in self.readers.get(name, ())]:
                self.waiting[j] -= 1
                if not self.waiting[j]:
                    heapq.heappush(self.ready[self.runner.parts[j]["device"]], j)
            self.changed.notify_all()


def main(arguments: list[str]) -> None:
    """Run the model beside this file on the arrays of an .npz file."""
    import numpy

    if len(arguments) != 2:
        raise SystemExit("usage: python runner.py inputs.npz results.npz")
    with numpy.load(arguments[0]) as file:
        results = Runner().run({name: file[name] for name in file.files})
    numpy.savez(arguments[1], **results)


if __name__ == "__main__":
    main(sys.argv[1:])
