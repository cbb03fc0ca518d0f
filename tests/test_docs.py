"""The documentation is true: its code runs, its commands exist, its site builds."""

from __future__ import annotations

import html
import os
import re
import runpy
import shlex
import subprocess
import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

cli = import_module("placeopt.cli")
ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "results").rglob("README.md")]
)


def blocks(language: str) -> list:
    """Return every fenced block of a language as a pytest parameter."""
    found = []
    for page in PAGES:
        for i, block in enumerate(
            re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
        ):
            found.append(pytest.param(block, id=f"{page.relative_to(ROOT)}-{i}"))
    return found


@pytest.mark.parametrize("code", blocks("python"))
def test_python_blocks_run(code, tmp_path, monkeypatch):
    """Every python block of the documentation runs; its time limits are cut to one second."""
    if "onnx:" in code:
        pytest.importorskip("onnx")
    if "dask" in code:
        pytest.importorskip("distributed")
    monkeypatch.chdir(tmp_path)
    code = re.sub(r"seconds=\d+", "seconds=1", code)
    script = tmp_path / "block.py"
    script.write_text(code)
    runpy.run_path(str(script), run_name="block")


@pytest.mark.parametrize("script", blocks("bash"))
def test_commands_exist(script):
    """Every placeopt command line of the documentation names a command, and options, that exist."""
    for line in script.replace("\\\n", " ").splitlines():
        command = re.split(r"\s#|&& ", line)[-1 if "&& " in line else 0].strip()
        words = shlex.split(command, comments=True)
        if not words or Path(words[0]).name != "placeopt":
            continue
        known = options_of()
        assert words[1] in known, f"'{command}': no command {words[1]}"
        for option in (word.partition("=")[0] for word in words[2:] if word.startswith("--")):
            assert option in known[words[1]], f"'{command}': no option {option}"


@cache
def options_of() -> dict[str, set[str]]:
    """Return the options of every command that its help shows."""
    return {
        name: {"--help"}
        | {o for x in command.params if not x.hidden for o in (*x.opts, *x.secondary_opts)}
        for name, command in cli._build([]).commands.items()
    }


def test_relative_links_lead_somewhere():
    """Every relative link and picture of the documentation exists."""
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"


def test_notebook_runs(tmp_path):
    """The tour runs from top to bottom."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    pytest.importorskip("matplotlib")
    notebook = nbformat.read(ROOT / "docs" / "tour.ipynb", as_version=4)
    kernel = {"name": "python3"}
    notebook.metadata["kernelspec"] = {**kernel, "display_name": "Python 3"}
    client = nbclient.NotebookClient(
        notebook, timeout=200, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    assert all(
        cell.get("outputs") is not None for cell in notebook.cells if cell.cell_type == "code"
    )


@pytest.mark.skipif(
    find_spec("mkdocs") is None or find_spec("mkdocstrings") is None,
    reason="needs the extra 'docs'",
)
def test_site_builds(tmp_path):
    """The site builds without a warning and without network."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_PROXY": "*", "DISABLE_MKDOCS_2_WARNING": "true"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for page in sorted(
        (ROOT / "docs").rglob("*.md")
    ):  # a Python file beside a page would take its place
        name = page.relative_to(ROOT / "docs").with_suffix("")
        built = tmp_path / "site" / ("" if name.stem == "index" else name) / "index.html"
        title = next(line for line in page.read_text().splitlines() if line.startswith("# "))[2:]
        shown = re.search(r"<h1[^>]*>(.*?)</h1>", built.read_text(), re.S)
        assert shown is not None, name
        plain = html.unescape(re.sub(r"<[^>]*>", "", shown[1])).replace("¶", "").strip()
        assert plain == title.replace("`", ""), name


def test_the_list_of_algorithms_is_that_of_the_registry():
    """docs/algorithms.md is what docs/algorithms_page.py writes."""
    made = runpy.run_path(str(ROOT / "docs" / "algorithms_page.py"))["page"]()
    assert (ROOT / "docs" / "algorithms.md").read_text() == made, (
        "run python docs/algorithms_page.py"
    )


def test_every_page_is_in_the_navigation():
    """mkdocs.yml lists every page and the tour."""
    text = (ROOT / "mkdocs.yml").read_text()
    pages = [
        path.relative_to(ROOT / "docs").as_posix()
        for path in (ROOT / "docs").rglob("*")
        if path.suffix in (".md", ".ipynb")
    ]
    assert [page for page in pages if f": {page}" not in text] == []


def test_the_glossary_is_linked_from_every_page_that_uses_its_words():
    """A page with a word of the glossary in its text links to it; its words are listed once."""
    glossary = ROOT / "docs" / "glossary.md"
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", glossary.read_text(), re.MULTILINE)
    words = [word.strip() for row in rows for word in row.split(",") if row != "word"]
    assert len(words) == len(set(words)) > 40
    for word in ("tick", "ideal", "repetend", "front", "segment", "series", "slot", "core"):
        assert word in words
    used = re.compile(rf"\b(?:{'|'.join(map(re.escape, words))})s?\b", re.IGNORECASE)
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text()
        plain = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)
        if page != glossary and used.search(plain):
            assert re.search(r"\]\([./a-z]*glossary\.md\)", text), page.relative_to(ROOT)
