"""Devices of whole modules and of their parameters, as frameworks take them.

`device-map`: module path -> device, as accelerate's `dispatch_model` and transformers'
`device_map` take it. A module whose ops all share a device is named as a whole, so the map has the
shortest paths. A framework with a map moves the inputs of every named module to its device; what a
module around the named ones computes itself, it computes where the tensors are. So a placement can
be told as a map only where such an op finds its inputs on one device, and a module without modules
inside lies on one device; positions and masks that it makes itself from nothing that is placed are
made where they are read. `--group block` finds placements that can be told so.

An ONNX exporter folds away what it can compute, and the name of a parameter with it. A map without
it is refused by the framework, so such names come beside the file (`parameters`): each goes to the
device of the first op in the nearest module around it.

`jax`: the device of every parameter of a jax model, as `jax.sharding.SingleDeviceSharding`s by
path. A placement says where whole ops run, so a parameter lies on one device: such shardings are
all that it can say (no parameter is cut). What is written is a Python file that needs jax only:
`place(parameters)` puts a tree of parameters, nested as the modules are, on its devices;
`to_device(path, values)` moves activations to a module's device, between functions that are jitted
each for one device.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from placeopt.exports.export import Exported, Job, text_file
from placeopt.model.arrays import by_key
from placeopt.model.errors import InputError
from placeopt.model.files import write_json
from placeopt.programs.calls import Call, Program
from placeopt.programs.onnx_program import is_onnx_program
from placeopt.programs.torch_program import is_torch_program

DeviceOf = dict[str, int]
"""Device by path of a module or a parameter."""


SHOWN = 4
"""Most modules that a refusal names."""

JAX_CODE = '''\
"""Written by placeopt: the device of every module, for jax."""

import jax

DEVICES = {devices!r}
"""Number of the device among jax.devices(), by path of a module; the longest path that a parameter's begins with counts."""


def device_of(path):
    """Return the jax device of a module or a parameter, given its path, such as ("h", "3", "attn", "kernel")."""
    parts = [str(part) for part in path]
    for end in range(len(parts), -1, -1):
        number = DEVICES.get("/".join(parts[:end]))
        if number is not None:
            return jax.devices()[number]
    raise KeyError("/".join(parts))


