"""Warm pools, one per base model, as the algorithms see them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WarmPool:
    """The GPUs that have one base model loaded, or are loading it (section 4.4)."""

    base_model: str
    #: T_cold: seconds until a GPU of the cold pool has the base model loaded.
    boot_s: float
    #: E_l: when each GPU is free, rising. An idle GPU is free at ``now`` or before; a busy
    #: one when its job is predicted to end, a booting one when it is ready.
    free_at_s: tuple[float, ...]

    def __post_init__(self) -> None:
        if any(a > b for a, b in zip(self.free_at_s, self.free_at_s[1:], strict=False)):
            raise ValueError(f"free_at_s of {self.base_model} must rise")
