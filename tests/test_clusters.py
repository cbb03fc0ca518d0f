"""Clusters: names, options, TOML files, and what a wrong one says."""

from __future__ import annotations

import numpy as np
import pytest

from placeopt.instances.clusters import EXAMPLE, cluster_names, make_cluster
from placeopt.instances.sources import load_graph
from placeopt.io.serialize import from_dict, to_dict
from placeopt.model.cost_model import lower
from placeopt.model.errors import InputError
from placeopt.model.graph import UNSUPPORTED, OpGraph


def test_every_preset_can_be_made():
    """Each listed cluster exists and has distinct device names."""
    for name in cluster_names():
        cluster = make_cluster(name)
        assert cluster.name == name
        assert len({d.name for d in cluster.devices}) == cluster.num_devices


@pytest.mark.parametrize(
    ("name", "devices", "classes"),
    [
        ("4xA100", 4, 1),
        ("2x4xA100", 8, 2),
        ("cpu+gpu", 2, 1),
        ("cpu+4xP100", 5, 2),
        ("uniform:7", 7, 1),
        ("V100", 1, 1),
        ("2xA100+2xV100", 4, 3),
        ("2x2xA100+4xL4+4xT4", 12, 4),
        ("8xMI300X", 8, 1),
    ],
)
def test_names_give_devices_and_link_classes(name, devices, classes):
    """The grammar of names is honoured."""
    cluster = make_cluster(name)
    assert (cluster.num_devices, len(cluster.links)) == (devices, classes)


def test_contention_options():
    """none, pair, source and host give the channel matrices they promise."""
    assert (make_cluster("4xA100").channel == -1).all()
    pair = make_cluster("4xA100?contention=pair").channel
    assert len(set(pair.ravel())) == 16
    source = make_cluster("4xA100?contention=source").channel
    assert (source == source[:, :1]).all()
    host = make_cluster("2x4xA100?contention=host").channel
    assert (host[:4, :4] == -1).all()
    assert len(set(host[:4, 4:].ravel())) == 1


def test_hosts_of_unlike_devices():
    """Each part is a host of its own, with its own link; Ethernet between."""
    cluster = make_cluster("2xA100+2xV100")
    assert [d.kind for d in cluster.devices] == ["A100", "A100", "V100", "V100"]
    names = [[cluster.links[c].name for c in row] for row in cluster.link_class]
    assert names[0][1:] == ["nvlink-A100", "ethernet", "ethernet"]
    assert names[3][:3] == ["ethernet", "ethernet", "nvlink-V100"]


def test_links_shared_as_in_hardware():
    """A port per device into a switch, one root per host for PCI Express, one network card per
    host.
    """
    channel = make_cluster("2xA100+3xL4?contention=hardware").channel
    assert channel[0, 1] != channel[1, 0]  # each A100 has its port
    assert channel[2, 3] == channel[4, 2] == channel[3, 4]  # the L4 share a root
    assert (
        channel[0, 2] == channel[1, 4] != channel[2, 0] == channel[3, 1]
    )  # the cards of the two hosts
    kinds = {
        int(channel[0, 1]),
        int(channel[1, 0]),
        int(channel[2, 3]),
        int(channel[0, 2]),
        int(channel[2, 0]),
    }
    assert len(kinds) == 5


def test_a_file_shares_links_by_the_same_names(tmp_path):
    """`contention` of a file takes what a name's option takes: both make the same channels."""
    rows = [f'[[devices]]\nkind = "L4"\nname = "host0/gpu{i}"' for i in range(3)]
    body = "\n".join([*rows, '[[connections]]\nbetween = ["*", "*"]\nlink = "pcie4"'])
    for model in ("none", "pair", "source", "host", "hardware"):
        (tmp_path / "lab.toml").write_text(f'contention = "{model}"\n{body}')
        expected = make_cluster(f"3xL4?contention={model}").channel
        assert make_cluster(tmp_path / "lab.toml").channel.tolist() == expected.tolist()


def test_the_example_is_a_cluster(tmp_path):
    """What `placeopt clusters --example` prints can be read as it is."""
    (tmp_path / "lab.toml").write_text(EXAMPLE)
    cluster = make_cluster(str(tmp_path / "lab.toml"))
    assert [d.name for d in cluster.devices] == ["A100-0", "A100-1", "board", "host"]
    assert (cluster.devices[0].memory, cluster.devices[2].family) == (80 * 2**30, "accelerator")
    assert cluster.links[cluster.link_class[0, 1]].name == "nvlink"
    assert cluster.links[cluster.link_class[0, 3]].name == "pcie"


