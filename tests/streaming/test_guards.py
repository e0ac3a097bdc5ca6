"""Each guard of the stream fires once here, and nothing is left behind afterwards."""

from __future__ import annotations

import contextlib
import gc
import math

import numpy as np
import pytest
import torch
from plain_gradients import flat, tiny_model, token_logprobs

from thundersync.objectives import GRPO, OPD
from thundersync.streaming import Continuation, GradientStream

PROMPT, IDS, MASK = [1, 2, 3], [4, 5, 6, 7], [True, True, False, True]


def source(**changes) -> Continuation:
    return Continuation(
        **{"ids": IDS, "scored": MASK, "reward": 1.0, "teacher_logprobs": [-1.0, -2.0, -1.5], **changes}
    )


@pytest.fixture
def grpo() -> GradientStream:
    stream = GradientStream(tiny_model(), GRPO(prompts=1))
    stream.open()
    stream.open_group("a", size=2, prompt_ids=PROMPT)
    return stream


@pytest.fixture
def opd() -> GradientStream:
    stream = GradientStream(tiny_model(), OPD())
    stream.open()
    stream.open_group("a", size=1, prompt_ids=PROMPT)
    return stream


def test_a_source_bound_twice(grpo):
    grpo.add_trajectory("a", 0, source())
    with pytest.raises(ValueError, match="group a, trajectory 0 is bound already"):
        grpo.add_trajectory("a", 0, source())


def test_a_trajectory_that_the_group_does_not_have(grpo):
    with pytest.raises(ValueError, match="group a, trajectory 2: the group was opened with 2"):
        grpo.add_trajectory("a", 2, source())


def test_append_after_closure(grpo):
    for i in range(2):
        grpo.add_trajectory("a", i, source(reward=float(i)))
    grpo.close_group("a")
    with pytest.raises(ValueError, match="group a is closed"):
        grpo.add_trajectory("a", 1, source())
    with pytest.raises(ValueError, match="group a was opened already"):
        grpo.open_group("a", size=2, prompt_ids=PROMPT)


def test_a_turn_after_its_trajectory_closed(opd):
    opd.add_turn("a", 0, source())
    opd.close_trajectory("a", 0)
    with pytest.raises(ValueError, match="group a, trajectory 0 is bound already"):
        opd.add_turn("a", 0, source())


def test_a_turn_out_of_order(opd):
    opd.add_turn("a", 0, source(), turn=0)
    for wrong in (0, 2):
        with pytest.raises(ValueError, match=f"turn 1 is the next one, but turn {wrong} came"):
            opd.add_turn("a", 0, source(), turn=wrong)


def test_d3_a_group_closes_only_when_complete(grpo):
    grpo.add_trajectory("a", 0, source())
    with pytest.raises(RuntimeError, match=r"group a has 1 of 2 trajectories, without \[1\]"):
        grpo.close_group("a")
    grpo.add_trajectory("a", 1, source(reward=0.0))
    grpo.close_group("a")  # the refusal left it open


def test_unreplayed_adjoints(opd):
    opd.add_turn("a", 0, source())
    with pytest.raises(RuntimeError, match=r"close_trajectory\(\) is missing for trajectories 0"):
        opd.close_group("a")


def test_close_with_open_groups(grpo):
    with pytest.raises(RuntimeError, match="groups are still open: a"):
        grpo.close()
    assert grpo.is_open


def test_calls_without_an_open_batch():
    stream = GradientStream(tiny_model(), OPD())
    for call in (stream.close, lambda: stream.open_group("a", size=1, prompt_ids=PROMPT), stream.close_sums):
        with pytest.raises(RuntimeError, match="no batch is open"):
            call()
    stream.open()
    with pytest.raises(RuntimeError, match="a batch is open already"):
        stream.open()
    with pytest.raises(ValueError, match="group b was never opened"):
        stream.add_turn("b", 0, source())


def _step_in_place(model):
    with torch.no_grad():
        next(model.parameters()).mul_(1.1)


def _replace_storage(model):
    parameter = next(model.parameters())
    parameter.data = parameter.data * 1.1


def _write_through_data(model):
    next(model.parameters()).data.mul_(1.1)


@pytest.mark.parametrize("change", [_step_in_place, _replace_storage])
def test_parameters_changed_before_a_source(grpo, change):
    change(grpo.model)
    with pytest.raises(RuntimeError, match="parameters changed while a batch was open"):
        grpo.add_trajectory("a", 0, source())


