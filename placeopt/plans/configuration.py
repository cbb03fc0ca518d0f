"""Configuration: one way to train a model on many equal devices, as launchers spell it."""

from __future__ import annotations

from dataclasses import dataclass

from placeopt.model.errors import InputError

RECOMPUTE = ("none", "selective", "full")
SHARDING = ("none", "zero1", "zero2", "zero3")
POSITIVE = (
    *("tensor", "pipeline", "data", "context", "expert"),
    *("chunks", "micro_batch", "batch", "sequence"),
)
"""Fields that are at least 1."""


@dataclass(frozen=True)
class Configuration:
    """Degrees, sizes and modes.

    Attributes
    ----------
    tensor, pipeline, data, context, expert : degrees; expert ranks are among the data-parallel
    ones. chunks : stages per device of an interleaved schedule. micro_batch : sequences.
    batch : sequences of a step. per_host : devices of a host.
    recompute : one of RECOMPUTE. sharding : one of SHARDING; FSDP is zero3. shard_group : ranks
    that share states out, 0 for all replicas. precision : of the matrix products.
    sequence_parallel : whether what lies between matrices is shared out, too.
    share : part of the layers that full recomputation covers.
    framework : family of launchers, "" if unknown. adapters : whether low-rank adapters alone are
    trained. main_gradients : bytes of a gradient. compiled : whether a compiler fuses what lies
    between matrices. async_tensor : whether products overlap tensor collectives. triton : whether
    attention is Triton's. short_states : whether the optimizer keeps 16-bit moments alone.
    """

    sequence: int
    batch: int
    tensor: int = 1
    pipeline: int = 1
    chunks: int = 1
    data: int = 1
    context: int = 1
    expert: int = 1
    micro_batch: int = 1
    per_host: int = 8
    recompute: str = "none"
    sharding: str = "none"
    shard_group: int = 0
    precision: str = "bf16"
    sequence_parallel: bool = True
    flash: bool = True
    framework: str = ""
    adapters: bool = False
    main_gradients: int = 4
    share: float = 1.0
    compiled: bool = False
    async_tensor: bool = False
    triton: bool = False
    short_states: bool = False

    def __post_init__(self) -> None:
        for name in POSITIVE:
            value = getattr(self, name)
            if value < 1:
                name = name.replace("_", "-")
                raise InputError(f"plan: {name}: expected at least 1, received {value}")

    @property
    def devices(self) -> int:
        """Devices of the plan."""
        return self.tensor * self.pipeline * self.data * self.context

    @property
    def ranks(self) -> int:
        """Ranks that sum their gradients, of data and context parallelism."""
        return self.data * self.context

    @property
    def rounds(self) -> int:
        """Micro-batches that pass each replica in a step."""
        return max(1, -(-self.batch // (self.data * self.micro_batch)))

    @property
    def tokens(self) -> float:
        """Tokens of a micro-batch on a rank."""
        return self.micro_batch * self.sequence / self.context

    @property
    def forwards(self) -> float:
        """Forward passes of a layer, those of recomputation included."""
        return 1.0 + (self.share if self.recompute == "full" else 0.0)

    @property
    def shards(self) -> int:
        """Ranks that share optimizer states out."""
        return 1 if self.sharding == "none" else min(self.shard_group or self.ranks, self.ranks)

    def copies_among(self, ranks: int) -> float:
        """Return how many of so many ranks, and of those that share tensors with them, have copies
        of an expert's part: where experts are spread, tensor ranks have whole ones.
        """
        return max(1.0, ranks * self.tensor / self.expert) if self.expert > 1 else ranks

    @property
    def expert_shards(self) -> float:
        """Ranks that share the optimizer states of an expert out."""
        return 1 if self.sharding == "none" else self.copies_among(self.shards)

    def text(self) -> str:
        """Return it in one line."""
        degrees = f"TP{self.tensor} PP{self.pipeline}"
        degrees += f" VP{self.chunks}" if self.chunks > 1 else ""
        degrees += f" CP{self.context}" if self.context > 1 else ""
        degrees += f" EP{self.expert}" if self.expert > 1 else ""
        words = [f"{degrees} DP{self.data}", f"micro-batch {self.micro_batch}"]
        words += [f"recompute {self.recompute}", self.precision]
        words += [self.sharding] if self.sharding != "none" else []
        return ", ".join(words)
