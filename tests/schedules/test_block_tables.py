"""Block tables: read from every format, and refused in one clear line where they are wrong."""

from __future__ import annotations

import json
import math
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import placeopt as po
from placeopt.model.cp_sat import cp_solver
from placeopt.schedules import bounds, schedule, schedule_result
from placeopt.schedules.bounds import smallest_excess
from placeopt.schedules.problem import Block, PipelineProblem
from placeopt.schedules.shapes import only_forward
from placeopt.schedules.sources import problem_from_dict, problem_to_dict

if TYPE_CHECKING:
    from pathlib import Path


def table(**changes: Any) -> dict[str, Any]:
    """Return a pipeline of two stages with some of its entries changed."""
    blocks = {
        "F0": {"name": "F0", "kind": "F", "devices": ["a"], "span": 1, "memory": 1},
        "F1": {
            "name": "F1",
            "kind": "F",
            "devices": ["b"],
            "span": 1,
            "memory": 1,
            "after": ["F0"],
        },
        "B1": {
            "name": "B1",
            "kind": "B",
            "devices": ["b"],
            "span": 2,
            "memory": -1,
            "after": ["F1"],
        },
        "B0": {
            "name": "B0",
            "kind": "B",
            "devices": ["a"],
            "span": 2,
            "memory": -1,
            "after": [{"block": "B1", "lag": 1}],
        },
    }
    top = {key: value for key, value in changes.items() if key not in blocks}
    for name in blocks:
        blocks[name] |= changes.get(name, {})
    return {
        "name": "two stages",
        "devices": ["a", "b"],
        "capacity": 2,
        "blocks": list(blocks.values()),
    } | top


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"F1": {"devices": ["c"]}}, "block 'F1': unknown device 'c'; the devices are a, b"),
        ({"F1": {"devices": 7}}, "block 'F1': unknown device '7'"),
        ({"F0": {"after": ["B0"]}}, "cycle"),
        ({"F1": {"after": ["F7"]}}, "block 'F1': unknown predecessor 'F7'"),
        ({"F1": {"after": "F7"}}, "block 'F1': unknown predecessor 'F7'"),
        (
            {"F1": {"memory": 2}},
            "memory of device 'b' never returns to zero: one micro-batch leaves \\+1",
        ),
        (
            {"F1": {"memory": -1}, "B1": {"memory": 1}},
            "block 'F1' frees memory of device 'b' that no predecessor",
        ),
        (
            {"F1": {"memory": 5}, "B1": {"memory": -5}},
            "capacity of device 'b' is 2, below the 5 that block 'F1'",
        ),
        ({"F1": {"span": 0}}, "block 'F1': span must be at least 1 tick, received 0"),
        ({"F1": {"span": 1.5}}, "block 'F1': span: expected a whole number, received 1.5"),
        ({"F1": {"kind": "X"}}, "block 'F1': kind must be one of F, B, I, W, other, received 'X'"),
        ({"B0": {"name": "F0"}}, "block names must be distinct, 'F0' occurs twice"),
        (
            {"F1": {"after": [{"block": "F0", "lag": -1}]}},
            r"lag\[0\]: expected ticks >= 0, received -1",
        ),
        ({"devices": 0}, "expected 1 to 100000 devices, received 0"),
        ({"blocks": []}, "expected at least one block"),
        ({"capacity": [1, 2, 3]}, "capacity: expected 1 or 2 values, received 3"),
        ({"micro_batches": 0}, "micro_batches: expected a whole number of at least 1, received 0"),
        ({"tick_seconds": 10**400}, '"tick_seconds": expected a finite number'),
        ({"capacty": 2}, "block table 'pipeline': 'capacty' is not known; did you mean 'capacity'"),
        ({"F1": {"memry": 1}}, r"blocks\[1\]: 'memry' is not known; did you mean 'memory'"),
        ({"F1": {"after": [{"blok": "F0"}]}}, "block 'F1': after: 'blok' is not known"),
        ({"F1": {"after": [{"lag": 1}]}}, "block 'F1': after: \"block\" is missing"),
    ],
)
def test_wrong_tables_are_refused_in_one_line(changes: dict[str, Any], message: str):
    """Unknown devices, cycles, memory that never returns to zero and too little capacity: one line
    each.
    """
    with pytest.raises(po.InputError, match=message) as caught:
        problem_from_dict(table(**changes))
    assert "\n" not in str(caught.value)


def test_numbers_that_no_schedule_can_have_are_refused():
    """Half a micro-batch ran until arrays were made of it; lags and counts of any length are told
    apart from those of 64 bits.
    """
    problem = po.load_pipeline("shape:V?devices=2")
    with pytest.raises(po.InputError, match="micro_batches: expected a whole number"):
        problem.replace(micro_batches=2.5)
    with pytest.raises(po.InputError, match=r"over all micro-batches passes 2\^62"):
        problem.replace(micro_batches=10**400)
    with pytest.raises(po.InputError, match="lag: expected whole numbers"):
        po.load_pipeline("shape:V?devices=2&lag=99999999999999999999")
    with pytest.raises(po.InputError, match="chunks: expected at least 1 and at most 1000"):
        po.load_pipeline("shape:interleaved?chunks=1000000")


