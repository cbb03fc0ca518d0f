"""Modules as libraries write them: regions without gradients, expanded masks, tensors made on a
named device.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

import placeopt as po
from placeopt.instances.readers.torch_export import from_torch
from placeopt.programs.torch_program import cut_stages, torch_program

torch = pytest.importorskip("torch")


def masked():
    """Return a model of two blocks whose mask and angles are made in regions without gradients, and
    its inputs.
    """
    from torch import nn

    class Angles(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(8))

        @torch.no_grad()
        def forward(self, x):
            turns = torch.arange(x.shape[1], device=x.device)[:, None] * self.scale + x[0]
            return turns.cos(), turns.sin()

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.out = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x, cos, sin, mask):
            q = self.query(x) * cos + x * sin
            y = nn.functional.scaled_dot_product_attention(q, x, x, attn_mask=mask)
            return x + self.out(y) + torch.arange(x.shape[1], device=x.device)[:, None]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.angles, self.layers = Angles(), nn.ModuleList(Block() for _ in range(2))

        def forward(self, x):
            cos, sin = self.angles(x)
            mask = (
                torch.ones(1, x.shape[1], dtype=torch.bool, device=x.device)
                .expand(x.shape[1], -1)[None]
                .expand(x.shape[0], -1, -1)
            )
            for layer in self.layers:
                x = layer(x, cos, sin, mask)
            return x

    torch.manual_seed(0)
    return Model().eval(), (torch.randn(2, 4, 8),)


def by_layer(problem, graph):
    """Return the placement with the second block on the second device."""
    return po.Placement(np.array([int(path.startswith("layers/1")) for path in graph.layer]))


def placed():
    """Return model, inputs, problem and the placement of a block on each device."""
    module, inputs = masked()
    graph = from_torch(module, inputs)
    problem = po.load(module, inputs=inputs, cluster="2xA100", group="block")
    assert problem.op_names == graph.op_names
    return module, inputs, problem, by_layer(problem, graph)


def test_a_region_without_gradients_ties_no_ops_together():
    """The ops of the region stand in the graph by themselves; blocks are groups of their own."""
    module, inputs = masked()
    graph = from_torch(module, inputs)
    assert not [kind for kind in graph.op_types if "wrap" in kind]
    assert {"cos", "sin"} <= set(graph.op_types)
    problem = po.load(module, inputs=inputs, cluster="2xA100", group="block")
    groups = {
        problem.colocation[i] for i, path in enumerate(graph.layer) if path.startswith("layers/")
    }
    assert len(groups) == 2


@pytest.mark.parametrize("to", ["torch", "torch-pipeline", "device-map"])
def test_regions_are_exported(to, tmp_path):
    """Every target of torch takes the model; what runs gives its outputs, and no gradient enters
    the region.
    """
    module, inputs, problem, placement = placed()
    options = {"micro_batches": 2, "seconds": 2, "solver": "1f1b"} if to == "torch-pipeline" else {}
    found = po.export(
        problem,
        placement,
        to,
        model=module,
        inputs=inputs,
        devices=("cpu", "cpu"),
        out=tmp_path,
        **options,
    )
    if to == "device-map":
        assert {"layers.0", "layers.1"} <= set(found) or found == {"": "cpu"}
        return
    if to == "torch":
        result = found(*inputs)
        result.sum().backward()
        assert found.angles.scale.grad is None
    else:
        result = inputs
        for stage in found:
            result = stage.module(*result)
            result = result if isinstance(result, tuple) else (result,)
        result = result[0]
    torch.testing.assert_close(result, module(*inputs))


def test_stages_send_contiguous_tensors_and_name_no_device(tmp_path):
    """A mask expanded with strides of zero is sent whole, and stages make tensors where their
    inputs are.
    """
    module, inputs, problem, placement = placed()
    stages = po.export(
        problem,
        placement,
        "torch-pipeline",
        model=module,
        inputs=inputs,
        devices=("cpu", "cpu"),
        micro_batches=2,
        seconds=2,
        solver="1f1b",
        out=tmp_path,
    )
    assert len(stages) == 2
    assert all(x.is_contiguous() for x in stages[0].module(*inputs))
    meta = stages[0].module.to("meta")(*[x.to("meta") for x in inputs])
    assert {x.device.type for x in meta} == {"meta"}
    assert "device(type=" not in (tmp_path / "pipeline.py").read_text()


def test_placements_on_absent_gpus_are_written(tmp_path):
    """The machine that places needs no GPU: the file names the devices, and weights are put there
    when it is loaded.
    """
    if torch.cuda.device_count() > 1:
        pytest.skip("both GPUs are here")
    module, inputs, problem, placement = placed()
    po.export(problem, placement, "torch", model=module, inputs=inputs, out=tmp_path)
    weights = torch.load(tmp_path / "weights.pt", weights_only=True)["Placed"]
    assert {weights[f"layers.{i}.out.weight"][2] for i in range(2)} == {"cuda:0", "cuda:1"}
    spec = importlib.util.spec_from_file_location("placed_on_gpus", tmp_path / "placed.py")
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_a_llama_of_transformers_is_split_by_block():
    """Its rotary embedding, a region without gradients, ties nothing: the layers are groups of
    their own.
    """
    transformers = pytest.importorskip("transformers", reason="needs the extra 'models'")
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    torch.manual_seed(0)
    module, inputs = transformers.LlamaForCausalLM(config).eval(), (torch.randint(0, 64, (2, 8)),)
    graph = from_torch(module, inputs)
    problem = po.load(module, inputs=inputs, cluster="2xA100", group="block")
    home = np.array(
        [int(path.startswith(("model/layers/1", "model/norm", "lm_head"))) for path in graph.layer]
    )
    found = po.export(
        problem, po.Placement(home), "torch", model=module, inputs=inputs, devices=("cpu", "cpu")
    )
    torch.testing.assert_close(found(*inputs).logits, module(*inputs).logits)
    assert len(set(problem.colocation.tolist())) > 2


def test_a_flag_that_was_fixed_is_no_input_of_the_first_stage():
    """An argument that is no tensor is fixed when the module is captured: stages run without it."""

    class Flagged(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)

        def forward(self, x, scale: float = 1.0, tuple_: bool = True):
            found = self.second(self.first(x) * scale)
            return (found,) if tuple_ else {"found": found}

    module, x = Flagged(), torch.ones(3, 4)
    program = torch_program(module, inputs=(x,), kwargs={"scale": 2.0, "tuple_": False})
    number = [int(call.module.startswith("second")) for call in program.program.calls]
    first, second = cut_stages(program, number, 2)
    assert len(first.inputs) == 1
    found = second.module(first.module(x))
    assert torch.allclose(found, module(x, scale=2.0, tuple_=False)["found"])