@pytest.mark.parametrize("change", [_step_in_place, _replace_storage, _write_through_data])
def test_parameters_changed_before_closing(grpo, change):
    for i in range(2):
        grpo.add_trajectory("a", i, source(reward=float(i)))
    grpo.close_group("a")
    change(grpo.model)
    with pytest.raises(RuntimeError, match="parameters changed while a batch was open"):
        grpo.close()


def test_a_frozen_parameter_changed():
    """As the base weights of adapters: no gradient of theirs is taken, but all gradients depend on them."""
    model = tiny_model()
    model.lm_head.weight.requires_grad_(False)
    stream = GradientStream(model, GRPO(prompts=1))
    stream.open()
    stream.open_group("a", size=2, prompt_ids=PROMPT)
    stream.add_trajectory("a", 0, source())
    with torch.no_grad():
        model.lm_head.weight.mul_(1.1)
    with pytest.raises(RuntimeError, match="parameters changed while a batch was open"):
        stream.add_trajectory("a", 1, source(reward=0.0))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_names_its_source_and_is_not_folded(grpo, value):
    grpo.add_trajectory("a", 0, source(reward=0.0))
    hook = grpo.model.model.layers[0].mlp.register_full_backward_hook(lambda module, grads, _: (grads[0] * value,))
    with pytest.raises(FloatingPointError, match="group a, trajectory 1: its gradient is not finite"):
        grpo.add_trajectory("a", 1, source())
    hook.remove()
    grpo.add_trajectory("a", 1, source(ids=[9, 8, 7, 6]))
    grpo.close_group("a")
    assert flat(grpo.close()).isfinite().all()


def test_a_trajectory_whose_closure_failed_cannot_be_closed_again(opd):
    """Its adjoints were half replayed: a second closure would find none, and miss them without a word."""
    for _ in range(2):
        opd.add_turn("a", 0, source())
    hook = opd.model.model.layers[0].mlp.register_full_backward_hook(lambda module, grads, _: (grads[0] * math.nan,))
    with pytest.raises(FloatingPointError, match="group a, trajectory 0, deferred adjoints"):
        opd.close_trajectory("a", 0)
    hook.remove()
    _only_abort_is_left(opd, "closing group a, trajectory 0 failed half-way")


def test_a_group_whose_closure_failed_cannot_be_closed_again(grpo):
    """Its combination had been added to the batch already: a second closure would add it twice."""
    factor = 1.0
    grpo.model.model.layers[0].mlp.register_full_backward_hook(lambda module, grads, _: (grads[0] * factor,))
    for i in range(2):
        grpo.add_trajectory("a", i, source(reward=float(i)))
    factor = math.nan
    with pytest.raises(FloatingPointError, match="group a, shared prompt"):
        grpo.close_group("a")
    factor = 1.0
    _only_abort_is_left(grpo, "closing group a failed half-way")


def _only_abort_is_left(stream: GradientStream, message: str) -> None:
    calls = [lambda: stream.close_trajectory("a", 0), lambda: stream.add_trajectory("a", 1, source())]
    for call in (*calls, lambda: stream.close_group("a"), stream.close):
        with pytest.raises(RuntimeError, match=f"{message}.*abort"):
            call()
    stream.abort()
    stream.open()
    stream.open_group("a", size=2, prompt_ids=PROMPT)


@pytest.mark.parametrize("reward", [None, math.nan])
def test_a_reward_that_is_not_finite(grpo, reward):
    with pytest.raises(ValueError, match="group a, trajectory 1: reward must be a finite number"):
        grpo.add_trajectory("a", 1, source(reward=reward))