@pytest.mark.parametrize("suffix", [".json", ".toml"])
def test_json_and_toml_hold_the_same_table(tmp_path: Path, suffix: str):
    """Both formats give the problem that the object itself gives, and options of the call win."""
    wanted = problem_from_dict(table())
    path = tmp_path / f"table{suffix}"
    if suffix == ".json":
        path.write_text(json.dumps(table()))
    else:
        lines = ['name = "two stages"', 'devices = ["a", "b"]', "capacity = 2"]
        for block in table()["blocks"]:
            lines.append("[[blocks]]")
            for key, value in block.items():
                if key == "after":
                    value = [x if isinstance(x, str) else "@" for x in value]
                text = json.dumps(value).replace('"@"', '{block = "B1", lag = 1}')
                lines.append(f"{key} = {text}")
        path.write_text("\n".join(lines))
    found = po.load_pipeline(path)
    assert found.hash == wanted.hash
    assert found.block_names == wanted.block_names
    assert problem_from_dict(problem_to_dict(found)).hash == wanted.hash
    assert po.load_pipeline(path, memory=3).capacity.tolist() == [3, 3]
    assert po.load_pipeline(path, mode="infer").block_names == ("F0", "F1")


@pytest.mark.parametrize(
    ("name", "rows"),
    [("V", "vshape"), ("X", "xshape"), ("M", "mshape"), ("NN", "nnshape"), ("K", "kshape")],
)
def test_shapes_are_those_of_the_published_tables(data: Path, name: str, rows: str):
    """The shapes by name have the devices, spans, memory and predecessors of the block tables."""
    path = data / "pipeline" / "shapes_4_devices.csv"
    if not path.is_file():
        pytest.skip(f"{path} is absent")
    theirs = po.load_pipeline(f"{path}?shape={rows}")
    ours = po.load_pipeline(f"shape:{name}?devices=4")
    assert ours.num_blocks == theirs.num_blocks
    assert ours.work.tolist() == theirs.work.tolist()

    def shown(problem: po.PipelineProblem) -> list[tuple[object, ...]]:
        return sorted(
            (
                int(problem.heads[i]),
                tuple(problem.devices_of(i).tolist()),
                problem.kind[i],
                int(problem.span[i]),
                tuple(problem.memory[i].tolist()),
                len(problem.predecessors_of(i)),
            )
            for i in range(problem.num_blocks)
        )

    assert shown(ours) == shown(theirs)


@pytest.mark.parametrize(
    ("source", "capacity", "smallest"),
    [
        ("shape:wave?devices=3", 1, 2),
        ("shape:K?devices=4", 1, 2),
        ("shape:interleaved?devices=2&chunks=3", 2, 3),
    ],
)
def test_infeasible_memory_is_proved_and_the_smallest_feasible_limit_named(
    source: str, capacity: int, smallest: int
):
    """Too small a limit is refused with the least that works; that works, and one unit less does
    not.
    """
    problem = po.load_pipeline(source, memory=capacity)
    for solver in ("repetend", "tessel", "time-optimal"):
        result = schedule_result(problem, solver, micro_batches=2)
        assert result.status == "infeasible"
        assert result.message.endswith(
            f"not even one micro-batch fits; the smallest feasible limit is {smallest}"
        )
        with pytest.raises(
            po.InputError, match=f"proved infeasible.*the smallest feasible limit is {smallest}$"
        ):
            schedule(problem, solver, micro_batches=2)
    assert "proved infeasible" in po.bound(problem, seconds=5).infeasible
    assert (
        max(schedule(problem, memory=smallest, micro_batches=2, num_workers=1).peak_memory)
        <= smallest
    )


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (
            "l.csv",
            "gid,kind,span,devices,preds\nFé,F,1,0,\n".encode("latin-1"),
            "expected UTF-8 text",
        ),
        ("n.json", b"[" * 100_000, "nested too deeply"),
        ("n.toml", b"a = " + b"[" * 5000, "nested"),
        ("e.csv", b"", "expected the columns"),
        (
            "q.csv",
            b"gid,kind,span,devices,preds\nF,F,1_000,0,\n",
            "expected a whole number, received '1_000'",
        ),
        ("d.csv", "gid,kind,span,devices,preds\nF,F,٣,0,\n".encode(), "expected a whole number"),
        ("m.csv", b"gid,kind,span,devices,preds\nF,F,--7,0,\n", "expected a whole number"),
        ("s.csv", b"gid,kind,span,devices,preds\nF,F,1\n", "line 2: expected 5 fields"),
        ("x.csv", b"gid,kind,span,devices,preds\nF,F,1,0,a,b\n", "line 2: expected 5 fields.*more"),
        (
            "b.csv",
            b"gid,kind,span,devices,preds\nF,F,1,999999999999,\n",
            "expected 1 to 100000 devices",
        ),
        (
            "f.csv",
            b"gid,kind,span,devices,preds\n" + b"F" * 200_000 + b",F,1,0,\n",
            "cannot be read as CSV",
        ),
        (
            "t.json",
            b'{"devices": 1, "blocks": [{"name": "a", "span": true, "devices": [0]}]}',
            "received True",
        ),
        ("k.json", b'{"devices": 1, "devices": 2, "blocks": []}', "occurs twice"),
    ],
)
def test_damaged_files_are_refused_in_one_line(
    name: str, data: bytes, message: str, tmp_path: Path
):
    """No traceback, and one line that says which file and what is wrong."""
    (tmp_path / name).write_bytes(data)
    with pytest.raises(po.InputError, match=message) as error:
        po.load_pipeline(tmp_path / name)
    assert "\n" not in str(error.value)
    assert len(str(error.value).replace(str(tmp_path), "")) < 200


