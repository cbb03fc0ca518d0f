"""The pages on exporting and profiling: their commands run, one after the other, as they stand
there.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from placeopt.cli import main

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("user_models", ROOT / "tests" / "user_models.py")
user_models = importlib.util.module_from_spec(spec)
spec.loader.exec_module(user_models)


def commands(page):
    """Return the words of every placeopt command of a page, in order."""
    blocks = re.findall(
        r"^```bash\n(.*?)^```",
        (ROOT / "docs" / "how-to" / page).read_text(),
        re.DOTALL | re.MULTILINE,
    )
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [
        words[1:]
        for words in (shlex.split(line, comments=True) for line in lines)
        if words[:1] == ["placeopt"]
    ]


@pytest.mark.parametrize("page", ["export.md", "profile.md"])
def test_every_command_runs(page, tmp_path, monkeypatch, capsys):
    """Every command ends with 0 in a folder that holds the page's own model and an ONNX model with
    a symbolic batch.
    """
    for package in ("torch", "onnx", "onnxruntime", "matplotlib"):
        pytest.importorskip(package)
    text = (ROOT / "docs" / "how-to" / "export.md").read_text()
    (tmp_path / "model.py").write_text(
        re.search(r"^```python\n(# model.py\n.*?)^```", text, re.DOTALL | re.MULTILINE)[1]
    )
    user_models.symbolic_model(tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    found = commands(page)
    assert len(found) > 5
    for words in found:
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0, f"{words}: {capsys.readouterr().err}"


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt", "resnet", "control_flow_model", "symbolic_model"])
def test_the_whole_way(model, tmp_path, monkeypatch, capsys):
    """A GPT-2, a ResNet, an ONNX model with If and Loop and one with a symbolic batch: profile,
    solve, run, every export.
    """
    for package in ("torch", "onnx", "onnxruntime", "jax"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    torch = model in ("gpt", "resnet")
    if torch:
        source = (ROOT / "tests" / "user_models.py").read_text()
        Path("model.py").write_text(f"{source}\n\ndef make():\n    return {model}()\n")
    else:
        getattr(user_models, model)(Path("model.onnx"))
    found = [
        words for words in commands("from-model-to-run.md") if ("model.onnx" in words) != torch
    ]
    assert len(found) >= 5
    for words in found:
        if model == "control_flow_model":
            words = [word for word in words if word not in ("--dim", "batch=8")]
        with pytest.raises(SystemExit) as ended:
            main(words)
        output = capsys.readouterr()
        assert ended.value.code == 0, f"{words}: {output.err}"
        if words[0] == "run":
            assert "results equal the unsplit model's" in " ".join(output.out.split())
