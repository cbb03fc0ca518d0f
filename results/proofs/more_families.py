"""Proofs of what the front pages call proved beyond the archive and the published optima: parts of
`study.py`.

Each part makes proofs, has the checker follow them, and writes them into one file, by name.
"""

from __future__ import annotations

import functools
import gzip
import importlib.util
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import placeopt as po
from placeopt.certify.certificate import finished, prove
from placeopt.experiments.studies import data_folder, read_csv
from placeopt.model.files import write_bytes
from placeopt.schedules import schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from exact_instances import doppler  # noqa: E402 - tests/ is no package
from tampering import load_checker, plain  # noqa: E402

Row = dict[str, Any]
DOPPLER = ("chain_mm", "ffnn", "llama_block")
SHAPES = ("V", "K", "X", "M", "NN")
SIZES = (4, 6, 8, 16, 32)
SEEDS = 8


def front_page() -> list[Row]:
    """The README's first example, `onnx:inception_v1` on four A100."""
    problem = po.load("onnx:inception_v1", cluster="4xA100")
    return _kept("front-page", {"inception_v1 on 4xA100": problem}, 120.0)


def doppler_graphs() -> list[Row]:
    """Doppler's graphs on four devices, committed without their problems."""
    problems = {f"{name} 4 devices": doppler(data_folder(), name, 4, "none") for name in DOPPLER}
    return _kept("doppler", problems, 20.0, with_problem=False)


def shardings() -> list[Row]:
    """The models of results/sharding that need no PyTorch, on a mesh of 2 x 4 A100."""
    study, problems = _sharding_study(), {}
    for name, (source, training) in study.MODELS.items():
        if source != "torch":
            graph, _ = study.load_graph(source)
            memory = int(study.MEMORY[name] * 2**30) if name in study.MEMORY else None
            cluster = study.make_cluster(study.CLUSTER)
            model = study.sharding_model(graph, cluster, (2, 4), training=training, memory=memory)
            problems[name] = model.problem
    return _kept("shardings", problems, 60.0)


def _sharding_study() -> Any:
    spec = importlib.util.spec_from_file_location(
        "sharding_study", ROOT / "results" / "sharding" / "study.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pipelines() -> list[Row]:
    """The shapes without a memory cap on 4 and 8 devices, completed to 128 micro-batches, and every
    cell of results/pipeline whose period is the work of a device.
    """
    kept = {}
    for name, problem in _cells():
        found = schedule(problem, seconds=60.0, num_workers=1, latency_seconds=0)
        certificate = po.verify(problem, found, seconds=0.0)
        proof = json.loads(json.dumps(prove(problem, found, certificate)))
        if proof["value"] == proof["lower_bound"]:
            kept[name] = proof
        print(name, proof["value"], proof["lower_bound"], flush=True)
    return _written("pipelines", kept)


def _cells() -> Iterator[tuple[str, Any]]:
    for devices in (4, 8):
        for shape in SHAPES:
            source = f"shape:{shape}?devices={devices}"
            yield f"{shape} on {devices}", po.load_pipeline(source, micro_batches=128)
    for devices in SIZES:
        for row in read_csv(ROOT / "results" / "pipeline" / f"periods{devices}.csv"):
            if row["period"] and float(row["period"]) == float(row["work"]):
                source, capacity = f"shape:{row['shape']}?devices={devices}", int(row["capacity"])
                name = f"{row['shape']} on {devices} at {capacity}"
                yield name, po.load_pipeline(source, memory=capacity)


def _kept(
    family: str, problems: dict[str, Any], seconds: float, with_problem: bool = True
) -> list[Row]:
    """Solve each problem, prove the solution's certificate, and keep the proof."""
    kept = {}
    for name, problem in problems.items():
        for seed in range(SEEDS):  # whether a value meets the bound in time may depend on the seed
            result = po.solve(problem, seconds=seconds, seed=seed)
            if result.status == "optimal":
                break
        certificate = po.verify(
            problem, result.solution, seconds=seconds, queue=result.queue or None
        )
        proof = json.loads(json.dumps(prove(problem, result.solution, certificate)))
        print(name, result.value, proof["lower_bound"], flush=True)
        if not with_problem:
            del proof["problem"], proof["digest"]
            proof["problem_hash"] = problem.hash
        kept[name] = proof
    return _written(family, kept)


def _written(family: str, kept: dict[str, Row]) -> list[Row]:
    content = json.dumps(kept, separators=(",", ":"), sort_keys=True).encode()
    write_bytes(HERE / f"{family}.json.gz", gzip.compress(content, mtime=0))
    proofs_of.cache_clear()
    return checked(family)


@functools.cache
def proofs_of(family: str) -> dict[str, Row]:
    """Return the whole proofs of a file by name, problems joined where they are not in it.

    Without the data that a problem is in, its proof is left out.
    """
    kept = json.loads(gzip.decompress((HERE / f"{family}.json.gz").read_bytes()))
    if family != "doppler":
        return dict(kept)
    if not (data_folder() / "doppler").is_dir():
        return {}
    found = {}
    for name, proof in kept.items():
        problem = doppler(data_folder(), name.split()[0], 4, "none")
        parts = {key: x for key, x in proof.items() if key != "problem_hash"}
        found[name] = finished({**parts, "problem": plain(problem)})
    return found


def checked(family: str) -> list[Row]:
    """Return what the checker says of every proof of a file."""
    checker, rows = load_checker(), []
    for name, proof in proofs_of(family).items():
        claim, believed = checker.check(proof)
        value, bound = proof["value"], proof["lower_bound"]
        rows.append(
            {
                "family": family,
                "instance": name,
                "value": value,
                "bound": bound,
                "met": value == bound,
                "believed": len(believed),
                "claim": claim,
            }
        )
    return rows


FAMILIES = {
    "front-page": front_page,
    "doppler": doppler_graphs,
    "shardings": shardings,
    "pipelines": pipelines,
}
"""By the name of their file; each makes it anew."""
