"""Sources of problems and graphs: a file, a model inside the onnx package, a generator, a module of
the user's own, or a graph itself.

`torch:FILE.py:NAME` is such a module, with example inputs, from a Python file or an installed
package. NAME is a function (or a class) without arguments, or an object. It gives the module, or
(module, inputs), or (module, inputs, keyword inputs); inputs are what the module's `forward` takes.
The file is executed: it is the user's own.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from placeopt.instances.module_groups import group_ops, parse_group
from placeopt.instances.readers import (
    from_exported,
    from_networkx,
    from_torch,
    options_of,
    read_bundled,
)
from placeopt.model.cluster import Cluster
from placeopt.model.errors import InputError, did_you_mean, needed_package
from placeopt.model.files import Data, raised, regular_file, says_format
from placeopt.model.graph import OpGraph
from placeopt.model.problem import PlacementProblem
from placeopt.model.query import without_none
from placeopt.model.sizes import MemoryLimit, device_limits

PREFIX = "torch:"


def load_graph(
    source: Any,
    *,
    format: str | None = None,
    training: bool = False,
    group: str | int | None = None,
    **options: Any,
) -> tuple[OpGraph, Cluster | None]:
    """Return the graph of a source, and the devices that came with it, if any.

    Parameters
    ----------
    source : a file, `onnx:NAME`, `gen:NAME?...`, `torch:FILE.py:NAME`, a torch module (with
    `inputs`), a torch.export.ExportedProgram, a networkx DiGraph or an OpGraph.
    format : reader to use instead of the one detected by content.
    training : derive the backward graph.
    group : "layer", "block" or a number of groups: ops that share a device (see
    `placeopt.instances.module_groups`).
    options : passed to the reader (for ONNX: dims, fuse, fold; for modules: inputs, kwargs).
    """
    parse_group(group)  # refused before anything is read
    if not isinstance(training, bool | np.bool_ | None):
        raise InputError(f"training: expected True or False, received {training!r:.40}")
    graph, cluster = _graph(source, format, training, options)
    return group_ops(graph, group), cluster


def _graph(
    source: Any, format: str | None, training: bool, options: Data
) -> tuple[OpGraph, Cluster | None]:
    asked = {"format": format, **options}
    if isinstance(source, OpGraph):
        _check_options(source.name, asked)
        graph = source
    elif is_torch_source(source):
        model = torch_model(source, options.pop("inputs", None), options.pop("kwargs", None))
        _check_options("torch", {"format": format, **options}, sorted(options_of(from_torch)))
        graph = from_torch(model.module, model.inputs, kwargs=model.kwargs or None, **options)
    elif str(source).startswith("gen:"):
        from placeopt.instances.generators import generate

        _check_options(str(source), asked)
        graph = generate(str(source))
    elif _is_a(source, "torch.export", "ExportedProgram"):
        _check_options("torch", asked, options_of(from_exported))
        graph = from_exported(source, **options)
    elif _is_a(source, "networkx", "Graph"):
        _check_options("networkx", asked, options_of(from_networkx))
        graph = from_networkx(source, **options)
    elif not isinstance(source, str | Path):
        raise InputError(
            "a source is a file, 'onnx:NAME', 'gen:NAME?...', 'torch:FILE.py:NAME', a torch "
            "module or ExportedProgram, a networkx DiGraph or an OpGraph; received "
            f"{type(source).__name__}"
        )
    else:
        # Profiles bring measured backward times: the reader knows whether to use or to derive them.
        return read_bundled(source, format=format, training=training or None, **options)
    if training:
        from placeopt.instances.training import training_graph

        graph = training_graph(graph)
    return graph, None


def _check_options(what: str, options: Data, known: Collection[str] = ()) -> None:
    """Refuse an option that nothing would read."""
    for key, value in options.items():
        if value is not None and key not in known:
            own = "a generator's own stand behind its name (gen:NAME?key=value)"
            hint = did_you_mean(key, known) if known else own
            raise InputError(f"{what}: option '{key}' is not known; {hint}")


def _is_a(source: Any, module: str, name: str) -> bool:
    """Whether an object is of a class of some package, which is not imported for that."""
    found = sys.modules.get(module)
    return found is not None and isinstance(source, getattr(found, name))


def load(
    source: Any,
    cluster: str | Path | Cluster | None = None,
    *,
    objective: str | None = None,
    format: str | None = None,
    training: bool = False,
    memory: str | None = None,
    memory_limit: MemoryLimit | None = None,
    contiguity: str | None = None,
    pipeline: str | None = None,
    slots: int | None = None,
    **options: Any,
) -> PlacementProblem:
    """Return a placement problem: a computation graph on a cluster.

    Parameters
    ----------
    source : a file (reader chosen by content), `onnx:NAME`, `gen:NAME?...`, `torch:FILE.py:NAME`, a
    torch module (with `inputs`), a networkx DiGraph, an OpGraph or a problem saved as JSON.
    cluster : a name such as "4xA100" (see `placeopt clusters`), a TOML file or a Cluster; not
    needed where the
        file carries its own devices.
    objective : "makespan" (default), "period" or "latency".
    training : derive the backward graph first.
    memory_limit : bytes of every device ("16GiB", a number, or one per device) instead of the
    cluster's. A makespan then counts what lives at the peak (memory="peak"), unless `memory` says
    otherwise; a period and a latency, which have no single peak, count resident bytes.
    memory, contiguity, pipeline, slots : see PlacementProblem.
    options : `group` ("layer", "block" or a number: ops that share a device), `costs` (a cost file
    or a profiler's trace: see
        `placeopt.instances.op_cost_file`); the rest is passed to the reader.

    Raises
    ------
    InputError
        If something is unreadable or unknown; one line that says what to change.
    """
    choices = {
        "objective": objective,
        "memory": memory,
        "contiguity": contiguity,
        "pipeline": pipeline,
        "slots": slots,
    }
    fields: Data = without_none(choices)
    source = _saved_problem(source)
    if isinstance(source, PlacementProblem):
        if cluster is not None:
            raise InputError(
                f"problem '{source.name}' has its devices already; leave out cluster='{cluster}'"
            )
        _refuse_graph_options(source, {"training": training, **options})
        return _changed(source, fields, memory_limit)
    costs = options.pop("costs", None)
    graph, bundled = load_graph(source, format=format, training=training, **options)
    devices = devices_for(graph, bundled, cluster, memory_limit)
    if costs is not None:
        graph = with_costs(graph, devices, costs)[0]
    from placeopt.model.cost_model import lower

    problem = lower(graph, devices, **fields)
    return problem if memory_limit is None or memory else _counting_peak(problem)


def _saved_problem(source: Any) -> Any:
    """Return the problem of a file that holds one, and every other source as it is."""
    if isinstance(source, str | Path) and not str(source).startswith(("gen:", "onnx:", "torch:")):
        from placeopt.io.serialize import load as load_json

        if says_format(source, "placeopt/problem", within=4096):
            return load_json(source, "problem")
    return source


def _counting_peak(problem: PlacementProblem) -> PlacementProblem:
    """Return a problem whose limit counts what lives at the peak, where its objective runs once."""
    from placeopt.model.objective import objective_of

    return problem.replace(memory="peak") if objective_of(problem).drawn else problem


def devices_for(
    graph: OpGraph, bundled: Cluster | None, cluster: Any, limit: MemoryLimit | None
) -> Cluster:
    """Return the devices that are named, else those that came with a graph, with the memory of a
    limit.
    """
    from placeopt.instances.clusters import make_cluster

    devices = bundled if cluster is None else make_cluster(cluster)
    if devices is None:
        raise InputError(
            f"graph '{graph.name}' needs devices: give cluster='4xA100' or another "
            "('placeopt clusters' lists them)"
        )
    return devices if limit is None else limited(devices, limit)


def limited(cluster: Cluster, limit: MemoryLimit) -> Cluster:
    """Return a cluster whose devices have the memory of a limit."""
    sizes = device_limits(limit, cluster.num_devices)
    devices = (
        replace(device, memory=size) for device, size in zip(cluster.devices, sizes, strict=True)
    )
    return replace(cluster, devices=tuple(devices))


def _changed(
    problem: PlacementProblem, fields: Data, memory_limit: MemoryLimit | None
) -> PlacementProblem:
    """Return a problem with other fields and another limit on the memory of its devices."""
    if memory_limit is not None:
        fields["capacity"] = np.array(device_limits(memory_limit, problem.num_devices))
    found = problem.replace(**fields) if fields else problem
    return found if memory_limit is None or fields.get("memory") else _counting_peak(found)


def _refuse_graph_options(problem: PlacementProblem, options: Data) -> None:
    """Refuse what is done to a graph where there is none any more."""
    for key, value in options.items():
        if value not in (None, False, "none"):
            raise InputError(
                f"problem '{problem.name}' has its ops and times already; give {key} to the model "
                "it was made from"
            )


def with_costs(graph: OpGraph, cluster: Cluster, costs: Any) -> tuple[OpGraph, str]:
    """Return the graph with the times of a cost file, a trace or an OpCosts, and a line on how they
    are known.
    """
    from placeopt.instances.op_cost_file import OpCosts, apply_costs, read_costs, word_counts

    given = costs if isinstance(costs, OpCosts) else read_costs(costs, graph)
    graph, marks = apply_costs(graph, cluster, given)
    parts = []
    for kind, words in marks.items():
        counts = word_counts(words.values())
        parts.append(f"{kind}: " + ", ".join(f"{count} {word}" for word, count in counts.items()))
    return graph, f"op times ({given.kind} measured): " + "; ".join(parts)


@dataclass(frozen=True, eq=False)
class TorchModel:
    """A module and what it is called with."""

    module: Any
    inputs: tuple[Any, ...]
    kwargs: Data = field(default_factory=dict)


def is_torch_source(source: Any) -> bool:
    """Whether a source names a module of the user's own, or is one."""
    return (isinstance(source, str) and source.startswith(PREFIX)) or is_module(source)


