"""Every "proved", "optimal" and "met" of the front pages has a proof, or says what is believed."""

from __future__ import annotations

import csv
import random
import sys
from pathlib import Path

import pytest
from tampering import load_checker, verdict
from tampering_families import KINDS, tampered

PROOFS = Path(__file__).resolve().parents[2] / "results" / "proofs"
sys.path.insert(0, str(PROOFS))

import claims  # noqa: E402
import more_families  # noqa: E402

from placeopt.experiments.studies import ORIGIN  # noqa: E402


def test_no_claim_is_without_a_proof_or_a_belief():
    """The pages as they are: every line is listed, and the table is that of the list."""
    rows = claims.rows()
    with (PROOFS / "claims.csv").open(newline="", encoding="utf-8") as file:
        table = [{k: x for k, x in row.items() if k not in ORIGIN} for row in csv.DictReader(file)]
    assert table == rows


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("| a new graph | - | - | 17, proved optimal |", "nothing is listed"),
        (
            "| latency of ResNet-50's layers on 14 | - | 1156.88, proved optimal |",
            "without a proof",
        ),
        ("| minimum period under a memory cap | 94 proved | met |", "not all is proved"),
        ("| a table | value and bound are met |", "nothing is listed"),
    ],
)
def test_a_claim_that_is_not_listed_is_found(line, says):
    """A line that claims more than the list knows fails the test above."""
    page = "results/README.md" if "minimum" in line else "README.md"
    assert says in claims.wrong(page, [line])[0]


@pytest.mark.parametrize("family", sorted(more_families.FAMILIES))
def test_committed_proofs_are_accepted(family):
    """Every proof of the files that the claims name: accepted, value and bound equal, nothing
    believed.
    """
    proofs = more_families.proofs_of(family)
    if not proofs:
        pytest.skip("the problems are not here: PLACEOPT_DATA")
    for name, proof in proofs.items():
        assert verdict(load_checker(), proof) == "accepted", name
        assert (proof["value"], proof["believed"]) == (proof["lower_bound"], []), name


@pytest.mark.parametrize(("family", "kind"), [(f, k) for f, kinds in KINDS.items() for k in kinds])
def test_tampered_proofs_are_refused(family, kind):
    """A few of what `results/proofs/study.py` does a thousand times."""
    name = {"pipelines": "V on 4 at 4", "shardings": "llama layer"}[family]
    proof, rng, seen = more_families.proofs_of(family)[name], random.Random(kind), 0
    for _ in range(12):
        changed = tampered(family, proof, kind, rng)
        if changed is not None:
            assert verdict(load_checker(), changed) != "accepted"
            seen += 1
    assert seen > 3
