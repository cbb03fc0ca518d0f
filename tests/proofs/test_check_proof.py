"""The checker of proofs: it accepts every proof of the archive, and refuses what was tampered with
and what is false.
"""

from __future__ import annotations

import csv
import gzip
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "attack"))

import brute_force  # noqa: E402
import case as cases  # noqa: E402
import compare  # noqa: E402
from exact_instances import known_optima  # noqa: E402
from tampering import CHECKER, KINDS, load_checker, plain, tampered, verdict  # noqa: E402

from placeopt.certify.certificate import finished  # noqa: E402
from placeopt.makespan.proof.witness import (  # noqa: E402
    has_no_solution,
    load_witness,
    makespan_witness,
)

PROOFS = ROOT / "results" / "proofs"


checker = load_checker()


def archive():
    """Return the proofs of the archive by name."""
    return {
        p.name: json.loads(gzip.decompress(p.read_bytes()))
        for p in sorted((PROOFS / "archive").glob("*.gz"))
    }


def optima(data):
    """Return the proofs of the published optima, joined with their problems."""
    path = PROOFS / "optima.json.gz"
    if not path.is_file():
        pytest.skip(
            "the proofs of the optima have not been made: python results/proofs/study.py optima"
        )
    kept = json.loads(gzip.decompress(path.read_bytes()))
    for problem, optimum in known_optima(data):
        parts = {key: x for key, x in kept[problem.name].items() if key != "problem_hash"}
        assert kept[problem.name]["problem_hash"] == problem.hash
        yield finished({**parts, "problem": plain(problem)}), optimum


def test_every_proof_of_the_archive_is_accepted():
    """One proof per entry, of its value and its bound, that believes as many statements as its row
    says; only the bound by fronts has to believe any.
    """
    records = json.loads((ROOT / "results" / "best-known.json").read_text())["records"]
    proofs = archive()
    assert len(proofs) == len(records)
    assert sorted((x["value"], x["lower_bound"]) for x in proofs.values()) == sorted(
        (r["value"], r["lower_bound"]) for r in records
    )
    with (ROOT / "results" / "proofs" / "archive.csv").open(newline="") as file:
        noted = {(r["value"], r["bound"]): int(r["believed"]) for r in csv.DictReader(file)}
    for name, data in proofs.items():
        said, believed = checker.check(data)
        assert len(believed) == noted[str(data["value"]), str(data["lower_bound"])], name
        assert bool(believed) == said.endswith(" by front"), name


def test_every_published_optimum_has_a_proof_that_believes_nothing(data):
    """All 139: the schedule has the optimal makespan, and the steps show that none is shorter."""
    count = 0
    for proof, optimum in optima(data):
        assert checker.check(proof)[1] == []
        assert proof["value"] == proof["lower_bound"] == optimum
        count += 1
    assert count == 139


def test_the_command_says_what_was_believed(tmp_path):
    """Exit codes 0, 1 and 2; the believed statement is printed, with its model in the file."""
    name = PROOFS / "archive" / "fft.json.gz"
    broken, nothing = tmp_path / "broken.json", tmp_path / "nothing.json"
    data = json.loads(gzip.decompress(name.read_bytes()))
    broken.write_text(json.dumps(finished({**data, "value": data["value"] - 1})))
    nothing.write_text('{"a": 1, "a": 2}')
    for path, code, words in (
        (name, 0, "hold at most"),
        (broken, 1, "the value is"),
        (nothing, 2, "twice"),
    ):
        run = subprocess.run(
            [sys.executable, "-I", CHECKER, path], capture_output=True, text=True, check=False
        )
        assert (run.returncode, words in run.stdout) == (code, True), run
    assert subprocess.run([sys.executable, "-I", CHECKER], check=False).returncode == 2