def is_module(source: Any) -> bool:
    """Whether an object is a torch module; torch is not imported for that."""
    return _is_a(source, "torch.nn", "Module")


def torch_model(source: Any, inputs: Any = None, kwargs: Data | None = None) -> TorchModel:
    """Return the module of `torch:FILE.py:NAME` (or a module itself) and its inputs.

    Raises
    ------
    InputError
        If there is no such file or name, it fails, or gives something else than a module and its
        inputs.
    MissingExtraError
        If torch is not installed.
    """
    torch = needed_package("torch", "torch", "reading torch modules")
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
    with _refusing(f"{source}: {place}"):
        home = _import_file(place) if place.endswith(".py") else importlib.import_module(place)
    if not hasattr(home, name):
        raise InputError(
            f"{source}: no '{name}' in {place}; "
            f"{did_you_mean(name, [x for x in vars(home) if x[:1] != '_'])}"
        )
    found = getattr(home, name)
    if not callable(found) or is_module(found):
        return found
    with _refusing(f"{source}: {name}()"):
        return found()


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Refuse what code of the user's own raises, and that it ends the process."""
    try:
        yield
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise InputError(f"{what} raised {raised(error)}") from error


def _import_file(place: str) -> Any:
    path = regular_file(place).resolve()
    title = f"_placeopt_model_{path.stem}_{abs(hash(path))}"
    if title in sys.modules:
        return sys.modules[title]
    spec = importlib.util.spec_from_file_location(title, path)
    assert spec is not None, "Python files have one"
    assert spec.loader is not None
    home = importlib.util.module_from_spec(spec)
    sys.modules[title] = home  # classes that are pickled or exported look for their module there
    folder = str(path.parent)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(home)
    except BaseException:
        del sys.modules[title]
        raise
    finally:
        sys.path.remove(folder)
    return home
