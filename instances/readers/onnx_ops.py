"""The ops of ONNX: which cost rule each one has, and which attributes the rules need."""

from __future__ import annotations

from typing import Any

from placeopt.instances.readers.op_costs import vocabulary

_OPS = vocabulary("onnx")

SAME_SHAPE = frozenset(_OPS["same_shape"])
"""Ops outside the ONNX standard whose first output has the shape of their first input."""

DTYPES = dict(enumerate(_OPS["dtypes"], 1))
"""Element type by TensorProto.DataType."""


def rule_of(op_type: str, domain: str, attrs: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the cost rule of a node and the attributes that the rules look at.

    Parameters
    ----------
    attrs : the plain attributes of the node (ints, floats, texts and lists of them).
    """
    rule = _OPS["rule"].get(op_type, "elementwise")
    found = dict(_OPS["attributes"].get(op_type, {}))
    if op_type == "Conv":
        found["groups"] = int(attrs.get("group", 1))
    if rule == "attention":
        found["heads"] = int(attrs.get("num_heads") or attrs.get("q_num_heads") or 1)
        if op_type == "Attention" and domain not in ("", "ai.onnx"):
            rule = "packed_attention"
        elif op_type == "Attention":
            found["past"] = 4
    elif rule == "matmul":
        found["trans_a"], found["trans_b"] = (
            bool(attrs.get("transA", 0)),
            bool(attrs.get("transB", 0)),
        )
    elif rule == "pool":
        found["kernel"] = tuple(int(k) for k in attrs.get("kernel_shape", ()))
    elif rule == "einsum":
        found["equation"] = str(attrs.get("equation", ""))
    elif rule == "lrn":
        found["size"] = int(attrs.get("size", 5))
    return rule, found
