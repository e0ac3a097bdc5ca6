"""Metrics of a run in TensorBoard's own file, read with its own reader."""

from __future__ import annotations

from synthetic import update_record
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from thundersync.mirror import open_mirror


def test_tensorboard_shows_every_update(tmp_path):
    mirror = open_mirror("tensorboard", tmp_path, "run")
    for k, reward in enumerate((0.25, 0.5)):
        mirror(update_record(k, 10.0 * k, "sync", f"{k}", reward, 8.0))
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("reward/mean")] == [(0, 0.25), (1, 0.5)]
    assert [e.value for e in events.Scalars("time/step_s")] == [8.0, 8.0]
    names = {"policy/entropy", "policy/gradient_norm", "policy/clipped", "mismatch/max"}
    assert names <= set(events.Tags()["scalars"])
