"""Proofs of the archive and of the published optima: one command makes them, has them checked, and
tampers with them.

    PLACEOPT_DATA=../shared/data python results/proofs/study.py [STAGE ...] [--again]

Stages: check (all committed proofs are checked), tampering (1000 of each family are tampered with),
claims (the table of claims), and those that make proofs: archive (a proof for every entry of results/best-known.json, with its problem; the entry
keeps the bound that the proof shows), optima (for every row of results/exact/optima.csv: placement,
schedule and witness; the problem is joined from PLACEOPT_DATA, which is not ours to redistribute),
front-page, doppler, shardings, pipelines (`more_families.py`: what the front pages call proved).
Each writes a CSV, but for the last four, whose proofs `check` lists; what is there is kept.
`tables.md` is drawn from the tables.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placeopt.certify.certificate import finished, prove, write_proof
from placeopt.certify.verify import verify
from placeopt.experiments.archive import read_archive, write_archive
from placeopt.experiments.cell import unpack_placement
from placeopt.experiments.studies import data_folder, read_csv, row_options, table_of
from placeopt.model.files import write_bytes, write_text
from placeopt.model.result import Budget
from placeopt.solving.registry import make_solver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent), str(ROOT / "tests")]

import claims  # noqa: E402
import more_families  # noqa: E402
from exact_instances import known_optima  # noqa: E402 - tests/ is no package
from tampering import KINDS, load_checker, plain, tampered, verdict  # noqa: E402
from tampering_families import KINDS as KINDS_OF, tampered as tampered_of  # noqa: E402
from whole_tables import record_tables  # noqa: E402

TAMPERED, SEED = 1000, 17
FAMILIES = ("archive", "optima", *more_families.FAMILIES)
VERDICTS = ("refused", "no proof", "accepted")
Row = dict[str, Any]


def archive() -> list[Row]:
    """A proof of every entry of the archive, with its problem; a bound of which the proof shows
    less is lowered to that.
    """
    rows, path = [], ROOT / "results" / "best-known.json"
    records = read_archive(path)
    for key, record in records.items():
        problem, placement = record.load(), unpack_placement(record.placement)
        known = verify(problem, placement, seconds=0.0, queue=record.queue or None)
        claim = replace(known, lower_bound=record.lower_bound, bound_method=record.bound_method)
        name = (
            record.instance.removeprefix("gen:")
            .replace("?", "-")
            .replace("&", "-")
            .replace("=", "")
        )
        rows.append(
            _made(record.instance, problem, placement, claim, HERE / "archive" / f"{name}.json.gz")
        )
        if rows[-1]["bound"] < record.lower_bound:
            records[key] = replace(
                record, lower_bound=rows[-1]["bound"], bound_method="propagation"
            )
    write_archive(path, records)
    return rows


def optima() -> list[Row]:
    """A proof of every published optimum; committed without its problem."""
    rows, kept = [], {}
    for problem, optimum in known_optima(data_folder()):
        result = make_solver("cp-sat").solve(problem, Budget(seconds=60), seed=0)
        assert result.value == optimum, (problem.name, result.value, optimum)
        known = verify(problem, result.solution, seconds=0.0, queue=result.queue)
        claim = replace(known, lower_bound=optimum, bound_method="derivation")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "proof.json.gz"
            rows.append(_made(problem.name, problem, result.solution, claim, path))
            proof = json.loads(gzip.decompress(path.read_bytes()))
        del proof["problem"], proof["digest"]
        kept[problem.name] = {"problem_hash": problem.hash, **proof}
    content = json.dumps(kept, separators=(",", ":"), sort_keys=True).encode()
    write_bytes(HERE / "optima.json.gz", gzip.compress(content, mtime=0))
    return rows


def joined(problem: Any, kept: Row) -> Row:
    """Return a whole proof: what is committed, with the problem."""
    parts = {key: x for key, x in kept.items() if key != "problem_hash"}
    return finished({**parts, "problem": plain(problem)})


def _made(name: str, problem: Any, placement: Any, claim: Any, path: Path) -> Row:
    started = time.process_time()
    proof = prove(problem, placement, claim, seconds=120.0)
    found = time.process_time() - started
    write_proof(path, proof)
    started = time.process_time()
    code = load_checker().main(str(path))
    return {
        "instance": name,
        "ops": problem.num_ops,
        "value": proof["value"],
        "bound": proof["lower_bound"],
        "archived_bound": claim.lower_bound,
        "steps": json.dumps(proof["witness"]).count('["'),
        "cases": json.dumps(proof["witness"]).count('"branch"'),
        "believed": len(proof["believed"]),
        "witness_bytes": len(json.dumps(proof["witness"])),
        "proof_cpu_seconds": round(found, 2),
        "check_cpu_seconds": round(time.process_time() - started, 2),
        "verdict": "accepted" if code == 0 else "refused",
    }


def tampering() -> list[Row]:
    """Proofs of each family, changed; a change that leaves a proof right is not counted."""
    return [row for family in FAMILIES for row in _tampered(family)]


def _tampered(family: str) -> list[Row]:
    """Return a row for each kind of change of TAMPERED changed proofs of a family."""
    checker, proofs, kinds = load_checker(), list(_proofs_of(family)), KINDS_OF.get(family, KINDS)
    rng, count, tried = random.Random(SEED), 0, 0
    verdicts: Counter[tuple[str, str]] = Counter()
    while count < TAMPERED:
        kind, tried = kinds[tried % len(kinds)], tried + 1
        proof = rng.choice(proofs)
        changed = (
            tampered_of(family, proof, kind, rng)
            if family in KINDS_OF
            else tampered(proof, kind, rng)
        )
        if changed is not None:
            count += 1
            verdicts[kind, verdict(checker, changed)] += 1
    return [
        {
            "family": family,
            "kind": kind,
            "tampered": sum(verdicts[kind, x] for x in VERDICTS),
            **{x: verdicts[kind, x] for x in VERDICTS},
        }
        for kind in kinds
    ]


def check() -> list[Row]:
    """What the checker says of every committed proof, a row per file or folder."""
    return [_summary(family, list(_proofs_of(family))) for family in FAMILIES]


def _summary(family: str, proofs: list[Row]) -> Row:
    checker, row = load_checker(), Counter[str]()
    for proof in proofs:
        accepted = verdict(checker, proof) == "accepted"
        row["accepted"] += accepted
        row["met"] += accepted and proof["value"] == proof["lower_bound"]
        row["believed"] += len(proof["believed"])
    return {
        "family": family,
        "proofs": len(proofs),
        "accepted": row["accepted"],
        "met": row["met"],
        "believed": row["believed"],
    }


def _proofs_of(family: str) -> Iterator[Row]:
    known = {"archive": _archived, "optima": _published}
    return known[family]() if family in known else iter(more_families.proofs_of(family).values())


def _archived() -> Iterator[Row]:
    for path in sorted((HERE / "archive").glob("*.gz")):
        yield json.loads(gzip.decompress(path.read_bytes()))


def _published() -> Iterator[Row]:
    kept = json.loads(gzip.decompress((HERE / "optima.json.gz").read_bytes()))
    for problem, _ in known_optima(data_folder()):
        yield joined(problem, kept[problem.name])


STAGES: dict[str, Callable[[], list[Row]]] = {
    "archive": archive,
    "optima": optima,
    **more_families.FAMILIES,
    "check": check,
    "tampering": tampering,
    "claims": claims.rows,
}
DRAWN = ("archive", "optima", "tampering")


def main() -> None:
    """Run stages and draw the tables."""
    given = row_options(__doc__, tuple(STAGES))
    for name in given.stages:
        if name in more_families.FAMILIES:
            if (HERE / f"{name}.json.gz").exists() and not given.again:
                continue
            rows = STAGES[name]()
            print(f"{name}: {sum(row['met'] for row in rows)} of {len(rows)} met")
        else:
            record_tables(HERE, {name: STAGES[name]}, given)
    lines = [
        "# Tables",
        "",
        "Drawn by `study.py` from the CSV files of this folder. See README.md.",
        "",
    ]
    for name in DRAWN:
        stage, rows = STAGES[name], read_csv(HERE / f"{name}.csv")
        lines += [f"## {name}", "", str(stage.__doc__), ""]
        if name == "optima" and rows:
            accepted = sum(row["verdict"] == "accepted" for row in rows)
            believed, cases = (sum(int(row[key]) for row in rows) for key in ("believed", "cases"))
            lines += [
                f"{accepted} of {len(rows)} accepted, {believed} statements believed, {cases} "
                "branches in all.",
                "",
            ]
            rows = sorted(rows, key=lambda row: -int(row["cases"]))[:12]
        if rows:
            lines += [*table_of(rows), ""]
    write_text(HERE / "tables.md", "\n".join(lines))


if __name__ == "__main__":
    main()
