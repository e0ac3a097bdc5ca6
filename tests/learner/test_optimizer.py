"""The optimizer step against AdamW written out by hand (FP64, element by element)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from thundersync.learner.optimizer import AdamWSettings, MasterAdamW


def make_model(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2, bias=False)).to(dtype)


def directions(model: nn.Module, steps: int, scale: float) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        {name: scale * torch.randn(p.shape, generator=generator) for name, p in model.named_parameters()}
        for _ in range(steps)
    ]


def hand_adamw(theta: list[float], ascents: list[list[float]], s: AdamWSettings) -> list[float]:
    """Algorithm 2 of the AdamW paper on Python floats; `ascents` are clipped directions, so the gradient is -ascent."""
    (b1, b2), m, v = s.betas, [0.0] * len(theta), [0.0] * len(theta)
    for t, ascent in enumerate(ascents, start=1):
        norm = math.sqrt(sum(a * a for a in ascent))
        clip = min(1.0, s.max_norm / norm)
        for i, a in enumerate(ascent):
            g = -a * clip
            m[i] = b1 * m[i] + (1 - b1) * g
            v[i] = b2 * v[i] + (1 - b2) * g * g
            step = (m[i] / (1 - b1**t)) / (math.sqrt(v[i] / (1 - b2**t)) + s.eps)
            theta[i] -= s.learning_rate * (step + s.weight_decay * theta[i])
    return theta


def flat(tensors) -> list[float]:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).tolist()


@pytest.mark.parametrize("scale", [0.01, 10.0], ids=["below the clip", "clipped"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_steps_are_those_of_adamw_by_hand(scale, weight_decay):
    model = make_model()
    settings = AdamWSettings(learning_rate=1e-2, weight_decay=weight_decay)
    start, steps = flat(model.parameters()), directions(model, 5, scale)
    optimizer = MasterAdamW(model, settings)
    for direction in steps:
        norms = optimizer.step(direction)
        norm = math.sqrt(sum(x * x for x in flat(direction.values())))
        assert norms.gradient_norm == pytest.approx(norm, rel=1e-6)
        assert norms.clip_coefficient == pytest.approx(min(1.0, 1.0 / norm), rel=1e-6)
    expected = hand_adamw(start, [flat(direction.values()) for direction in steps], settings)
    assert flat(model.parameters()) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_the_first_step_goes_up_the_direction():
    model = make_model()
    before = flat(model.parameters())
    direction = directions(model, 1, 1.0)[0]
    MasterAdamW(model, AdamWSettings(learning_rate=1e-3)).step(direction)
    moves = [after - b for after, b in zip(flat(model.parameters()), before, strict=True)]
    assert all(move * d > 0 for move, d in zip(moves, flat(direction.values()), strict=True))


def test_masters_keep_steps_that_bf16_parameters_would_lose():
    """At a learning rate of 1e-6 a BF16 weight of 0.02 (spacing 1.2e-4) never moves by itself."""
    model = make_model(torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.02)
    optimizer = MasterAdamW(model, AdamWSettings(learning_rate=1e-6))
    up = {name: torch.full(p.shape, 1e-2) for name, p in model.named_parameters()}
    start = next(model.parameters())[0, 0].item()
    for _ in range(100):
        optimizer.step(up)
    assert optimizer.state()["master"].mean().item() - start == pytest.approx(100e-6, rel=1e-2)
    assert next(model.parameters())[0, 0].item() > start  # 1e-4 is enough to round to the next BF16 value
    assert next(model.parameters()).dtype == torch.bfloat16


def test_nothing_moves_on_a_direction_that_does_not_fit_or_is_not_finite():
    model = make_model()
    optimizer = MasterAdamW(model, AdamWSettings(learning_rate=1.0))
    before, direction = flat(model.parameters()), directions(model, 1, 1.0)[0]
    with pytest.raises(ValueError, match="1.weight"):
        optimizer.step({name: tensor for name, tensor in direction.items() if name != "1.weight"})
    direction["0.bias"][0] = math.nan
    with pytest.raises(FloatingPointError, match="norm is nan"):
        optimizer.step(direction)
    assert flat(model.parameters()) == before and not optimizer.state()["step"]


def test_state_of_another_model_is_refused():
    with pytest.raises(ValueError, match="24 weights, the model 5"):
        MasterAdamW(nn.Linear(4, 1), AdamWSettings()).load_state(MasterAdamW(make_model(), AdamWSettings()).state())
