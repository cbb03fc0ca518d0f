"""Versioned JSON of every object: graphs, clusters, problems, solutions, budgets and results.

    save(result, "result.json")
    result = load("result.json")

The forms stand in `problem_codecs` and `result_codecs`; packages add theirs with `register` (see
`codec`).
"""

from __future__ import annotations

from placeopt.io import problem_codecs  # noqa: F401 -- it registers its codecs
from placeopt.io.body import Body
from placeopt.io.codec import Codec, from_dict, load, register, save, to_dict
from placeopt.io.result_codecs import result_fields

__all__ = ["Body", "Codec", "from_dict", "load", "register", "result_fields", "save", "to_dict"]
