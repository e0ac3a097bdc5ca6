"""The check for one GPU, at tiny size on a CPU: that it holds, and that it can fail."""

from __future__ import annotations

import torch

from experiments.gpu_check import SIZES, WAYS, check
from thundersync.streaming.open_group import OpenGroup


def test_every_way_holds_in_fp32_and_is_really_run_in_bf16():
    report = check(SIZES["tiny"], torch.device("cpu"), repetitions=1)
    assert report["broken"] == []
    for objective, ways in WAYS.items():
        fp32, bf16 = (report[name][objective] for name in ("fp32", "bf16"))
        assert fp32["direct"]["error_to_fp32_direct"] == 0
        assert all(0 < fp32[way]["error_to_fp32_direct"] < 2e-6 for way in ways[1:])
        assert all(1e-3 < bf16[way]["error_to_fp32_direct"] < 0.2 for way in ways)


def test_a_direction_that_is_off_is_named(monkeypatch):
    """Without what the continuations owe to the prompt; `direct` loses it too, but not what turns owe to each other."""
    monkeypatch.setattr(OpenGroup, "_backward_through_prompt", lambda self, *beta: 0)
    monkeypatch.setattr("thundersync.streaming.turn_chain.TurnChain.replay", lambda *_: iter(()))
    report = check(SIZES["tiny"], torch.device("cpu"), repetitions=1)
    assert [words.split(":")[0] for words in report["broken"]] == ["opd, turn_eager"]
