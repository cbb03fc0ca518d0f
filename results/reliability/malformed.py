"""Malformed files: every reader meets truncations, flipped bits, wrong types, huge numbers, depth
and wrong encodings.

    python results/reliability/malformed.py [--per-kind 11] [--seed 0]

Every graph is read twice, with its format named and with the format to be recognised, every other
file once, in a process of its own with 5 s and 1 GiB more than it had. It must be read, or refused
by one InputError of one line with at most 200 characters before the hint. Anything else is a
defect: the script names it and exits with 1. The counts are written to malformed.csv.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import resource
import signal
import sys
import tempfile
import zipfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from placeopt.experiments.studies import read_csv, write_csv
from placeopt.instances.readers import read_bundled
from placeopt.io.serialize import (
    save,  # noqa: F401 -- registers the codecs
    to_dict,
)
from placeopt.model.errors import MAX_MESSAGE, InputError
from placeopt.model.graph import OpGraph

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 5
BYTES = 2**30
NODE = "forward_compute_time=1, backward_compute_time=1, activation_size=1, parameter_size=4"
NUMBER = re.compile(rb"[0-9]+(?:\.[0-9]+)?")
WRONG = (
    b"x",
    b"null",
    b"[]",
    b"{}",
    b'"1"',
    b"-1",
    b"1_000",
    b"1.5",
    b"true",
    b"nan",
    b"\xd9\xa1",
    b"",
)
HUGE = (
    b"9" * 30,
    b"9" * 5000,
    b"1e308",
    b"1e999",
    b"-" + b"9" * 19,
    b"0x" + b"f" * 5000,
    b"4611686018427387904",
)
DEEP = (
    b"[" * 5000,
    b"{" * 5000,
    b"(" * 5000,
    b"<a>" * 5000,
    b'{"a":' * 5000,
    b"/**/" * 5000,
    b"/*" * 5000,
    b"[" * 100_000,
)


def samples() -> dict[str, bytes]:
    """Return a small good file of every format."""
    graph = OpGraph.from_edges("g", ["a", "b", "c"], [(0, 1), (1, 2)], [4, 5], flops=np.arange(3))
    partition = {
        "maxSizePerFPGA": 1000,
        "maxFPGAs": 2,
        "maxCPUs": 1,
        "nodes": [
            {
                "id": i,
                "supportedOnFpga": 1,
                "cpuLatency": 2,
                "fpgaLatency": 1,
                "isBackwardNode": 0,
                "size": 9,
            }
            for i in range(3)
        ],
        "edges": [{"sourceId": 0, "destId": 1, "cost": 1}, {"sourceId": 1, "destId": 2, "cost": 2}],
    }
    workflow = {
        "name": "w",
        "schemaVersion": "1.3",
        "workflow": {
            "tasks": [
                {
                    "name": "a",
                    "id": "1",
                    "runtime": 2,
                    "parents": [],
                    "files": [{"link": "output", "name": "f", "size": 9}],
                },
                {
                    "name": "b",
                    "id": "2",
                    "runtime": 1,
                    "parents": ["a"],
                    "files": [{"link": "input", "name": "f", "size": 9}],
                },
            ]
        },
    }
    port = '<port id="{}" precision="FP32"><dim>1</dim><dim>4</dim></port>'
    openvino = (
        '<net name="n" version="11"><layers><layer id="0" name="x" '
        f'type="Parameter"><output>{port.format(0)}</output></layer>'
        '<layer id="1" name="r" '
        f'type="ReLU"><input>{port.format(0)}</input><output>{port.format(1)}</output></layer>'
        '<layer id="2" name="o" '
        f'type="Result"><input>{port.format(0)}</input></layer></layers><edges>'
        '<edge from-layer="0" from-port="0" to-layer="1" to-port="0"/>'
        '<edge from-layer="1" from-port="1" to-layer="2" to-port="0"/></edges></net>'
    )
    texts = {
        "placeopt": json.dumps(to_dict(graph)),
        "pipedream": f"node1 -- A(1) -- {NODE}\nnode2 -- B -- {NODE}\n\tnode1 -- node2\n",
        "doppler": "4\n0\n0,1\n1,2\n1,2\n3,4\n5,6\n",
        "dnn-partitioning": json.dumps(partition),
        "graphs-json": json.dumps({"g": {"n": 2, "work": [1, 2], "edges": [[0, 1, 3]]}}),
        "unrelated": "#critical\n0\n#tasks\n0: 1, 2\n1: 3, 4\n#edges\n0: 0, 1, 5\n#end\n",
        "dot": "digraph { a [time=1]; a -> b [bytes=3]; b -> c }\n",
        "graphml": '<graphml><key id="k" for="node" attr.name="time"/><graph '
        'edgedefault="directed"><node id="a"><data key="k">'
        '3</data></node><node id="b"/><edge source="a" target="b"/></graph></graphml>',
        "node-link": json.dumps(
            {
                "directed": True,
                "multigraph": False,
                "nodes": [{"id": 1}, {"id": 2}],
                "edges": [{"source": 1, "target": 2}],
            }
        ),
        "csv": "op,flops\na,1\nb,2\n\nsource,target,bytes\na,b,3\n",
        "edge-list": "a: 3\na b 1\nb c 2\na c {'weight': 3}\n",
        "stg": "3\n0 0 0\n1 4 1 0\n2 5 1 0\n3 6 2 1 2\n4 0 1 3\n",
        "wfcommons": json.dumps(workflow),
        "openvino": openvino,
    }
    return {name: text.encode() for name, text in texts.items()} | {
        "onnx": _onnx(),
        "pt2": _pt2(_program()),
    }


def _onnx() -> bytes:
    from onnx import TensorProto, helper

    value = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xyz"}
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Sigmoid", ["y"], ["z"])]
    graph = helper.make_graph(nodes, "g", [value["x"]], [value["z"]])
    content: bytes = helper.make_model(graph).SerializeToString()
    return content


def _program() -> bytes:
    def tensor(name: str) -> dict[str, object]:
        return {"as_tensor": {"name": name}}

    meta = {"dtype": 7, "sizes": [{"as_int": 1}, {"as_int": 4}]}
    graph = {
        "tensor_values": {"x": meta, "y": meta},
        "outputs": [tensor("y")],
        "nodes": [
            {
                "target": "torch.ops.aten.relu.default",
                "inputs": [{"name": "self", "arg": tensor("x")}],
                "outputs": [tensor("y")],
                "metadata": {},
            }
        ],
    }
    return json.dumps({"graph_module": {"graph": graph, "signature": {"input_specs": []}}}).encode()


def _pt2(program: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/models/model.json", program)
    return stream.getvalue()


def _replace_number(data: bytes, new: bytes, rng: np.random.Generator) -> bytes:
    spots = list(NUMBER.finditer(data))
    if not spots:
        return data + new
    spot = spots[int(rng.integers(len(spots)))]
    return data[: spot.start()] + new + data[spot.end() :]


def _flip(data: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        changed[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def _deepen(data: bytes, rng: np.random.Generator) -> bytes:
    at = int(rng.integers(len(data) + 1))
    return data[:at] + DEEP[int(rng.integers(len(DEEP)))] + data[at:]


def _recode(data: bytes, rng: np.random.Generator) -> bytes:
    text = data.decode("latin-1").replace("a", "\xe4", 1)
    encoding = ("utf-16", "latin-1", "utf-8-sig", "utf-32", "utf-7")[int(rng.integers(5))]
    return (b"\x00" * int(rng.integers(2))) + text.encode(encoding)


def _repeat(data: bytes, rng: np.random.Generator) -> bytes:
    a, b = sorted(int(x) for x in rng.integers(len(data) + 1, size=2))
    return data[:b] + data[a:b] * int(rng.integers(1, 2000)) + data[b:]


KINDS = {
    "truncated": lambda data, rng: data[: int(rng.integers(len(data)))],
    "bits flipped": _flip,
    "wrong type": lambda data, rng: _replace_number(
        data, WRONG[int(rng.integers(len(WRONG)))], rng
    ),
    "huge number": lambda data, rng: _replace_number(data, HUGE[int(rng.integers(len(HUGE)))], rng),
    "nested deeply": _deepen,
    "wrong encoding": _recode,
    "part repeated": _repeat,
}


def malformed(name: str, good: bytes, kind: str, rng: np.random.Generator) -> bytes:
    """Return a malformed file of a format; half of the archives are damaged inside, the others
    outside.
    """
    if name == "pt2" and rng.integers(2):
        return _pt2(KINDS[kind](_program(), rng))
    return KINDS[kind](good, rng)


def outcome(path: Path, read: Callable[[Path], object]) -> str:
    """Read a file in a bounded process: "read", "refused", or what went wrong."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        text = _bounded(path, read)
        os.write(send, text.encode("utf-8", "replace")[:4000])
        os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as stream:
        text = stream.read().decode("utf-8")
    _, status = os.waitpid(child, 0)
    return text or f"killed by signal {os.WTERMSIG(status)}"


