"""Per-update metrics, live, in somebody else's viewer: TensorBoard, or Weights & Biases offline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from thundersync.records import UpdateRecord

Mirror = Callable[[UpdateRecord], None]


def metrics(record: UpdateRecord) -> dict[str, float]:
    """What is worth watching while a run goes on."""
    values = {
        "reward/mean": record.reward.value,
        "reward/success": record.success.value,
        "policy/entropy": record.entropy,
        "policy/gradient_norm": record.gradient_norm,
        "policy/clip_coefficient": record.clip_coefficient,
        "policy/clipped": float(record.clip_coefficient < 1),
        "policy/lag_max": float(record.lag_max),
        "mismatch/max": record.logprob_mismatch.max,
        "mismatch/mean": record.logprob_mismatch.mean,
        "mismatch/kl": record.logprob_mismatch.kl,
        "time/step_s": record.step_seconds,
        "time/training_s": record.published_at,
        "count/generated_tokens": float(record.total_tokens.generated),
    }
    return {name: value for name, value in values.items() if value is not None}


def open_mirror(kind: str, directory: Path, name: str) -> Mirror:
    """`kind` is none, tensorboard or wandb (offline); the configuration has refused others."""
    if kind == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(str(directory / "tensorboard"))

        def to_tensorboard(record: UpdateRecord) -> None:
            for tag, value in metrics(record).items():
                writer.add_scalar(tag, value, record.update)
            writer.flush()

        return to_tensorboard
    if kind == "wandb":
        import wandb

        run = wandb.init(project="thundersync", name=name, dir=str(directory), mode="offline")
        return lambda record: run.log(metrics(record), step=record.update)
    return lambda record: None
