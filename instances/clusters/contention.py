"""Which transfers wait for each other: the contention models of a cluster, by name.

A cluster's name means one cluster: without the option `contention` nothing is shared, as in the
simulators that published placements were valued by. `hardware` shares links as machines do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.cluster import CONTENTION, contention_matrix
from placeopt.model.errors import InputError

if TYPE_CHECKING:
    from placeopt.model.arrays import Ints
    from placeopt.model.cluster import Cluster

MODELS = (*CONTENTION, "host", "hardware")
"""Names of the models; what the last two share depends on hosts and links."""


def channels(cluster: Cluster, contention: str, where: str) -> Ints:
    """Return the channel of every ordered pair of devices, -1 where transfers never wait; shape
    (num_devices, num_devices).
    """
    if contention == "host":
        return host_channels(cluster)
    if contention == "hardware":
        return hardware_channels(cluster)
    if contention not in CONTENTION:
        raise InputError(
            f"{where}: contention must be one of {', '.join(MODELS)}; received '{contention}'"
        )
    return contention_matrix(cluster.num_devices, contention)


def _hosts(cluster: Cluster) -> Ints:
    """Return the host of every device, in order of their first devices; shape (num_devices,)."""
    hosts: dict[str, int] = {}
    names = (device.name.rpartition("/")[0] for device in cluster.devices)
    return np.array([hosts.setdefault(name, len(hosts)) for name in names])


def host_channels(cluster: Cluster) -> Ints:
    """One channel per host for everything it sends to other hosts (its network card); none inside a
    host.
    """
    host = _hosts(cluster)
    outside = host[:, None] != host[None, :]
    return np.where(outside, host[:, None], -1).astype(np.int64)


SHARED = ("pcie", "usb")
"""Links, by the beginning of their names, that all devices of a host share."""


def hardware_channels(cluster: Cluster) -> Ints:
    """Share links as the hardware does.

    A device sends one transfer at a time into its switch (NVLink, Infinity Fabric, ICI); what
    crosses PCI Express or USB shares the root of its host; what leaves a host shares its network
    card.
    """
    outside, host = host_channels(cluster), _hosts(cluster)
    hosts = int(host.max()) + 1
    shared = np.array([link.name.startswith(SHARED) for link in cluster.links])[cluster.link_class]
    port = np.arange(cluster.num_devices)[:, None] + 2 * hosts
    inside = np.where(shared, host[:, None] + hosts, port)
    return np.where(outside >= 0, outside, inside).astype(np.int64)
