"""Settings of the learner that a configuration holds; they need no torch. The defaults are the paper's values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoRASettings:
    """Adapters on frozen base weights (Appendices D.1 and D.3), without dropout."""

    rank: int = 32
    alpha: float = 64
    """An adapter's product is scaled by alpha / rank."""
    targets: tuple[str, ...] | None = None
    """Names of linear modules; null takes the paper's list for the architecture."""
    seed: int = 0
    """Of the initial adapters, which are the same on every learner rank."""

    def __post_init__(self) -> None:
        for name in ("rank", "alpha"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, is {getattr(self, name)}")
        if self.targets is not None and not self.targets:
            raise ValueError("targets is empty: name linear modules, or set it to null")