def test_options_change_devices():
    """Precision, memory and efficiency act on the devices."""
    assert make_cluster("1xA100?precision=fp16").devices[0].peak_flops == 312e12
    assert make_cluster("1xH100?precision=bf16").devices[0].peak_flops == 989.4e12
    assert make_cluster("1xA100?efficiency=0.5").devices[0].peak_flops == 19.5e12 / 2
    assert make_cluster("1xA100?memory=2").devices[0].memory == 2 * 2**30


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("4xA1000", "did you mean"),
        ("0xA100", "expected 1"),
        ("uniform:0", "expected 1"),
        ("4xA100?speed=1", "unknown option"),
        ("4xA100?contention=bus", "contention must be"),
        ("4xA100?memory=-1", "positive"),
        ("4xA100?memory=1e300", "memory must be in"),
        ("1xP100?precision=tf32", "matrix units"),
        ("1xV100?precision=bf16", "matrix units"),
        ("nowhere.toml", "no such file"),
        ("99999xA100", "expected 1"),
        ("9" * 9999 + "xA100", "expected 1"),
        ("4xA100?contntion=pair", "did you mean 'contention'"),
        ("4xA100?memory=1&memory=2", "given twice"),
        ("a" * 9999, "is not known"),
        ("uniform:\u0664", "is not known"),
        ("\0", "is not known"),
    ],
)
def test_wrong_names_say_what_to_write(name, words):
    """A wrong name or option is one clear line."""
    with pytest.raises(InputError, match=words) as error:
        make_cluster(name)
    assert "\n" not in str(error.value)


GOOD = """
name = "lab"
contention = "source"
[[devices]]
kind = "A100"
count = 2
memory_gib = 80
[[devices]]
name = "host"
kind = "cpu"
[[links]]
name = "bus"
latency = 1e-5
bandwidth = 25e9
[[connections]]
between = ["*", "*"]
link = "bus"
[[connections]]
between = ["A100-*", "A100-*"]
link = "nvlink-A100"
"""


def test_toml_file(tmp_path):
    """A TOML file describes devices, links and who is connected by what."""
    path = tmp_path / "lab.toml"
    path.write_text(GOOD)
    cluster = make_cluster(path)
    assert [d.name for d in cluster.devices] == ["A100-0", "A100-1", "host"]
    assert cluster.devices[0].memory == 80 * 2**30
    assert cluster.link_class.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    assert cluster.channel[0].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('kind = "cpu"', 'kind = "abacus"', "abacus"),
        ("count = 2", "count = 0", r"in 1\.\.4096"),
        ('link = "bus"', 'link = "bos"', "bos"),
        ('between = ["*", "*"]', 'between = ["x", "*"]', "matches no pair"),
        ("latency = 1e-5", "latency = nan", "finite"),
        ("[[devices]]", "[[devices", "not valid TOML"),
        ("count = 2", "colour = 2", "colour"),
        ("count = 2", "cuont = 2", "did you mean 'count'"),
        ("count = 2", "count = true", "whole number, received true"),
        ("count = 2", f"count = 0x{'f' * 9999}", "received a number of 39996 bits"),
        ("25e9", "1e-300", "at least 0.001 bytes"),
        ("count = 2", f"count = {'9' * 9999}", "not valid TOML"),
        ("count = 2", f"count = {'[' * 900 + ']' * 900}", "too deeply"),
        ("count = 2", f"count = {'[' * 99999}", "nested or dotted"),
        ("count = 2", "a." * 99999 + "b = 1", "nested or dotted"),
        ("memory_gib = 80", "memory_gib = 1e308", "memory must be in"),
        ("25e9", "0x" + "f" * 999, "finite number"),
        ("count = 2", "count = 4096", "at most 4096 devices"),
        ('name = "bus"', "name = 3", "expected a string"),
        ("25e9", '25e9\n[[links]]\nname = "bus"\nlatency = 0\nbandwidth = 1', "there twice"),
        ('contention = "source"', 'contention = "bus"', "contention"),
    ],
)
def test_wrong_toml_files(tmp_path, old, new, words):
    """Each mistake in a cluster file is one clear line that names it."""
    path = tmp_path / "lab.toml"
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(InputError, match=words) as error:
        make_cluster(path)
    assert "\n" not in str(error.value)


def test_a_toml_file_with_a_byte_order_mark_is_read(tmp_path):
    """Editors that write a byte-order mark do no harm."""
    path = tmp_path / "lab.toml"
    path.write_text(GOOD, encoding="utf-8-sig")
    assert make_cluster(path).num_devices == 3