def _bounded(path: Path, read: Callable[[Path], object]) -> str:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        read(path)
        return "read"
    except InputError as error:
        message = str(error)
        if "\n" in message or len(message.partition("; ")[0]) > MAX_MESSAGE:
            return f"not one short line: {message[:200]}"
        return "refused"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:200]}"


def run(per_kind: int, seed: int, chosen: list[str]) -> tuple[list[dict[str, object]], list[str]]:
    """Make and read the files; return a row per format and kind, and the defects."""
    rows, defects = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, (title, (file, good, readers)) in enumerate(every_sample().items()):
            if chosen and title not in chosen:
                continue
            path = folder / file
            path.write_bytes(good)
            for read in readers:
                if outcome(path, read) != "read":
                    defects.append(f"{title}: the sample itself: {outcome(path, read)}")
            for kind_number, kind in enumerate(KINDS):
                counts: Counter[str] = Counter()
                for i in range(per_kind):
                    rng = np.random.default_rng([seed, number, kind_number, i])
                    path.write_bytes(malformed(title, good, kind, rng))
                    for read in readers:
                        found = outcome(path, read)
                        if found not in ("read", "refused"):
                            defects.append(f"{title}, {kind}, file {i}: {found}")
                            found = "defect"
                        counts[found] += 1
                print(title, kind, dict(counts), *defects[-1:], flush=True)
                rows.append(
                    {
                        "format": title,
                        "kind": kind,
                        "files": per_kind,
                        "reads": counts.total(),
                        **{key: counts[key] for key in ("read", "refused", "defect")},
                    }
                )
            path.unlink()
    return rows, defects


def every_sample() -> dict[str, tuple[str, bytes, tuple[Callable[[Path], object], ...]]]:
    """Return name -> (file name, content, readers): graphs with their format named and recognised,
    and all other files.
    """
    found: dict[str, tuple[str, bytes, tuple[Callable[[Path], object], ...]]] = {}
    for name, good in samples().items():
        found[name] = "file", good, (partial(read_bundled, format=name), read_bundled)
    import other_files

    others = other_files.samples()
    return {**{name: (file, good, (read,)) for name, (file, good, read) in others.items()}, **found}


def main() -> int:
    """Run the study and write its table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--per-kind", type=int, default=11, help="malformed files per format and kind"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", default="", help="formats to read, semicolons between; other rows are kept"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("malformed.csv"))
    options = parser.parse_args()
    chosen = [name for name in options.only.split(";") if name]
    rows, defects = run(options.per_kind, options.seed, chosen)
    if chosen:
        rows = [row for row in read_csv(options.out) if row["format"] not in chosen] + rows
    write_csv(options.out, rows)
    print(*defects, sep="\n")
    print(f"{sum(int(str(row['files'])) for row in rows)} files, {len(defects)} defects")
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main())
