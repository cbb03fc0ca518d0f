"""What stands behind each "proved", "optimal" and "met" of README.md and results/README.md: a proof
that the checker accepts, or what is believed, said in the line itself. A part of `study.py`.

`SUPPORT` lists them; `rows` goes through the pages and refuses a line that makes such a claim and is
not listed, a line without a proof that does not say "believed", and a listed claim that no page
makes any more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FRONT, RESULTS = "README.md", "results/README.md"
WORDS = re.compile(r"\b(proved|proves|proof|proven|optimal|optimum|met)\b")
"""Words that make a line one to look at."""

Row = dict[str, str]


@dataclass(frozen=True)
class Support:
    """A claim of a page and what stands behind it.

    Attributes
    ----------
    pattern : found in the lines of the page that make the claim.
    proofs : files below results/proofs that hold its proofs; empty: `believed` says what is
    believed, and so do the lines.
    nothing : why the lines claim nothing of a solution, "" where they do.
    """

    page: str
    claim: str
    pattern: str
    proofs: tuple[str, ...] = ()
    believed: str = ""
    nothing: str = ""


OPTIMA, DOPPLER, PIPELINES = "optima.json.gz", "doppler.json.gz", "pipelines.json.gz"
INCEPTION, SHARDINGS = "front-page.json.gz", "shardings.json.gz"
HEADER = "the head of a table"

SUPPORT = (
    Support(
        FRONT,
        "inception_v1 on four A100 is optimal at 425.6 us",
        r"^portfolio \*|^proven lower bound: 425|^The search stopped because it proved"
        r"|proved in the second run|^optimal: makespan|^proven lower bound 425"
        r"|^proof: out/proof.json shows",
        (INCEPTION,),
    ),
    Support(FRONT, "139 makespans of small task graphs", r"139 proved", (OPTIMA,)),
    Support(FRONT, "Doppler's Llama block", r"Doppler's Llama block.*141.39, proved", (DOPPLER,)),
    Support(
        FRONT,
        "latency of ResNet-50's layers",
        r"^\| latency of ResNet-50's",
        believed="the bound by flows over paths (placeopt.latency.bounds.flow)",
    ),
    Support(
        FRONT,
        "period of BERT-12's operators, any split",
        r"^\| BERT-12's operators",
        believed="prices of sets (placeopt.period.bounds.covering, closing)",
    ),
    Support(
        FRONT,
        "repetends of the shapes without a memory cap",
        r"`repetend` proves them minimal",
        (PIPELINES,),
    ),
    Support(
        FRONT,
        "optimal pipeline split",
        r"^\| optimal pipeline split of GNMT",
        nothing="names what is looked for; results/README.md says what is believed of it",
    ),
    Support(
        FRONT,
        "what the package does",
        r"and a proven lower bound beside every result|the best bound that can be proved"
        r"|^writes this file and gets a certificate|^A proof is one file"
        r"|--proof out/proof.json|^A proof travels|check_proof.py out/proof.json"
        r"|^out/proof.json: accepted|^\[docs/proofs.md\]|^\| a proven lower bound"
        r"|`repetend` \(with proof\)|and a bound is a proof about|proofs that take minutes run",
        nothing="what commands do, not of a solution; the output of the example is the claim above",
    ),
    Support(
        RESULTS,
        'heads "proven bound" and names of methods',
        r"^\| (claim|mean of the runs|what|period of) \|.*proven bound|^\| makespan / proven bound",
        nothing=HEADER,
    ),
    Support(
        RESULTS,
        'what "proved" means on this page',
        r'^"Proved", "optimal" and "met" have a proof|believed; of other bounds'
        r"|^what is believed where|\[(exact|sharding|proofs)\]\(.*\?",
        nothing="the rule, and the questions of the studies",
    ),
    Support(
        RESULTS,
        "optimal pipelines of ideals",
        r"^\| optimal pipeline of ideals",
        believed="the dynamic program over ideals (solvers/exact)",
    ),
    Support(
        RESULTS,
        "splits without contiguity: 8 of 10",
        r"^\| splits without contiguity",
        believed="prices of sets, CP-SAT; in the column of what was run here, CP-SAT",
    ),
    Support(
        RESULTS,
        "what is not proved",
        r"^- Splits without contiguity: 2 of 10 are not proved|^- Not proved:",
        nothing="says what is open",
    ),
    Support(
        RESULTS,
        "latency of one sample: 5 of 5",
        r"^\| latency of one sample",
        believed="the bound by flows over paths",
    ),
    Support(
        RESULTS,
        "repetends of the shapes without a memory cap, 4 and 8 devices",
        r"^\| search for a repetend|^\| the same on 8 devices",
        (PIPELINES,),
    ),
    Support(
        RESULTS,
        "minimum periods under a memory cap",
        r"^\| minimum period under a memory cap|^\| the same on 16 devices",
        (PIPELINES,),
        "CP-SAT, where the period is above the work of every device and where nothing fits",
    ),
    Support(
        RESULTS,
        "Doppler's chain, FFNN and Llama block",
        r"^\| makespans of the chain|The optimum is 37.6 %",
        (DOPPLER,),
    ),
    Support(
        RESULTS,
        "a planner's inputs: values met, and where nothing fits",
        r"^\| a published multidimensional planner's",
        believed="the search over ideals (solvers/planning)",
    ),
    Support(
        RESULTS,
        "shardings of a Llama layer and GPT-2",
        r"^\| Llama layer, GPT-2, and both in training",
        (SHARDINGS,),
    ),
    Support(RESULTS, "139 makespans of small task graphs", r"^\| makespans of small", (OPTIMA,)),
)


def claims(page: str) -> list[str]:
    """Return the lines of a page that use one of the words."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if WORDS.search(line)]


def wrong(page: str, lines: list[str]) -> list[str]:
    """Return what is wrong with lines that make claims, in words."""
    found = []
    for line in lines:
        behind = [x for x in SUPPORT if x.page == page and re.search(x.pattern, line)]
        if not behind:
            found.append(
                f"{page}: nothing is listed behind '{line[:100]}'; see results/proofs/claims.py"
            )
        elif not any(x.nothing or x.proofs for x in behind) and "believed" not in line:
            found.append(f"{page}: without a proof, and it does not say 'believed': '{line[:100]}'")
        elif any(x.proofs and x.believed for x in behind) and "believed" not in line:
            found.append(f"{page}: not all is proved, and it does not say so: '{line[:100]}'")
    return found


def rows() -> list[Row]:
    """Return the table.

    Raises
    ------
    ValueError
        If a line makes a claim that is not listed, or a listed one is made no more.
    """
    pages = {page: claims(page) for page in (FRONT, RESULTS)}
    problems = [text for page, lines in pages.items() for text in wrong(page, lines)]
    for x in SUPPORT:
        if not any(re.search(x.pattern, line) for line in pages[x.page]):
            problems.append(f"{x.page}: no line makes the claim '{x.claim}' any more")
        problems += [f"{name} is missing" for name in x.proofs if not _file(name).exists()]
    if problems:
        raise ValueError("\n".join(problems))
    return [
        {
            "claim": x.claim,
            "page": x.page,
            "proof": ", ".join(x.proofs) or "-",
            "believed": x.believed or ("nothing" if x.proofs else "-"),
            "note": x.nothing,
        }
        for x in SUPPORT
    ]


def _file(name: str) -> Path:
    return ROOT / "results" / "proofs" / name


__all__ = ["SUPPORT", "claims", "rows", "wrong"]
