"""D14: the state of a gated delta net neither leaks between samples that share a pass nor is lost at a cut."""

from __future__ import annotations

import torch
from architectures import tiny
from plain_gradients import VOCAB, relative_error
from transformers.cache_utils import Cache

from thundersync.equivalence.precision import arithmetic
from thundersync.objectives import OPD
from thundersync.streaming.boundaries import cut, run_segment
from thundersync.streaming.differentiate import differentiate
from thundersync.streaming.scores import make_segment
from thundersync.streaming.segment_layers import DeltaNetSegment

BOUND = 1e-12


def delta_net() -> torch.nn.Module:
    return tiny("qwen3_5", torch.float64).model.layers[0].linear_attn


def run(layer: torch.nn.Module, hidden_BTD: torch.Tensor, earlier=()) -> tuple[torch.Tensor, tuple]:
    """The stock module over our cache layer: its output and the states that it leaves."""
    segment = DeltaNetSegment(list(earlier))
    return layer(hidden_BTD, cache_params=Cache(layers=[segment])), segment.states


def test_one_pass_over_nine_tokens_is_five_and_four_with_the_state_carried():
    """Outputs, the last three inputs of the convolution, the recurrent matrix, and all gradients."""
    layer = delta_net()
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, 9, 16, dtype=torch.float64, generator=generator)
    seed = torch.randn(1, 9, 16, dtype=torch.float64, generator=generator)
    parameters = list(layer.parameters())
    with arithmetic("fp64"):
        whole = layer(hidden, cache_params=None)
        expected = torch.autograd.grad(whole, parameters, seed)
        first, states = run(layer, hidden[:, :5])
        assert states[0].shape == (1, 32, 3) and states[1].shape == (1, 2, 8, 8)
        raw = layer.in_proj_qkv(hidden[:, 2:5]).transpose(1, 2)
        assert torch.allclose(states[0], raw, rtol=0, atol=BOUND)

        piece = cut(states)
        second, after = run(layer, hidden[:, 5:], [piece.leaves])
        _, at_once = run(layer, hidden)
        found = torch.cat([first, second], dim=1)
        assert relative_error(found.detach().flatten(), whole.detach().flatten()) < BOUND
        for ours, reference in zip(after, at_once, strict=True):
            assert relative_error(ours.detach().flatten(), reference.detach().flatten()) < BOUND

        late = torch.autograd.grad(second, [*parameters, *piece.leaves], seed[:, 5:], allow_unused=True)
        adjoints = late[len(parameters) :]
        assert all(adjoint.abs().max() > 1e-6 for adjoint in adjoints), "an adjoint that carries nothing tests nothing"
        early = torch.autograd.grad([first, *states], parameters, [seed[:, :5], *adjoints])
    for a, b, reference in zip(early, late, expected, strict=False):
        assert relative_error((a + b).flatten(), reference.flatten()) < BOUND


def test_samples_of_five_and_four_tokens_that_share_a_pass_are_as_if_alone():
    """After a shared prompt: scores, parameter gradients and the adjoints that the prompt is owed."""
    model = tiny("qwen3_5", torch.float64)
    parameters = list(model.parameters())
    generator = torch.Generator().manual_seed(1)

    def ids(length: int) -> torch.Tensor:
        return torch.randint(0, VOCAB, (length,), generator=generator)

    prompt = ids(6)
    segments = [
        make_segment("s", int(prompt[-1]), ids(n), [True] * n, -torch.ones(n), device=prompt.device) for n in (5, 4)
    ]
    with arithmetic("fp64"):
        piece = cut(run_segment(model, prompt[None, :-1], [], prompt[:0])[1])
        together, _, _ = differentiate(model, parameters, OPD(), segments, [1.0, 1.0], [piece])
        alone = [differentiate(model, parameters, OPD(), [segment], [1.0], [piece])[0] for segment in segments]
    for both, one, other in zip(together.tensors, alone[0].tensors, alone[1].tensors, strict=True):
        assert relative_error(both.flatten(), (one + other).flatten()) < BOUND