def shardings(parameters):
    """Return a SingleDeviceSharding for every leaf of a tree of parameters."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: jax.sharding.SingleDeviceSharding(device_of([_name(key) for key in path])), parameters)


def place(parameters):
    """Return the parameters, each on its device."""
    return jax.device_put(parameters, shardings(parameters))


def to_device(path, values):
    """Return activations on the device of a module."""
    return jax.device_put(values, device_of(path.replace(".", "/").split("/")))


def _name(key):
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return getattr(key, attribute)
    return str(key)
'''


def device_map(job: Job) -> Exported:
    """Return the map from module path to device: "cuda:1" as 1, anything else by its name."""
    table = ModuleDevices(job.program, job.home.tolist(), job.parameters, job.constants)
    found = {path: _device(job.devices[device]) for path, device in table.shortest().items()}
    note = (
        f"{table.moved} ops between the modules run where their inputs are, not where the "
        "placement has them"
    )
    return Exported(
        found, {"device_map.json": partial(write_json, data=found)}, (note,) if table.moved else ()
    )


def _device(name: str) -> Any:
    kind, _, number = name.partition(":")
    return int(number) if kind == "cuda" and number.isdecimal() else name


@dataclass
class ModuleDevices:
    """Devices of modules, from those of the calls that they make."""

    program: Program
    home: Sequence[int]  # (num_calls,) device
    parameters: Sequence[str] = ()  # names that the program may not hold
    constants: Collection[int] = ()  # calls that are made wherever they are read

    def __post_init__(self) -> None:
        self.moved = 0
        self.own = {call.module for call in self.program.calls}  # modules that make calls
        self.children: dict[str, set[str]] = {}
        readers = by_key(
            (name, i) for i, call in enumerate(self.program.calls) for name in call.weights
        )
        self.stored = self._stored(readers)
        for path in {
            *self.own,
            *self.program.modules,
            *(name.rpartition(".")[0] for name in readers),
        }:
            for inner, above in pairwise(_outwards(path)):
                self.children.setdefault(above, set()).add(inner)
        # of each module and those inside it: the devices, and the first call that takes time
        self.used: dict[str, set[int]] = {}
        self.first: dict[str, int] = {}
        self._fill()

    def _fill(self) -> None:
        """Fill `used` and `first`."""
        for i, call in enumerate(self.program.calls):
            for path in () if call.free else _outwards(call.module):
                self.used.setdefault(path, set()).add(self.home[i])
                self.first.setdefault(path, i)
        for name, device in self.stored.items():
            for path in list(_outwards(name))[1:]:
                self.used.setdefault(path, set()).add(device)

    def _stored(self, readers: dict[str, list[int]]) -> DeviceOf:
        """Return the device of every stored tensor: that of its first reader in the module that its
        name tells.

        Exporters keep one of several equal tensors, under the name of any of them: where a module
        does not read what bears its name, others do, and it says nothing of this module.
        """
        found = {}
        for name, calls in readers.items():
            owner = name.rpartition(".")[0]
            inside = [
                i for i in calls if f"{self.program.calls[i].module}.".startswith(f"{owner}.")
            ]
            if inside or owner not in self.own:
                found[name] = self.home[(inside or calls)[0]]
        return found

    def shortest(self) -> DeviceOf:
        """Return the device of every module, named by the shortest paths.

        Raises
        ------
        InputError
            If modules are split in a way that no map expresses; they are named.
        """
        found: DeviceOf = {}
        split: list[str] = []
        self._descend("", found, split)
        self._follow_inputs(found, split)
        if split:
            names = list(dict.fromkeys(split))
            shown = ", ".join(f"'{name or '(the model itself)'}'" for name in names[:SHOWN])
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            raise InputError(
                f"device-map: the ops of {shown}{more} are on several devices, which no map of "
                "modules can say; solve again with --group block, or export --to torch"
            )
        return found | {
            name: self._nearest(name) for name in self.parameters if _named(name, found) is None
        }

    def _nearest(self, name: str) -> int:
        """Return the device of the first op in the nearest module around a tensor."""
        around = next((path for path in list(_outwards(name))[1:] if path in self.used), "")
        return self.home[self.first.get(around, 0)]

    def _descend(self, path: str, found: DeviceOf, split: list[str], fallback: int = 0) -> None:
        devices = self.used.get(path, set())
        if len(devices) <= 1:
            found[path] = min(devices, default=fallback)
            return
        inner = self.children.get(path, set())
        if not inner:
            split.append(path)
            return
        for name, device in self.stored.items():  # tensors that the module itself stores
            if name.rpartition(".")[0] == path:
                found[name] = device
        for child in sorted(inner, key=_natural):
            self._descend(child, found, split, min(devices))

    def _follow_inputs(self, found: DeviceOf, split: list[str]) -> None:
        """Find out where ops between the named modules would run, and which could not."""
        actual: list[int] = []
        for i, call in enumerate(self.program.calls):
            named = _named(call.module, found)
            sources = {actual[j] for j in call.inputs if j not in self.constants}
            sources |= {found[name] for name in call.weights if name in found}
            if named is not None:
                actual.append(named)
            elif len(sources) > 1:
                split.append(call.module)
                actual.append(self.home[i])
            else:
                actual.append(min(sources, default=self.home[i]))
                self.moved += not call.free and actual[-1] != self.home[i]


def _outwards(path: str) -> Iterator[str]:
    """Yield a path and those around it, the model's own last."""
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""


def _named(module: str, found: DeviceOf) -> int | None:
    """Return the device of the named module that a module is, or lies in; None if there is none."""
    path = module
    while path not in found:
        if not path:
            return None
        path = path.rpartition(".")[0]
    return found[path]


def _natural(path: str) -> list[Any]:
    """Key that sorts h.2 before h.10."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in path.split(".")]


def jax_shardings(job: Job) -> Exported:
    """Return the number of the device by path of a module; the file makes shardings of them."""
    table = {path.replace(".", "/"): device for path, device in _modules(job).items()}
    text = JAX_CODE.format(devices=table)
    return Exported(table, {"shardings.py": text_file(text)})


def _modules(job: Job) -> DeviceOf:
    """Return the device of every module by path; without the model, the names of the ops tell the
    modules.
    """
    if is_torch_program(job.model) or is_onnx_program(job.model):
        home = job.home.tolist()
        return ModuleDevices(job.program, home, job.parameters, job.constants).shortest()
    problem = job.problem
    calls = [Call(name, "", name.replace("/", "."), ()) for name in problem.op_names]
    return ModuleDevices(
        Program(problem.name, tuple(calls)), job.placement.device.tolist(), job.parameters
    ).shortest()