def test_connections_that_cover_the_pairs_too_often_are_refused(tmp_path):
    """The work for a file of connections is bounded."""
    path = tmp_path / "lab.toml"
    path.write_text(GOOD + '[[connections]]\nbetween = ["*", "*"]\nlink = "bus"\n' * 99)
    with pytest.raises(InputError, match="more than 64 times"):
        make_cluster(path)


def graph():
    """Return three ops, of which the second has measured times."""
    return OpGraph.from_tensors(
        "g",
        ["a", "b", "c"],
        [(0, 10**9, [1, 2])],
        flops=[15_700_000, 10, 0],
        bytes_moved=[0, 9 * 10**8, 0],
        measured_kinds=("*", "gpu"),
        measured=[[-1, -1], [-1, 7], [9, UNSUPPORTED]],
    )


def test_roofline_and_measured_times():
    """Roofline plus launch overhead; a measured time wins, the most specific one first; -2 is
    incompatible.
    """
    problem = lower(graph(), make_cluster("cpu+gpu"))
    assert (
        problem.compute[0, 1] == 1_000 + 5_000
    )  # 15.7 MFLOP at 15.7 TFLOP/s = 1 us, + 5 us, in ns
    assert problem.compute[1].tolist() == [round(9e8 / 128e9 * 1e9) + 1000, 7]
    assert problem.compute[2].tolist() == [9, -1]
    assert problem.transfer[0, 0] == 10_000 + np.floor(1e9 / 15.75 + 0.5)
    assert problem.io_class.tolist() == [-1, 0]


def plain_graph(size: int = 2, shape: tuple[int, ...] = (4, 1000)) -> OpGraph:
    """Return a product, attention and an op that makes nothing, of values of `size` bytes."""
    return OpGraph.from_tensors(
        "g",
        ["product", "attention", "update"],
        [(0, 4000 * size, [1]), (1, 4000 * size, [2])],
        shapes=(shape, shape),
        op_types=("linear", "scaled_dot_product_attention", "adam"),
        flops=[10**12, 10**12, 0],
        bytes_moved=[10**6, 10**6, 10**9],
    )


def test_values_of_16_bits_take_what_measured_kernels_take():
    """On ready-made devices ops of 16-bit values run at the rates of their kernels, attention at
    its own; with a precision, or of other values, at the data sheet's peak.
    """
    device = make_cluster("1xA100").devices[0]
    assert device.half.flops == pytest.approx(271.2e12 * 0.947)  # the best measured product
    times = lower(plain_graph(), make_cluster("1xA100")).compute[:, 0] * 1e-9
    assert times[0] == pytest.approx(1e12 / device.half.flops + 4e-6, rel=1e-6)
    assert times[1] == pytest.approx(1e12 / device.attention.flops + 12.5e-6, rel=1e-6)
    assert times[2] == pytest.approx(
        1e9 / device.half.bandwidth + 4e-6, rel=1e-6
    )  # of what it reads
    plain = lower(plain_graph(), make_cluster("1xA100?precision=fp32")).compute
    assert plain[0, 0] == pytest.approx((1e12 / 19.5e12 + 4e-6) * 1e9)
    for size in (1, 4):
        assert (lower(plain_graph(size), make_cluster("1xA100")).compute == plain).all()
    assert (lower(plain_graph(2, ()), make_cluster("1xA100")).compute == plain).all()


def test_numbers_of_ones_own_hold_for_all_kernels(tmp_path):
    """A device whose rates a file changes, and one without matrix units, have one rate; memory
    alone changes no rate, and `efficiency` slows all kernels.
    """
    file = tmp_path / "own.toml"
    entry = '[[devices]]\nkind = "A100"\n'
    for line, kept in (("peak_flops = 1e14", False), ("memory_gib = 80", True)):
        file.write_text(entry + line)
        assert (make_cluster(str(file)).devices[0].half is not None) == kept
    assert make_cluster("1xP100").devices[0].half is None
    half = make_cluster("1xA100?efficiency=0.5").devices[0].half
    assert half.flops == make_cluster("1xA100").devices[0].half.flops / 2


def test_gradients_are_of_the_values_they_belong_to():
    """A training graph of 16-bit values stays one, saved and loaded too."""
    graph = load_graph("gen:llama?layers=1&hidden=64&heads=4&ffn=64&vocab=64", training=True)[0]
    others = {kind for kind, half in zip(graph.op_types, graph.half, strict=True) if not half}
    assert others == {"adam"}
    assert (from_dict(to_dict(graph)).half == graph.half).all()
    cluster = make_cluster("2xA100")
    assert from_dict(to_dict(cluster)).devices == cluster.devices