def test_dropout():
    model = tiny_model()
    model.config.attention_dropout = 0.1
    stream = GradientStream(model, GRPO(prompts=1))
    model.train()
    with pytest.raises(RuntimeError, match="dropout is active .*attention_dropout.*model.eval"):
        stream.open()
    model.config.attention_dropout = 0.0
    model.lm_head = torch.nn.Sequential(torch.nn.Dropout(0.2), model.lm_head)
    with pytest.raises(RuntimeError, match="dropout is active .*lm_head.0"):
        stream.open()
    model.eval()
    stream.open()
    model.train()
    with pytest.raises(RuntimeError, match="dropout is active .*lm_head.0"):
        stream.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scored": MASK[:-1]}, "the mask has 3 entries for 4 tokens"),
        ({"teacher_logprobs": [-1.0, -2.0]}, "2 teacher log-probabilities for 3 scored tokens"),
        ({"teacher_logprobs": [-1.0, -2.0, -math.inf]}, "a teacher log-probability is not finite"),
        ({"rollout_logprobs": [-1.0] * 4}, "4 rollout log-probabilities for 3 scored tokens"),
        ({"teacher_logprobs": None}, "opd needs teacher_logprobs"),
    ],
)
def test_sources_that_do_not_fit_are_refused_by_name(opd, changes, message):
    with pytest.raises(ValueError, match=f"group a, trajectory 0, turn 0: {message}"):
        opd.add_turn("a", 0, source(**changes))


def test_turns_are_not_sources_of_grpo(grpo):
    with pytest.raises(ValueError, match="use add_trajectory"):
        grpo.add_turn("a", 0, source())
    with pytest.raises(ValueError, match="close with add_trajectory"):
        grpo.close_trajectory("a", 0)


def test_group_of_one_and_empty_prompt():
    stream = GradientStream(tiny_model(), GRPO(prompts=1))
    stream.open()
    with pytest.raises(ValueError, match="at least 2, got 1"):
        stream.open_group("a", size=1, prompt_ids=PROMPT)
    with pytest.raises(ValueError, match="the prompt is empty"):
        stream.open_group("a", size=2, prompt_ids=[])


def test_a_model_without_trainable_parameters():
    with pytest.raises(ValueError, match="nothing to learn"):
        GradientStream(tiny_model().requires_grad_(False), OPD())


@pytest.mark.parametrize("release", ["trajectory", "content", "turn_forward", "direct"])
def test_log_probabilities_of_another_policy(release):
    """A token at distance 0.5 passes a tolerance of 0.6 and not one of 0.4; the source is named, nothing is folded."""
    model = tiny_model()
    near = token_logprobs(model, np.array(PROMPT), np.array(IDS))[torch.tensor(MASK)].detach().numpy()
    far = near + np.array([0.0, 0.5, 0.0], np.float32)
    for tolerance, fires in ((0.6, False), (0.4, True)):
        stream = GradientStream(model, GRPO(prompts=1), logprob_tolerance=tolerance)
        stream.open()
        if release != "direct":
            stream.open_group("a", size=2, prompt_ids=PROMPT)
        named = r"group a, trajector(y 0|ies \[0, 1\])"
        message = f"{named}: the rollout engine's log-probabilities are up to 0.5 nats .* than logprob_tolerance, 0.4"
        with pytest.raises(ValueError, match=message) if fires else contextlib.nullcontext():
            _one_source(stream, release, source(rollout_logprobs=far))
        assert stream.statistics.compared_tokens == (0 if fires else 6 if release == "direct" else 3)


def _one_source(stream: GradientStream, release: str, member: Continuation) -> None:
    match release:
        case "trajectory":
            stream.add_trajectory("a", 0, member)
        case "content":
            stream.add_content("a", 0, member)
        case "turn_forward":
            stream.forward_turn("a", 0, member)
            stream.close_trajectory("a", 0, 1.0)
        case "direct":
            stream.add_group("a", PROMPT, [member, member])


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


@pytest.mark.parametrize("end", ["close", "abort"])
def test_nothing_is_left_after_closing(end):
    stream = GradientStream(tiny_model(), OPD())
    before = live_tensors()
    stream.open()
    stream.open_group("a", size=1, prompt_ids=PROMPT)
    for _ in range(3):
        stream.add_turn("a", 0, source())
    assert live_tensors() > before + 10
    if end == "close":
        stream.close_trajectory("a", 0)
        stream.close_group("a")
        stream.close()
    else:
        stream.abort()
    assert live_tensors() == before
    assert all(parameter.grad is None for parameter in stream.model.parameters())


def test_sums_exist_only_between_a_groups_first_source_and_its_closure(grpo):
    opened = grpo._groups["a"]
    assert opened.scope.sums is None
    grpo.add_trajectory("a", 0, source(reward=0.0))
    assert opened.scope.sums is not None
    grpo.add_trajectory("a", 1, source())
    grpo.close_group("a")
    assert opened.scope.sums is None and opened._prompt is None and not opened._prompt_states