def test_a_believed_statement_can_be_repeated():
    """The model written beside the statement on fronts has no solution, as CP-SAT finds again."""
    data = archive()["fft.json.gz"]
    assert [has_no_solution(belief["model"], 60.0, 1) for belief in data["believed"]] == [True]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"a": NaN}',
        '{"a": 1e400}',
        '{"a": 1.0}',
        "[" * 100_000,
        '{"format": "placeopt-proof"}',
        "null",
    ],
)
def test_what_is_no_proof_is_refused(text, tmp_path):
    """Not JSON, not whole numbers, not an object, fields missing: exit code 2 and one line."""
    path = tmp_path / "proof.json"
    path.write_text(text)
    assert checker.main(str(path)) == 2


def test_floats_and_keys_that_occur_twice_are_refused(tmp_path):
    """Also where a lenient reader would accept them."""
    text = gzip.decompress((PROOFS / "archive" / "resnet50.json.gz").read_bytes()).decode()
    path = tmp_path / "proof.json"
    for old, new in (
        ('"slots":1', '"slots":1.0'),
        ('"slots":1', '"slots":1,"slots":1'),
        ('"slots":1', '"slots":NaN'),
    ):
        assert old in text
        path.write_text(text.replace(old, new))
        assert checker.main(str(path)) == 2


def test_what_was_tampered_with_is_refused():
    """A hundred changes of value, bound, witness, placement, schedule and problem, each with a
    digest made anew.
    """
    rng, count, proofs = (
        random.Random(0),
        0,
        [x for x in archive().values() if len(x["problem"]["compute"]) < 200],
    )
    while count < 100:
        kind = KINDS[rng.randrange(len(KINDS))]
        changed = tampered(rng.choice(proofs), kind, rng)
        if changed is not None:
            count += 1
            assert verdict(checker, changed) != "accepted", kind


@pytest.mark.slow
def test_a_thousand_tampered_proofs_are_refused(data):
    """Of the archive and of the published optima, whose proofs have cases."""
    proofs = [*archive().values(), *(proof for proof, _ in optima(data))]
    rng, count = random.Random(1), 0
    while count < 1000:
        changed = tampered(rng.choice(proofs), KINDS[count % len(KINDS)], rng)
        if changed is not None:
            count += 1
            assert verdict(checker, changed) != "accepted"


def test_the_digest_is_checked():
    """A change without a new digest is refused even where the claim stays true."""
    data = archive()["resnet50.json.gz"]
    data["problem"]["name"] = "another"
    assert verdict(checker, data) == "refused"
    assert verdict(checker, finished(data)) == "accepted"


@pytest.mark.parametrize(
    ("key", "value"), [("version", True), ("believed", {}), ("schedule", []), ("witness", None)]
)
def test_entries_of_another_type_are_refused(key, value):
    """Also where they would compare equal: true is not 1, and an empty object no empty list."""
    assert verdict(checker, finished({**archive()["resnet50.json.gz"], key: value})) == "no proof"


# --- against brute force
# --------------------------------------------------------------------------------


def small_problem(seed):
    """Return (case, its optimum by brute force, problem) of a makespan or a period; None where
    there is no solution.
    """
    rng = random.Random(seed)
    case = cases.draw(rng, rng.choice(["makespan", "makespan", "period"]))
    best = brute_force.optimum(case)
    best = best[0] if isinstance(best, tuple) else best
    return None if best is None or not 0 < best < 2**49 else (case, best, compare.problem_of(case))


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_witnesses_prove_no_more_than_brute_force_finds(first):
    """A witness is accepted for its bound, the bound is at most the optimum, and mostly equal to it
    for makespans.
    """
    met = total = 0
    for seed in range(first, first + 20):
        if (drawn := small_problem(seed)) is None:
            continue
        case, best, problem = drawn
        edges = case.objective == "makespan"
        witness = (
            makespan_witness(problem, best, "test", 1.0)
            if edges
            else load_witness(problem, best, "test")
        )
        assert 0 <= witness.bound <= best
        if witness.bound:
            placement = checker.Placement(plain(problem))
            checker.refute(
                checker.Supposition(placement, witness.bound - 1, [], edges),
                witness.content["steps"],
            )
        met += edges and witness.bound == best
        total += edges
    assert met * 2 > total
