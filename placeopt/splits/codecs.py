"""JSON of split problems and splits; see `placeopt.io.serialize`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from placeopt.io.serialize import Codec, from_dict, register, to_dict
from placeopt.model.files import says_format
from placeopt.splits.problem import Split, SplitProblem, SplitStage

if TYPE_CHECKING:
    from placeopt.io.body import Body


def holds_split(source: Any) -> bool:
    """Whether a source is a file that says, in its first bytes, that it is a SplitProblem saved by
    placeopt.
    """
    if not isinstance(source, str | Path) or str(source).startswith(("gen:", "onnx:", "torch:")):
        return False
    return says_format(source, "placeopt/split", within=256)


def _encode_problem(problem: SplitProblem) -> dict[str, Any]:
    return {
        "name": problem.name,
        "max_replicas": problem.max_replicas,
        "groups": problem.groups,
        "overlap": problem.overlap,
        "sync": problem.sync.tolist(),
        "uplink": problem.uplink.tolist(),
        "placement": to_dict(problem.placement),
    }


def _decode_problem(body: Body) -> SplitProblem:
    return SplitProblem(
        from_dict(body.get("placement"), "problem", f'{body.where}: "placement"'),
        max_replicas=body.integer("max_replicas", 1),
        groups=body.integer("groups", 1),
        overlap=body.flag("overlap"),
        sync=body.optional_integers("sync"),  # type: ignore[arg-type]
        uplink=body.optional_integers("uplink"),  # type: ignore[arg-type]
        name=body.text("name", ""),
    )


def _encode_split(split: Split) -> dict[str, Any]:
    return {
        "stages": [
            {"ops": list(stage.ops), "devices": list(stage.devices)} for stage in split.stages
        ]
    }


def _decode_split(body: Body) -> Split:
    return Split(
        tuple(
            SplitStage(
                tuple(item.integers("ops").tolist()), tuple(item.integers("devices").tolist())
            )
            for item in body.bodies("stages")
        )
    )


register(Codec("split", SplitProblem, _encode_problem, _decode_problem))
register(Codec("split-stages", Split, _encode_split, _decode_split))
