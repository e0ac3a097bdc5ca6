"""The optimizer step against AdamW written out by hand (FP64, element by element)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from thundersync.learner.adamw import BLOCK, adamw_, round_to_bf16, rounding_noise
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


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_fp32_moments_step_as_torch_does(weight_decay):
    """More than one block of elements, against torch.optim.AdamW."""
    torch.manual_seed(0)
    theta = torch.randn(BLOCK + 1001)
    reference = theta.clone()
    ours = AdamWSettings(learning_rate=1e-2, weight_decay=weight_decay)
    torch_adamw = torch.optim.AdamW([reference], lr=1e-2, weight_decay=weight_decay)
    moments = (torch.zeros_like(theta), torch.zeros_like(theta))
    for t in (1, 2, 3):
        reference.grad = torch.randn_like(theta)
        adamw_(theta, moments, reference.grad, ours, t, 0)
        torch_adamw.step()
    assert torch.allclose(theta, reference, rtol=1e-6, atol=1e-7)


@settings(max_examples=40)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**100), max_value=2.0**100))
def test_stochastic_rounding_is_unbiased(x):
    """The mean over every possible noise is the value itself, exactly: FP64 adds up 65536 BF16 values without error."""
    rounded = round_to_bf16(torch.full((65536,), x), torch.arange(65536, dtype=torch.int32)).double()
    low, high = rounded.min().item(), rounded.max().item()
    assert low <= x <= high and ((rounded == low) | (rounded == high)).all()
    assert rounded.mean().item() == x


def test_rounding_noise_is_uniform_and_depends_on_update_and_element_only():
    whole = rounding_noise(7, 0, 100_000)
    for first, count in [(0, 1), (3, 50), (8, 8), (99_990, 10)]:
        for part, all_ in zip(rounding_noise(7, first, count), whole, strict=True):
            assert torch.equal(part, all_[first : first + count])
    for noise in whole:
        # Mean of n uniform values: standard deviation 65536 / sqrt(12 n), here 60; five of them.
        assert abs(noise.double().mean().item() - 32767.5) < 300
        assert 0 <= noise.min() < 10 and 65525 < noise.max() <= 65535
    assert not torch.equal(*whole) and not torch.equal(whole[0], rounding_noise(8, 0, 100_000)[0])


def test_a_bf16_second_moment_decays():
    """With beta2 = 0.999 and no gradient, v shrinks to 0.999^t; rounded to nearest it would stay where it is."""
    assert (torch.ones(1, dtype=torch.bfloat16) * 0.999).item() == 1.0
    n, updates = 4096, 1000
    v = torch.ones(n, dtype=torch.bfloat16)
    theta, ours = torch.zeros(n), AdamWSettings(moments=torch.bfloat16)
    for t in range(1, updates + 1):
        adamw_(theta, (torch.zeros_like(v), v), torch.zeros(n), ours, t, 0)
    assert v.double().mean().item() == pytest.approx(0.999**updates, rel=0.01)


def test_bf16_moments_follow_fp32_ones():
    """Masters after 200 steps: the rounding of the moments is noise of mean zero."""
    results = {}
    for moments in (torch.float32, torch.bfloat16):
        model = make_model()
        optimizer = MasterAdamW(model, AdamWSettings(learning_rate=1e-3, moments=moments))
        start = optimizer.state()["master"].clone()
        for direction in directions(model, 200, 0.1):
            optimizer.step({name: tensor + 0.02 for name, tensor in direction.items()})
        results[moments] = optimizer.state()["master"] - start
        assert optimizer.state()["exp_avg_sq"].dtype == moments
    gap = results[torch.bfloat16] - results[torch.float32]
    assert gap.norm() < 0.02 * results[torch.float32].norm()
    with pytest.raises(ValueError, match="moments in torch.float32, the settings say torch.bfloat16"):
        optimizer.load_state(MasterAdamW(model, AdamWSettings()).state())
    with pytest.raises(ValueError, match="moments must be torch.float32 or torch.bfloat16"):
        AdamWSettings(moments=torch.float16)
