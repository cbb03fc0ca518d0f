"""Weights that two stages use: copied, with their gradients summed, or one stage and the reason."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from gloo_ranks import run_ranks

import placeopt as po
from placeopt.cli import main

torch = pytest.importorskip("torch")

WORDS, WIDTH = 11, 8


def tied():
    """Return a language model whose head is its embedding, whose second half looks the ids up
    again, and which has a table that does not learn; and its inputs.
    """
    from torch import nn

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.again = nn.Embedding(WORDS, WIDTH), nn.Embedding(WORDS, WIDTH)
            self.fixed = nn.Parameter(torch.randn(WIDTH), requires_grad=False)
            self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
            self.head = nn.Linear(WIDTH, WORDS, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids):
            x = self.embed(ids) + self.fixed
            for layer in self.layers[:2]:
                x = x + torch.tanh(layer(x))
            x = x * self.again(ids)
            for layer in self.layers[2:]:
                x = x + torch.tanh(layer(x))
            return self.head(x)

    torch.manual_seed(0)
    return Tied().eval(), (torch.randint(0, WORDS, (2, 5)),)


def halves(problem, graph):
    """Return the placement with all from `again` on the second device."""
    second = ("again", "layers/2", "layers/3", "head")
    first = next(i for i, path in enumerate(graph.layer) if path.startswith("again"))
    return po.Placement(
        np.array(
            [
                int(path.startswith(second) or (path == "" and i > first))
                for i, path in enumerate(graph.layer)
            ]
        )
    )


def exported(tmp_path):
    """Return module and inputs, with the pipeline written to `tmp_path`."""
    module, inputs = tied()
    problem = po.load(module, inputs=inputs, cluster="2xA100", shared="copy")
    graph = po.instances.sources.load_graph(module, inputs=inputs)[0]
    options = {"micro_batches": 2, "solver": "1f1b", "seconds": 2, "out": tmp_path}
    po.export(
        problem, halves(problem, graph), "torch-pipeline", model=module, inputs=inputs, **options
    )
    return module, inputs


def pipeline_of(folder):
    """Import the file that was written."""
    spec = importlib.util.spec_from_file_location("tied_pipeline", folder / "pipeline.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_copies_of_a_tied_weight_get_the_sum_of_the_gradients(tmp_path):
    """Two gloo ranks: both copies have the gradient of the one weight of the unsplit model, ids
    pass through a stage, and what does not learn has no gradient.
    """
    module, inputs = exported(tmp_path)
    ids = torch.cat([inputs[0], inputs[0].flip(0)])
    target = torch.randint(0, WORDS, ids.shape)
    torch.save({"inputs": ids, "target": target}, tmp_path / "data.pt")
    said = run_ranks(2, tmp_path, "exported", tmp_path, tmp_path / "data.pt")
    loss = torch.nn.functional.cross_entropy(
        module(ids).flatten(0, -2), target.flatten(), reduction="sum"
    )
    loss.backward()
    assert float(said[1]) == pytest.approx(float(loss.detach()), rel=1e-5)
    gradients = [torch.load(tmp_path / f"gradients{rank}.pt") for rank in range(2)]
    names = dict(module.named_parameters(remove_duplicate=False))
    tables = [part[name] for part in gradients for name in part if name.startswith(("emb", "head"))]
    assert len(tables) == 2
    for table in tables:
        torch.testing.assert_close(table, module.embed.weight.grad, rtol=1e-4, atol=1e-5)
    for part in gradients:
        assert "fixed" not in part
        for name, gradient in part.items():
            torch.testing.assert_close(gradient, names[name].grad, rtol=1e-4, atol=1e-5)


def test_stages_keep_what_does_not_learn(tmp_path):
    """A parameter without gradients stays one, and boundaries tell shapes, types and gradients."""
    exported(tmp_path)
    pipeline = pipeline_of(tmp_path)
    stage = pipeline.load("Stage0", tmp_path)
    assert {name: p.requires_grad for name, p in stage.named_parameters()}["fixed"] is False
    assert pipeline.BOUNDARIES[0] == [((2, 5), "int64", False)]
    assert sorted(pipeline.BOUNDARIES[1], key=str) == [
        ((2, 5), "int64", False),
        ((2, 5, WIDTH), "float32", True),
    ]
    assert len(pipeline.TIED) == 1


def test_one_stage_is_explained(tmp_path, capsys):
    """Where a tied weight holds first and last op on one device, the answer names it and the way
    out.
    """
    file = tmp_path / "model.py"
    file.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(__file__.rsplit('/', 1)[0])!r})\n"
        "from test_tied_weights import tied\n"
    )
    words = ("-c", "2xA100", "--objective", "period", "--contiguity", "chain", "-t", "1")
    said = {}
    for shared in ("colocate", "copy"):
        with pytest.raises(SystemExit) as stop:
            main(["solve", f"torch:{file}:tied", *words, "--shared", shared])
        assert stop.value.code == 0
        output = capsys.readouterr()
        said[shared] = " ".join((output.out + output.err).split())
    assert "one weight of embed, head:" in said["colocate"]
    assert "--shared copy" in said["colocate"]
    assert "--shared copy" not in said["copy"]


def test_custom_ops_are_imported(tmp_path, monkeypatch):
    """The file that is written imports the module that registers an op of its own."""
    (tmp_path / "own_ops_of_a_user.py").write_text(
        "import torch\n"
        "@torch.library.custom_op('own::twice', mutates_args=())\n"
        "def twice(x: torch.Tensor) -> torch.Tensor:\n"
        "    return x * 2\n"
        "@twice.register_fake\n"
        "def _(x):\n"
        "    return torch.empty_like(x)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import own_ops_of_a_user

    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            return own_ops_of_a_user.twice(self.linear(x))

    module, inputs = Own().eval(), (torch.randn(2, 4),)
    problem = po.load(module, inputs=inputs, cluster="2xA100")
    placement = po.Placement(np.arange(problem.num_ops) % 2)
    out = tmp_path / "out"
    options = {"devices": ("cpu", "cpu"), "out": out}
    po.export(problem, placement, "torch", model=module, inputs=inputs, **options)
    assert "import own_ops_of_a_user  # own::twice" in (out / "placed.py").read_text()
