"""Policies as files: JSON that says what it is, which version wrote it, and what the policy was
trained on.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Self

from placeopt.model.files import read_json, write_text
from placeopt.version import __version__

if TYPE_CHECKING:
    from pathlib import Path


class PolicyFile(ABC):
    """A policy that is saved and loaded; `format` and `version` are those of its file."""

    format: ClassVar[str]
    version: ClassVar[int]

    @abstractmethod
    def content(self) -> dict[str, Any]:
        """Return the policy as plain JSON."""

    @classmethod
    @abstractmethod
    def from_content(cls, data: Any, path: str | Path) -> Self:
        """Return the policy of a file's JSON.

        Raises
        ------
        InputError
            If it is not a policy file, or what it names is not what this version knows.
        """

    def save(self, path: str | Path) -> Path:
        """Write the policy as JSON, what is learned in six digits."""
        head = {"format": self.format, "version": self.version, "placeopt": __version__}
        return write_text(path, json.dumps(head | self.content(), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a policy file; raises InputError as `from_content` does."""
        return cls.from_content(read_json(path), path)
