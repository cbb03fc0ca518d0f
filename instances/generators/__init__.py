"""Generators: the workloads that papers place, built from their published architecture.

`generate("gen:resnet50?batch=8&training=1")` looks the name up in a table, imports the module that
builds it, and converts the options to the types of the function's keyword arguments. Every
generator is deterministic: same specification, same graph. Random families take `seed`.
"""

from __future__ import annotations

import functools
import inspect
import math
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from placeopt.model.errors import InputError, did_you_mean
from placeopt.model.files import Data
from placeopt.model.graph import OpGraph
from placeopt.model.query import parse_query, typed


class Entry(NamedTuple):
    """One generator: "module:function" in this package, one line about it, and options it fixes."""

    target: str
    summary: str
    fixed: Mapping[str, Any] = {}


_TABLE: dict[str, Entry] = {
    "resnet50": Entry("convolutional:resnet", "ResNet-50 on images", {"depth": 50}),
    "resnet101": Entry("convolutional:resnet", "ResNet-101 on images", {"depth": 101}),
    "resnet152": Entry("convolutional:resnet", "ResNet-152 on images", {"depth": 152}),
    "vgg16": Entry("convolutional:vgg16", "VGG-16 on images"),
    "alexnet": Entry("convolutional:alexnet", "AlexNet on images"),
    "squeezenet": Entry("convolutional:squeezenet", "SqueezeNet 1.0 on images"),
    "inception-v3": Entry(
        "convolutional:inception_v3", "Inception-V3 on images, without the auxiliary head"
    ),
    "densenet121": Entry("convolutional:densenet121", "DenseNet-121 on images"),
    "nasnet-cell": Entry("convolutional:nasnet", "stack of NASNet-A normal and reduction cells"),
    "bert": Entry("transformer:bert", "BERT encoder of any size"),
    "bert-base": Entry("transformer:bert", "BERT-base, 12 layers"),
    "bert-large": Entry(
        "transformer:bert", "BERT-large, 24 layers", {"layers": 24, "hidden": 1024, "heads": 16}
    ),
    "gpt2": Entry("transformer:gpt", "GPT-2 small, 12 layers; any GPT through the options"),
    "gpt3": Entry(
        "transformer:gpt",
        "GPT-3 175B, 96 layers",
        {"layers": 96, "hidden": 12288, "heads": 96, "seq": 2048, "dtype_bytes": 2},
    ),
    "llama": Entry("transformer:llama", "Llama decoder of any size"),
    "llama-7b": Entry("transformer:llama", "Llama-7B, 32 layers"),
    "mt5": Entry("transformer:mt5", "mT5 encoder-decoder, the small size by default"),
    "flava": Entry("transformer:flava", "two-branch vision-language model (FLAVA-like)"),
    "moe": Entry("transformer:moe", "mixture-of-experts decoder layers (Mixtral-like)"),
    "nmt": Entry("recurrent:nmt", "LSTM sequence-to-sequence model with attention, steps unrolled"),
    "gnmt": Entry(
        "recurrent:gnmt", "GNMT: 8 + 8 LSTM layers with residuals and attention, steps unrolled"
    ),
    "rnn-lm": Entry("recurrent:rnn_lm", "LSTM language model, steps unrolled"),
    "chain-mm": Entry("sharded:chain_mm", "sharded chain of matrix products (A B) + (C (D E))"),
    "ffnn": Entry("sharded:ffnn", "sharded feed-forward network"),
    "llama-block": Entry("sharded:llama_block", "sharded Llama attention block"),
    "llama-layer": Entry("sharded:llama_layer", "sharded Llama layer: attention and feed-forward"),
    "layered": Entry("task_graphs:layered", "random layered DAG"),
    "fork-join": Entry("task_graphs:fork_join", "stages of parallel branches that join"),
    "series-parallel": Entry("task_graphs:series_parallel", "random series-parallel DAG"),
    "in-tree": Entry("task_graphs:in_tree", "complete tree towards one sink"),
    "out-tree": Entry("task_graphs:out_tree", "complete tree from one source"),
    "cholesky": Entry("task_graphs:cholesky", "tiled Cholesky factorisation"),
    "lu": Entry("task_graphs:lu", "tiled LU factorisation without pivoting"),
    "fft": Entry("task_graphs:fft", "butterfly of a fast Fourier transform"),
    "stencil": Entry("task_graphs:stencil", "tiles of a stencil swept over time steps"),
    "planted": Entry(
        "planted:planted", "random DAG with a known optimal makespan on k identical devices"
    ),
}

MAX_SIZE = 10**9
"""Largest value of a size option."""

MAX_REPEATS = 10_000
"""Largest number of layers, unrolled steps and other parts that are written down one by one."""

RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(
        (
            "branches",
            "layers",
            "image_layers",
            "text_layers",
            "cells",
            "experts",
            "steps",
            "source",
            "target",
        ),
        (1, MAX_REPEATS),
    ),
    "decoder_layers": (0, MAX_REPEATS),
    "shards": (1, 256),
    "degree": (0, 1000),
    "ccr": (0, MAX_SIZE),
    "spread": (0, 1),
    "parallel": (0, 1),
}
"""Smallest and largest value of an option."""

WORDS = {"detail": ("fine", "coarse"), "contention": ("none", "source")}
"""Words that an option may be."""

