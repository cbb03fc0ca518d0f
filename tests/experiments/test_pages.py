"""The pages say what the committed CSV files say, and claim no more than was proved."""

from __future__ import annotations

import ast
import csv
import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
sys.path.insert(0, str(RESULTS))

import draw  # noqa: E402 - results/ is no package
from page_tables import TABLES  # noqa: E402
from page_tables.origins import NOT_SAID, origins, state_of  # noqa: E402
from page_tables.scheduling_systems import gaps_of_cuts  # noqa: E402
from page_tables.source import (  # noqa: E402
    RESULTS as FOLDER,
    Source,
    percent,
    seconds,
    span,
    value,
)

PAGES = draw.pages()


def stale(source):
    """Return (page, table) of every table that a page shows otherwise than the CSV files."""
    return {
        (page.relative_to(ROOT).as_posix(), name)
        for page in PAGES
        for name in draw.redraw(page.read_text(encoding="utf-8"), source)[1]
    }


def test_no_table_is_stale():
    """Every table is what `python results/draw.py` draws from the CSV files."""
    assert FOLDER == RESULTS
    assert stale(Source()) == set()


def test_every_table_is_shown():
    """No table is drawn for nothing, and README.md, results/README.md and the studies have
    theirs.
    """
    shown = [
        match[2]
        for page in PAGES
        for match in draw.BLOCK.finditer(page.read_text(encoding="utf-8"))
    ]
    assert set(shown) == set(TABLES)
    assert len(shown) >= 25


@pytest.fixture
def copy(tmp_path):
    """Return a copy of all CSV files."""
    for file in RESULTS.rglob("*.csv"):
        target = tmp_path / file.relative_to(RESULTS)
        target.parent.mkdir(exist_ok=True)
        shutil.copy(file, target)
    return tmp_path


def change(file, column, **where):
    """Raise a number by half and one in the first row of a CSV file with these values."""
    with file.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    row = next(row for row in rows if all(row[key] == wanted for key, wanted in where.items()))
    row[column] = str(1.5 * float(row[column]) + 1)
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)


@pytest.mark.parametrize(
    ("file", "column", "where", "tables"),
    [
        (
            "exact/latency.csv",
            "value",
            {"instance": "layer_resnet50_inference"},
            {"compared", "splits", "exact-claims"},
        ),
        (
            "exact/pipeline.csv",
            "plain_cp_sat",
            {"instance": "operator_bert_l-12_inference"},
            {"compared", "splits", "exact-claims"},
        ),
        (
            "job_streams/published.csv",
            "blocking",
            {"beta": "D", "policy": "rollout"},
            {"compared", "streams", "streams-misses", "streams-published", "behind"},
        ),
        (
            "pipeline/capped.csv",
            "cpu",
            {"shape": "NN", "capacity": "none", "solver": "repetend"},
            {"repetends", "tessel", "tessel-caps", "pipeline-claims"},
        ),
        (
            "pipeline/published16.csv",
            "throughput",
            {"model": "GPT", "method": "repetend on M"},
            {"launched"},
        ),
        (
            "pipeline/gains8.csv",
            "step_ms",
            {"model": "mT5", "method": "repetend on M, K"},
            {"transfers"},
        ),
        ("exact/replicas.csv", "overlap", {"instance": "layer_gnmt_inference"}, {"extensions"}),
        ("exact/latency.csv", "max_load_dp", {"instance": "layer_resnet50_inference"}, {"splits"}),
        ("grids/report.csv", "wall", {}, {"own"}),
        (
            "doppler/runs.csv",
            "mean",
            {"graph": "ffnn", "method": "graph-placer (GDP), scratch"},
            {"doppler-graphs", "doppler-front"},
        ),
        ("doppler/equal_time.csv", "mean", {"graph": "chain_mm"}, {"doppler-equal-time"}),
        ("groupings/baselines.csv", "mean", {"method": "bound"}, {"groupings", "groupings-front"}),
        ("groupings/parsing.csv", "mean", {"method": "bound"}, {"parsing-ablations"}),
        (
            "job_streams/learned.csv",
            "blocking",
            {"rule": "uniform", "learned_on": "C", "beta": "D", "policy": "policy-degree"},
            {"streams-across-uniform"},
        ),
        (
            "pipeline/models32.csv",
            "gap_of_cuts",
            {"model": "mT5"},
            {"tessel", "tessel-misses", "pipeline-claims", "behind"},
        ),
        (
            "references.csv",
            "value",
            {"system": "PAC-ML", "quantity": "blocking of the best checkpoint", "case": "D"},
            {"compared", "streams", "streams-misses", "streams-published", "behind"},
        ),
        (
            "references.csv",
            "value",
            {"system": "Tessel", "quantity": "CPU seconds without a cap", "case": "X"},
            {"repetends", "tessel", "pipeline-claims"},
        ),
    ],
)
def test_a_changed_number_is_noticed(copy, file, column, where, tables):
    """A number that changes in a CSV file makes the tables that show it stale, by name."""
    change(copy / file, column, **where)
    shown = {
        match[2]: match[3]
        for page in PAGES
        for match in draw.BLOCK.finditer(page.read_text(encoding="utf-8"))
    }
    source = Source(copy)
    assert [name for name in tables if "\n".join(TABLES[name](source)) + "\n" == shown[name]] == []


