"""Devices written as text, for cost files that bring their own kinds:
`32xA100-40+96xV100-16@us-west1-b?price=2.5`.
"""

from __future__ import annotations

import re

from placeopt.model.errors import InputError
from placeopt.plans.layer_tables import device_kind
from placeopt.plans.step_problem import DevicePool

GIB = 2**30
KNOWN: dict[str, tuple[int, int]] = {
    # kind: GiB of a device, devices of a host; from the vendors' datasheets and the published
    # clusters
    "A100-40": (40, 4),
    "A100-80": (80, 4),
    "V100-16": (16, 4),
    "GH-96": (96, 4),
    "Titan-RTX": (24, 8),
    "RTX-2080": (11, 8),
    "RTX-3090": (24, 8),
}
OPTIONS = ("memory", "per_host", "price")


def parse_pools(text: str) -> tuple[DevicePool, ...]:
    """Return the devices of `NxKIND@ZONE?memory=GIB&per_host=4&price=2.5`, several joined by "+".

    Raises
    ------
    InputError
        If a part is malformed, or a kind is not known and brings no memory and devices per host.
    """
    return tuple(_pool(part, text) for part in text.split("+"))


def _pool(part: str, whole: str) -> DevicePool:
    found = re.fullmatch(r"(\d+)x([^?]+)(?:\?(.*))?", part.strip())
    if not found:
        raise InputError(
            f"devices '{whole}': expected COUNTxKIND, joined by '+', received '{part}'"
        )
    kind, options = found[2], {}
    for pair in (found[3] or "").split("&") if found[3] else ():
        key, _, value = pair.partition("=")
        if key not in OPTIONS:
            raise InputError(
                f"devices '{part}': expected options among {', '.join(OPTIONS)}, received '{key}'"
            )
        try:
            options[key] = float(value)
        except ValueError:
            raise InputError(
                f"devices '{part}': {key}: expected a number, received '{value}'"
            ) from None
    if device_kind(kind) in KNOWN:
        options = dict(zip(("memory", "per_host"), KNOWN[device_kind(kind)], strict=True)) | options
    memory, per_host = options.get("memory"), options.get("per_host")
    if memory is None or per_host is None:
        raise InputError(
            f"devices '{part}': kind '{kind}' is not among {', '.join(KNOWN)}; add "
            "?memory=GIB&per_host=N"
        )
    return DevicePool(
        kind, int(found[1]), int(per_host), int(memory * GIB), options.get("price", 0.0)
    )
