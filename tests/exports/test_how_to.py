"""The pages on exporting and profiling: their commands run, one after the other, as they stand there."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from placeopt.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("user_models", ROOT / "tests" / "user_models.py")
user_models = importlib.util.module_from_spec(spec)
spec.loader.exec_module(user_models)


def commands(page):
    """Return the words of every placeopt command of a page, in order."""
    blocks = re.findall(r"^```bash\n(.*?)^```", (ROOT / "docs" / "how-to" / page).read_text(), re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [words[1:] for words in (shlex.split(line, comments=True) for line in lines) if words[:1] == ["placeopt"]]


@pytest.mark.parametrize("page", ["export.md", "profile.md"])
def test_every_command_runs(page, tmp_path, monkeypatch, capsys):
    """Every command ends with 0 in a folder that holds the page's own model and an ONNX model with a symbolic batch."""
    for package in ("torch", "onnx", "onnxruntime", "matplotlib"):
        pytest.importorskip(package)
    text = (ROOT / "docs" / "how-to" / "export.md").read_text()
    (tmp_path / "model.py").write_text(re.search(r"^```python\n(# model.py\n.*?)^```", text, re.DOTALL | re.MULTILINE)[1])
    user_models.symbolic_model(tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    found = commands(page)
    assert len(found) > 5
    for words in found:
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0, f"{words}: {capsys.readouterr().err}"