def test_numbers_are_written_by_one_rule():
    """Tables hold no number that was typed: the code of the tables has no decimals in its texts,
    and one place that rounds.
    """
    for file in (RESULTS / "page_tables").glob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        texts = {
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        allowed = (r"0\.02 %", r"0\.1 %", r"Inception-V3")  # limits that are counted against
        typed = {
            text for text in texts if re.search(r"\d\.\d", re.sub("|".join(allowed), "", text))
        }
        documented = {
            ast.get_docstring(node, clean=False)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        }
        assert typed - documented <= {".2f", ".1f", ".4f", ".1e", ".0f", "< 0.01 %"}, file.name


def test_rounding():
    """Values have two decimals, four below one; percentages one, two below one; seconds fewer as
    they grow.
    """
    assert [value(x) for x in (1200.07, 56.695797, 8.0, 0.18215)] == [
        "1200.07",
        "56.70",
        "8",
        "0.1822",
    ]
    assert [percent(x) for x in (0.0, 0.000024, 0.0074, 0.353)] == [
        "0 %",
        "< 0.01 %",
        "0.74 %",
        "35.3 %",
    ]
    assert [seconds(x) for x in (0.034, 10.24, 179.7)] == ["0.03", "10.2", "180"]
    assert span([0.003, 0.0], percent) == "0 to 0.30 %"


def by_hand(page):
    """Return the lines of a page outside of drawn tables, recorded output and code."""
    text = draw.BLOCK.sub("", page.read_text(encoding="utf-8"))
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL).splitlines()


def test_the_page_of_results_has_no_typed_numbers():
    """Outside of its drawn tables results/README.md states no measured number."""
    assert [
        line
        for line in by_hand(RESULTS / "README.md")
        if re.search(r"\d\.\d|\d %|\d times|\d s\b", line)
    ] == []


def test_readme_has_no_typed_results():
    """Nor do the parts of README.md that compare and that state speed."""
    text = "\n".join(by_hand(ROOT / "README.md"))
    compared = text[text.index("## How it compares") :]
    assert [
        line
        for line in compared.splitlines()
        if re.search(r"\d\.\d+(?! license)|\d %|\d (us|ms|s)\b", line.replace("Apache-2.0", ""))
    ] == []


# --- the audit
# -------------------------------------------------------------------------------------------

