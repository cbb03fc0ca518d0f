"""Twelve kinds of models from transformers and diffusers, as `results/models/zoo.py` makes them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import placeopt as po
from placeopt.cli import main

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs the extra 'models'")
pytest.importorskip("diffusers", reason="needs the extra 'models'")

FOLDER = Path(__file__).parents[1] / "results" / "models"


def loaded(name):
    """Import a file of the study."""
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location(f"models_{name}", FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(FOLDER))


study = loaded("study")
zoo = study.zoo

TORCH_ONLY, ONNX_ONLY = {"torch", "torch-pipeline"}, {"onnxruntime"}


@pytest.mark.parametrize("name", zoo.MODELS)
def test_blocks_are_placed_apart_and_compute_the_same(name):
    """No region ties the model together: blocks are groups of their own, in any placement of which
    the module gives the results of the whole one.
    """
    from torch.utils import _pytree as pytree

    module, inputs, named = zoo.MODELS[name]()
    given = {"inputs": inputs, "kwargs": named}
    problem = po.load(module, cluster="4xA100", group="block", shared="copy", **given)
    assert not [kind for kind in problem.op_types if "wrap" in kind]
    groups = np.unique(problem.colocation[problem.colocation >= 0])
    assert len(groups) >= 4
    where = np.random.default_rng(0).integers(0, 4, problem.num_ops)
    device = np.where(problem.colocation >= 0, problem.colocation % 4, where)
    from placeopt.exports.torch_module import placed_module
    from placeopt.programs.calls import homes
    from placeopt.programs.torch_program import torch_program

    program = torch_program(module, inputs=inputs, kwargs=named)
    placed = dict(zip(problem.op_names, device.tolist(), strict=True))
    home = homes(program.program, placed).tolist()
    made, transfers = placed_module(program, home, ("cpu", "cpu:1", "cpu:2", "cpu:3"))
    assert transfers > 0
    with torch.no_grad():
        found = pytree.tree_leaves(made(*inputs, **named))
        expected = pytree.tree_leaves(module(*inputs, **named))
    for got, want in zip(found, expected, strict=True):
        if isinstance(want, torch.Tensor):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("way", study.WAYS)
@pytest.mark.parametrize("name", zoo.MODELS)
def test_every_command_and_export(name, way, monkeypatch):
    """No cell of the study fails, and only what a file cannot hold is refused."""
    monkeypatch.setattr(study, "record", lambda rows: None)
    rows = study.cells(name, way)
    if rows[0]["outcome"] == "no file":
        pytest.skip(rows[0]["words"])
    assert [row for row in rows if row["outcome"] == "failed"] == []
    refused = {row["cell"] for row in rows if row["outcome"] == "refused"}
    assert refused <= (ONNX_ONLY if way == "torch.export" else TORCH_ONLY)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "bert", "gpt2", "vit"])
def test_dtensor_layouts_of_hub_models_run(name, tmp_path):
    """Four gloo ranks give the results of the whole module with the layouts that were written."""
    from gloo_ranks import run_ranks

    source = f"{FOLDER / 'zoo.py'}:{name}"
    words = ("--mesh", "2x2", "-c", "4xA100", "--memory-limit", "100KB", "-t", "3")
    with pytest.raises(SystemExit) as stop:
        main(["shard", f"torch:{source}", *words, "--to", "dtensor", "--out", str(tmp_path)])
    assert stop.value.code == 0
    for said in run_ranks(4, tmp_path, "sharded", tmp_path, source):
        assert said.split()[-3] == "same"