MAX_OPS = 2_000_000
"""Largest number of ops of a generated graph."""

MAX_EDGES = 10_000_000
"""Most edges of a generated graph."""

_TRAINING: Data = {"training": False, "optimizer": "adam", "backward_ratio": 2.0}
"""Options that every generator has: see `training_graph`."""


def generator_names() -> tuple[str, ...]:
    """Return the names of all generators, sorted."""
    return tuple(sorted(_TABLE))


def generator_help(name: str) -> tuple[str, Data]:
    """Return one line about a generator and its options with their defaults."""
    entry = _entry(name)
    return entry.summary, {**_options(entry), **_TRAINING}


def generate(spec: str) -> OpGraph:
    """Build the graph that a specification names.

    Parameters
    ----------
    spec : "gen:NAME?option=value&option=value"; the prefix "gen:" may be left out. Options are the
        keyword arguments of the generator and, for each of them, `training=1` (append the backward
        ops), `optimizer` ("adam", "momentum" or "sgd") and `backward_ratio` (for measured times).

    Raises
    ------
    InputError
        If the name, an option or a value is wrong; the message suggests a similar one.
    """
    name, _, query = spec.strip().removeprefix("gen:").partition("?")
    entry = _entry(name)
    defaults = {**_options(entry), **_TRAINING}
    values: Data = dict(entry.fixed)
    for key, text in parse_query(query, f"generator '{name}'").items():
        if key not in defaults:
            raise InputError(
                f"generator '{name}': unknown option '{key}'; {did_you_mean(key, defaults)}"
            )
        values[key] = typed(text, defaults[key], f"generator '{name}': option '{key}'")
    training, optimizer, ratio = (values.pop(key, _TRAINING[key]) for key in _TRAINING)
    function = _load(entry)
    if training and "training" in inspect.signature(function).parameters:
        values["training"] = True
    graph = function(**values, name=name)
    if training:
        from placeopt.instances.training import training_graph

        graph = training_graph(graph, optimizer=optimizer, backward_ratio=ratio)
    return replace(graph, name=f"{name}?{query}") if query else graph


def _entry(name: str) -> Entry:
    name = name.removeprefix("gen:")
    if name not in _TABLE:
        raise InputError(f"unknown generator '{name}'; {did_you_mean(name, sorted(_TABLE))}")
    return _TABLE[name]


def _load(entry: Entry) -> Callable[..., OpGraph]:
    return pkgutil.resolve_name(f"{__package__}.{entry.target}")


def _options(entry: Entry) -> Data:
    """Options of a generator and their defaults; `name` and `training` are not for the user to
    pass.
    """
    parameters = inspect.signature(_load(entry)).parameters.values()
    options = {p.name: p.default for p in parameters if p.name not in ("name", "training")}
    return {key: entry.fixed.get(key, default) for key, default in options.items()}


def built(
    builder: Callable[..., Any],
    limits: dict[str, tuple[float, float]] | None = None,
    **defaults: Any,
) -> Callable[[Callable[..., None]], Callable[..., OpGraph]]:
    """Return a decorator of a generator: it is given a builder of its graph, whose options are
    options of the generator, too, and all of them are checked before it runs.

    A whole number is at least 1, or 0 where that is its default, and at most 10^9; further ranges
    stand in `RANGES`, words in `WORDS`.

    Parameters
    ----------
    builder : its class. limits : ranges of this generator's own, by option.
    defaults : of the builder's options, where the generator has others; None: it has no such
    option.
    """
    parts = [
        part.replace(kind=part.KEYWORD_ONLY, default=defaults.get(part.name, part.default))
        for part in inspect.signature(builder).parameters.values()
    ]
    ranges = RANGES | (limits or {})
    shared = {part.name: part for part in parts if part.default is not None}

    def declare(fill: Callable[..., None]) -> Callable[..., OpGraph]:
        _, *own = inspect.signature(fill).parameters.values()
        usual = {part.name: part.default for part in (*own, *shared.values())}

        @functools.wraps(fill)
        def build(**options: Any) -> OpGraph:
            given = usual | options
            for key, value in given.items():
                least = min(1, usual.get(key, 1)) if isinstance(value, int) else -math.inf
                low, high = ranges.get(key, (least, MAX_SIZE))
                _check_option(given["name"], key, value, low, high)
            b = builder(**{key: given.pop(key) for key in shared})
            fill(b, **given)
            return b.build()  # type: ignore[no-any-return]

        build.__signature__ = inspect.Signature([*own, *shared.values()])  # type: ignore[attr-defined]
        return build

    return declare


def _check_option(name: str, key: str, value: Any, low: float, high: float) -> None:
    """Refuse a number outside its range, or a word that is none of the option's."""
    expected = ""
    if isinstance(value, str):
        words = WORDS.get(key, (value,))
        if value not in words:
            expected, value = f"one of {', '.join(words)}", f"'{value}'"
    elif not isinstance(value, bool) and (value < low or value > high):
        expected = f"at least {low}" if value < low else f"at most {high}"
    if expected:
        raise InputError(f"generator '{name}': option '{key}' expects {expected}, received {value}")


def check_count(name: str, count: int, most: int = MAX_OPS, what: str = "ops") -> None:
    """Refuse graphs that would not fit into memory: helper of the generators."""
    if count > most:
        raise InputError(
            f"generator '{name}': these options make {count} {what}; use at most {most}"
        )