def test_smallest_memory_agrees_with_every_order():
    """On one device with blocks of different sizes, the least limit is that of the best order of
    the blocks.
    """
    from placeopt.schedules.problem import Block, PipelineProblem

    sizes = {"a": 4, "b": 3, "c": 2}
    blocks = [Block(name, "F", (0,), 1, (size,)) for name, size in sizes.items()]
    blocks += [
        Block(name.upper(), "B", (0,), 1, (-size + 1,), ((name, 0),))
        for name, size in sizes.items()
    ]
    blocks.append(Block("end", "other", (0,), 1, (-3,), (("A", 0), ("B", 0), ("C", 0))))
    problem = PipelineProblem.from_blocks("sizes", blocks, ["d"], capacity=4)
    # Each pair leaves 1 unit: 4 first, then 3 on top of 1, then 2 on top of 2.
    assert smallest_excess(problem, 10) == 0
    best = min(
        max(np.cumsum([d for name in order for d in (sizes[name], 1 - sizes[name])]))
        for order in (("a", "b", "c"), ("c", "b", "a"), ("b", "a", "c"))
    )
    assert best == 4


def test_a_memory_limit_is_refuted_by_no_clock_where_no_time_is_given(monkeypatch):
    """Then the proof ends by CP-SAT's own."""
    asked = {}

    def noted(**limits):
        asked.update(limits)
        return cp_solver(**limits)

    monkeypatch.setattr(bounds, "cp_solver", noted)
    problem = po.load_pipeline("shape:wave?devices=3", memory=1)
    assert "smallest feasible limit is 2" in bounds.memory_shortage(problem, math.inf)
    assert (asked["seconds"], asked["effort"]) == (math.inf, 20.0)


def test_inference_keeps_the_order_that_left_out_blocks_gave():
    """A block of another kind between two F blocks is left out, its place in their order is not."""
    move = {"name": "move", "kind": "other", "devices": ["b"], "span": 1, "after": ["F0"]}
    given = table(F1={"after": ["move"]})
    blocks = only_forward(problem_from_dict({**given, "blocks": [*given["blocks"], move]}).blocks())
    assert [(block.name, block.after) for block in blocks] == [("F0", ()), ("F1", (("F0", 0),))]


def test_what_waits_for_what_takes_bits():
    """A chain of 2000 blocks, of which sets took over a hundred megabytes."""
    blocks = [
        Block(f"b{i}", "other", (0,), 1, (), ((f"b{i - 1}", 0),) if i else ()) for i in range(2000)
    ]
    tracemalloc.start()
    PipelineProblem.from_blocks("chain", blocks, ["d"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**25


def test_what_is_freed_may_be_matched_another_way_round():
    """X frees what A or B allocated, Y what A did: X has to be matched with B, though A comes
    first.
    """
    from placeopt.schedules.problem import Block, PipelineProblem

    def problem(*, b: int) -> PipelineProblem:
        blocks = [
            Block("A", "F", (0,), 1, (1,)),
            Block("B", "F", (0,), 1, (b,)),
            Block("P", "other", (0,), 1),
            Block("Q", "other", (0,), 1),
            Block("X", "B", (0,), 1, (-1,), (("A", 0), ("B", 0))),
            Block("Y", "B", (0,), 1, (-1,), (("A", 0), ("P", 0), ("Q", 0))),
            Block("Z", "other", (0,), 1, (1 - b,), (("P", 0),)),
        ]
        return PipelineProblem.from_blocks("either", blocks, ["d"])

    assert problem(b=1).num_blocks == 7
    with pytest.raises(po.InputError, match="frees memory of device 'd' that no predecessor"):
        problem(b=0)