RUN_HERE = (
    "33.3214",
    "33.32",
    "51.2599",
    "51.26",
    "117.5385",
    "117.54",
    "135.0442",
    "135.04",
    "1443.79",
    "167.6",
    "226.5",
)
"""Values that came from runs of programs here, in the forms in which pages show them (whole
words)."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_what_was_run_here_is_not_called_published(page):
    """A column of printed, stored or published values holds no number that came from a run on our
    machines.
    """
    heads = []
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = (
            [cell.strip() for cell in line.strip().strip("|").split("|")]
            if line.startswith("|")
            else []
        )
        heads = heads if cells and heads else cells
        for head, cell in zip(heads, cells, strict=False):
            if re.search(r"printed|published|stored", head) and "run here" not in head:
                assert not any(
                    re.search(rf"(?<!\d){re.escape(x)}0?(?!\d)", cell) for x in RUN_HERE
                ), (head, cell)


def test_references_say_where_they_are_from():
    """Every value of others is printed, stored or run here, and says how it was obtained."""
    rows = Source().rows("references.csv")
    assert {row["origin"] for row in rows} <= {"printed", "stored", "run here"}
    assert all(row["how"] and float(row["value"]) for row in rows)
    doppler = {row["quantity"]: row["origin"] for row in rows if row["system"] == "Doppler"}
    assert set(doppler.values()) == {"printed"}  # what was run on its graphs is in doppler/runs.csv


def test_no_run_is_a_published_column():
    """The columns of the CSV files call runs of programs runs: only optima stored by their authors
    are `published`.
    """
    heads = {}
    for file in RESULTS.rglob("*.csv"):
        with file.open(newline="", encoding="utf-8") as stream:
            heads[file.relative_to(RESULTS).as_posix()] = next(csv.reader(stream))
    published = {
        name for name, head in heads.items() if any("published" in column for column in head)
    }
    assert published <= {"exact/optima.csv", "plans/measured.csv", "sharding/contest.csv"}


def test_capped_beside_capped():
    """Times of Tessel's code without a memory cap and with one are apart, and only the former stand
    beside ours without one.
    """
    source = Source()
    for name in ("repetends", "tessel", "pipeline-claims"):
        for line in TABLES[name](source):
            if "179" in line or "59.4" in line:
                assert "without" not in line
                assert "cap" in line


def test_times_beside_others_have_their_spread():
    """Our CPU seconds beside Tessel's are medians of three runs by turns, and the table says how
    far these lie apart.
    """
    rows = Source().rows("pipeline/capped.csv")
    assert {row["runs"] for row in rows} == {"3"}
    assert {(row["shape"], row["solver"], row["capacity"] == "none") for row in rows} == {
        (shape, solver, free)
        for shape in ("V", "K", "X", "M", "NN")
        for solver in ("repetend", "tessel")
        for free in (True, False)
    }
    assert all(float(row["cpu_low"]) <= float(row["cpu"]) <= float(row["cpu_high"]) for row in rows)
    assert sum(" to " in line for line in TABLES["tessel-caps"](Source())) == 5


def test_what_does_not_fit_is_shown_as_such():
    """In the sizes of the launch files no baseline that does not fit is left out or given a
    ratio.
    """
    lines = TABLES["launched"](Source())[2:]
    assert len(lines) == 8
    assert sum(line.count("does not fit") for line in lines) >= 10
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert cells[6] != "does not fit" or cells[7:] == ["-", "-"]


@pytest.mark.parametrize(
    ("file", "key", "problems"),
    [
        ("doppler/runs.csv", ("graph", "devices"), 9),
        ("doppler/equal_time.csv", ("graph", "devices"), 4),
        ("groupings/baselines.csv", ("instance", "cluster"), 16),
        ("groupings/parsing.csv", ("instance", "cluster"), 5),
    ],
)
def test_learners_have_equal_evaluations_or_time(file, key, problems):
    """On one problem all that draws has the same evaluations or the same processor seconds, and an
    interval of several seeds.
    """
    spent = {}
    for row in Source().rows(file):
        if row["evaluations"] not in ("", "50"):
            assert int(row["runs"]) >= 3
            assert float(row["best"]) <= float(row["mean"]) <= float(row["worst"])
            assert (float(row["interval"]) > 0) == (float(row["best"]) < float(row["worst"]))
            spent.setdefault(tuple(row[column] for column in key), []).append(row)
    assert len(spent) == problems
    for rows in spent.values():
        if "equal_time" in file:
            assert (
                max(float(row["cpu"]) for row in rows)
                < 3 * sorted(float(row["cpu"]) for row in rows)[len(rows) // 2]
            )
        else:
            assert len({row["evaluations"] for row in rows}) == 1
        assert len(rows) >= 8


def test_no_row_credits_a_policy_with_its_seed():
    """A method that begins at a heuristic's placement says so in its name, and the heuristic stands
    in the same table.
    """
    methods = {row["method"] for row in Source().rows("doppler/runs.csv")}
    seeded = {
        name
        for name in methods
        if name.startswith(
            ("dual", "grouper", "graph-p", "post", "soft", "recur", "visit", "neural")
        )
    }
    assert {"edge-zeroing", "critical path, best of 50"} <= methods
    assert all(re.search("scratch|no teacher|edge zeroing|critical path", name) for name in seeded)
    titles = {
        row["method"]
        for row in Source().rows("groupings/baselines.csv")
        if row["method"].startswith("`")
    }
    assert titles
    assert all("from edge zeroing" in title for title in titles)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if RESULTS in page.parents], ids=lambda page: page.parent.name
)
def test_numbers_of_a_page_are_of_one_state_of_the_package(page):
    """All rows that the tables of a page read name commits of one package, and the page says which."""
    text, source = page.read_text(encoding="utf-8"), Source()
    draw.redraw(text, source)
    commits = set(origins(source))
    assert NOT_SAID not in commits
    states = {state_of(commit) for commit in commits}
    if "" in states:
        pytest.skip("the history of this copy does not hold every commit")
    assert len(states) <= 1, commits
    assert not commits or "<!-- table: recorded -->" in text


def test_no_page_says_by_hand_which_commit_its_rows_are_of():
    """Which commit is recorded where is drawn; by hand stands only the earlier version of the study
    of exact methods, and what pages tell of runs that left no rows.
    """
    told = {"2f0eb8a", "d048999", "9903499"}
    for page in PAGES:
        found = set(re.findall(r"\b(?=[0-9a-f]*\d)[0-9a-f]{7,9}\b", "\n".join(by_hand(page))))
        assert {x for x in found if not x.isdigit()} <= told, page


def test_every_table_is_of_one_study():
    """What `record.py run` records is everything: each CSV file is a table of one study, but for
    what is noted by hand, and each command names a file that is there.
    """
    studies = tomllib.loads((RESULTS / "studies.toml").read_text(encoding="utf-8"))
    tables = [
        file for study in studies.values() for x in study["tables"] for file in RESULTS.glob(x)
    ]
    assert len(tables) == len(set(tables))
    assert set(tables) == set(RESULTS.glob("*/*.csv"))
    for study in studies.values():
        words = [word for command in study["commands"] for word in command.split()]
        assert all((ROOT / word).exists() for word in words if word.startswith("results/"))


CONDITIONAL = re.compile(r"\b(optimal|gap 0|proved best|optimum)\b")


@pytest.mark.parametrize(
    "page",
    [
        RESULTS / "README.md",
        RESULTS / "pipeline" / "README.md",
        RESULTS / "pipeline" / "report.md",
        ROOT / "docs" / "how-to" / "schedule-a-pipeline.md",
    ],
    ids=lambda page: page.parent.name + page.name,
)
def test_nothing_about_whole_models_is_optimal(page):
    """Where whole models in a pipeline are spoken of, nothing is optimal, and a gap is one for the
    cut.
    """
    for line in page.read_text(encoding="utf-8").splitlines():
        if (
            re.search(r"whole model|over 1F1B|Flava|mT5", line)
            and "shard" not in line
            and "HSDAG" not in line
        ):
            assert not CONDITIONAL.search(line) or "never" in line or "over all" in line, line
            assert "gap" not in line or re.search(r"\bcuts?\b|HSDAG", line), line


@pytest.mark.parametrize("table", ["tessel", "tessel-misses", "pipeline-claims"])
def test_gaps_of_models_are_for_their_cut(table):
    """Every line that shows the gap of a whole model says that it holds for the cut that was
    found.
    """
    source = Source()
    widest = percent(gaps_of_cuts(source)[-1][0])
    line = next(line for line in TABLES[table](source) if widest in line)
    assert "for the cut" in line or "for its cut" in line


def test_the_headline_of_job_streams_is_the_published_rule():
    """README.md compares with PAC-ML under its own split rule only; the other rule says what a
    constant degree gives there.
    """
    source = Source()
    assert "its split rule" in "\n".join(TABLES["compared"](source))
    uniform = next(line for line in TABLES["streams"](source) if "uniform" in line)
    assert "not the authors'" in uniform
    assert "constant degree 8" in uniform
    text = (RESULTS / "job_streams" / "README.md").read_text()
    assert text.index("published split rule |") < text.index("uniform split rule |")


def test_within_counts_what_is_within():
    """The benchmark counts gaps computed from value and bound, not rounded ones: one at 0.024 % is
    not within 0.02 %.
    """
    rows = Source().rows("benchmark/best-known.csv")
    exact = [1 - int(row["lower bound"]) / int(row["value (ticks)"]) for row in rows]
    within = sum(gap <= 0.0002 for gap in exact)
    assert f"{within} of {len(rows)} end within 0.02 %" in "\n".join(
        TABLES["benchmark-gaps"](Source())
    )
