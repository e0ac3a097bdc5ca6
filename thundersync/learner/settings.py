"""Settings of the learner that a configuration holds; they need no torch. The defaults are the paper's values."""

from __future__ import annotations

from dataclasses import dataclass

QWEN_TARGETS = (
    *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    *("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"),
)
"""Appendix D.1: attention, MLP and gated delta net."""
GLM_TARGETS = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
"""Appendix D.3: multi-head latent attention."""
PAPER_TARGETS = {"qwen3": QWEN_TARGETS, "qwen3_5_text": QWEN_TARGETS, "glm4_moe_lite": GLM_TARGETS}
"""By `config.model_type`; a model without gated delta nets has the first seven of Qwen's."""


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
