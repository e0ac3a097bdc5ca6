"""Trains one embedded model on demonstrations: supervised, the action tokens above all."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np

from thundersync.rollout.chat import Chat
from thundersync.rollout.settings import GenerationSettings
from thundersync.warm_start.demonstrations import Demonstration, Renaming, encode

WARMUP_STEPS = 20
POOLED_BATCHES = 4
"""Batches that are drawn together and cut by length, so that little is spent on padding."""
OBSERVATION_HEAD = OBSERVATION_TAIL = 128
"""Demonstrations keep long observations as the embedded generation settings do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One model and its training. Matrices are trained with Muon, everything else with Adam."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    batch: int
    """Demonstrations of a step."""
    clean_share: float
    """Share of demonstrations that are the reference; the others carry a mistake."""
    context_weight: float = 0.1
    """Loss weight of the tokens that are not actions: predicting what repeats in observations also teaches to copy."""
    matrix_rate: float = 0.02
    rate: float = 1e-2


def train(
    recipe: Recipe, chat: Chat, demonstrations: list[Demonstration], *, steps: int, seed: int, advance=lambda: None
):
    """Supervised learning of the action tokens. Returns the model, in evaluation mode. Deterministic on one thread."""
    import torch

    torch.manual_seed(seed)
    model = _new_model(recipe, chat)
    batches = _Batches(recipe, chat, demonstrations, np.random.default_rng(seed), Random(seed))
    optimizers = _optimizers(model, recipe)
    for step in range(steps):
        ids_BT, weights_BT = batches.draw()
        logits_BTV = model(input_ids=ids_BT[:, :-1]).logits
        losses = torch.nn.functional.cross_entropy(logits_BTV.flatten(0, 1), ids_BT[:, 1:].flatten(), reduction="none")
        weights = weights_BT[:, 1:].flatten()
        ((losses * weights).sum() / weights.sum()).backward()
        scale = min(1.0, (step + 1) / WARMUP_STEPS) * (1 - 0.9 * step / steps)
        for optimizer, rate in optimizers:
            optimizer.param_groups[0]["lr"] = rate * scale
            optimizer.step()
            optimizer.zero_grad()
        advance()
    return model.eval()


def _optimizers(model, recipe: Recipe):
    """(optimizer, learning rate): Muon for the matrices outside the embeddings, Adam for the rest.

    With Muon every direction of a matrix moves at one rate: small models learn to copy in a fraction of Adam's steps.
    """
    import torch

    from thundersync.warm_start.muon import Muon

    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in named if p.ndim != 2 or "embed" in name]
    return (
        (Muon(matrices, lr=recipe.matrix_rate), recipe.matrix_rate),
        (torch.optim.AdamW(rest, betas=(0.9, 0.98), weight_decay=0.0), recipe.rate),
    )


def _new_model(recipe: Recipe, chat: Chat):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from thundersync.warm_start.copy_heads import plant_copy_heads

    model = Qwen3ForCausalLM(
        Qwen3Config(
            hidden_size=recipe.hidden,
            intermediate_size=recipe.intermediate,
            num_hidden_layers=recipe.layers,
            num_attention_heads=recipe.heads,
            num_key_value_heads=recipe.kv_heads,
            head_dim=32,
            attention_bias=True,
            vocab_size=-(-len(chat.tokenizer) // 16) * 16,
            max_position_embeddings=4096,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6},
            initializer_range=0.08,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=chat.end_id,
            pad_token_id=chat.pad_id,
        )
    )
    plant_copy_heads(model)
    return model


class _Batches:
    """Training batches: ids int64 [B, T] and loss weights float32 [B, T]."""

    def __init__(self, recipe: Recipe, chat: Chat, demonstrations: list[Demonstration], rng, order: Random) -> None:
        self.recipe, self.chat, self.rng, self.order = recipe, chat, rng, order
        self.renaming = Renaming(chat)
        settings = GenerationSettings(
            observation_head=OBSERVATION_HEAD,
            observation_tail=OBSERVATION_TAIL,
            max_observation_tokens=OBSERVATION_HEAD + OBSERVATION_TAIL,
        )
        self.clean = [encode(chat, d, settings) for d in demonstrations if d.clean]
        self.corrupted = [encode(chat, d, settings) for d in demonstrations if not d.clean]
        self.pending: list[list[tuple[np.ndarray, np.ndarray]]] = []

    def draw(self):
        """Demonstrations drawn with replacement, each with names of its own; those of a batch have similar lengths."""
        import torch

        if not self.pending:
            drawn = sorted(
                (self._one() for _ in range(POOLED_BATCHES * self.recipe.batch)), key=lambda one: len(one[0])
            )
            self.pending = [drawn[i : i + self.recipe.batch] for i in range(0, len(drawn), self.recipe.batch)]
            self.order.shuffle(self.pending)
        chosen = self.pending.pop()
        width = max(len(ids) for ids, _ in chosen)
        ids_BT = np.full((len(chosen), width), self.chat.pad_id, np.int64)
        weights_BT = np.zeros((len(chosen), width), np.float32)
        for row, (ids, scored) in enumerate(chosen):
            ids_BT[row, : len(ids)] = self.renaming.table(self.rng)[ids]
            weights_BT[row, : len(ids)] = np.where(scored, 1.0, self.recipe.context_weight)
        return torch.from_numpy(ids_BT), torch.from_numpy(weights_BT)

    def _one(self) -> tuple[np.ndarray, np.ndarray]:
        return self.order.choice(self.clean if self.order.random() < self.recipe.clean_share else self.corrupted)
