"""The engine against plain full forward passes, and its contract: a token's bits depend on its own history only.

1. Sampled ids and log-probabilities are those of a plain loop with the same uniforms.
2. They are the same bits alone, in company, in any order of arrival, with the prefix cache and without, chunked or not.
3. Every token carries the version that sampled it; after a swap in flight the rest is what the new weights give.
"""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_parts import plain_logprobs, plain_sample, small_settings, tiny_model

from thundersync.rollout.engine import GenerationRequest
from thundersync.rollout.seeds import sampling_uniforms
from thundersync.rollout.transformers_engine import TransformersEngine, sample_tokens

STOP = 4


def engine_of(model, **changes) -> TransformersEngine:
    return TransformersEngine(copy.deepcopy(model), stop_id=STOP, settings=small_settings(**changes))


def request(name, ids, *, max_tokens=12, seed=0) -> GenerationRequest:
    return GenerationRequest(
        request_id=str(name), token_ids=np.asarray(ids, np.int32), max_tokens=max_tokens, seed=seed
    )


def drain(engine, requests, *, between=lambda step: None) -> dict:
    for item in requests:
        engine.submit(item)
    results, step = {}, 0
    while engine.busy:
        results |= {r.request_id: r for r in engine.step()}
        step += 1
        between(step)
        assert step < 1000
    return results


def random_prompts(count, *, shared=10, own=20, seed=0):
    rng = np.random.default_rng(seed)
    head = rng.integers(5, 300, shared)
    return [
        np.concatenate([head, rng.integers(5, 300, 1 + int(rng.integers(own)))]).astype(np.int32) for _ in range(count)
    ]


def same_bits(one, other):
    return all(np.array_equal(getattr(one, n), getattr(other, n)) for n in ("action_ids", "logprobs", "versions"))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_ids_and_logprobs_are_those_of_a_plain_loop(kv_heads):
    model = tiny_model(kv_heads=kv_heads)
    prompts = random_prompts(7)
    results = drain(engine_of(model), [request(i, p, seed=i) for i, p in enumerate(prompts)])
    for i, prompt in enumerate(prompts):
        expected = plain_sample(model, prompt, sampling_uniforms(i, 12), STOP)
        np.testing.assert_array_equal(results[str(i)].action_ids, expected)
        table = plain_logprobs(model, np.concatenate([prompt, expected]))[len(prompt) - 1 :]
        np.testing.assert_allclose(results[str(i)].logprobs, table[np.arange(len(expected)), expected], atol=2e-5)
        assert results[str(i)].finish == ("stop" if expected[-1] == STOP else "length")


@settings(max_examples=15, deadline=None)
@given(
    order=st.permutations(range(8)),
    slots=st.sampled_from([1, 3, 4, 8]),
    prefix_caching=st.booleans(),
    prefill=st.sampled_from([3, 17, 512]),
    cache_tokens=st.sampled_from([40, 2000]),
)
def test_bits_do_not_depend_on_company_order_slots_chunks_or_cache(order, slots, prefix_caching, prefill, cache_tokens):
    model = tiny_model()
    prompts = random_prompts(6) + random_prompts(1) * 2  # the last two are twins of the first
    requests = [request(i, p, seed=i) for i, p in enumerate(prompts)]
    alone = {}
    for item in requests:
        alone |= drain(engine_of(model, prefix_caching=False, active_sequences_per_replica=1), [item])
    engine = engine_of(
        model,
        active_sequences_per_replica=slots,
        prefix_caching=prefix_caching,
        max_prefill_tokens_per_step=prefill,
        prefix_cache_tokens=cache_tokens,
    )
    together = drain(engine, [requests[i] for i in order])
    assert all(same_bits(alone[k], together[k]) for k in alone)


def test_next_turn_reuses_the_history_and_siblings_the_prompt():
    engine = engine_of(tiny_model())
    prompt = random_prompts(1)[0]
    first = drain(engine, [request("a", prompt, seed=1), request("b", prompt, seed=2)])
    # The sibling waited one step and computed the last prompt token only.
    assert engine.counters.prefill_tokens == len(prompt) + 1
    before = engine.counters.prefill_tokens
    history = np.concatenate([prompt, first["a"].action_ids, [7, 8, 9]]).astype(np.int32)
    drain(engine, [request("a2", history, seed=3)])
    # The last sampled token was never fed, and the three new ones.
    assert engine.counters.prefill_tokens - before == 4


def test_weights_swapped_in_flight_are_stamped_and_recomputed():
    old, new = tiny_model(0), tiny_model(1)
    engine = engine_of(old)
    prompt = random_prompts(1)[0]

    def swap(step):
        if step == 4:
            engine.load_weights(new.state_dict(), 1)

    item = request("x", prompt, seed=5)
    seed = next(s for s in range(50) if len(plain_sample(old, prompt, sampling_uniforms(s, 12), STOP)) == 12)
    item = request("x", prompt, seed=seed)
    result = drain(engine, [item], between=swap)["x"]
    assert result.versions.tolist() == [0] * 4 + [1] * (len(result.versions) - 4)
    uniforms = sampling_uniforms(seed, 12)
    first = plain_sample(old, prompt, uniforms[:4], STOP)
    rest = plain_sample(new, np.concatenate([prompt, first]), uniforms[4:], STOP)
    np.testing.assert_array_equal(result.action_ids, np.concatenate([first, rest]))
    table = plain_logprobs(new, np.concatenate([prompt, result.action_ids]))
    np.testing.assert_allclose(result.logprobs[4:], table[len(prompt) + 3 + np.arange(len(rest)), rest], atol=2e-5)


def test_published_weights_are_what_is_served_and_the_old_cache_is_not_used():
    """D7 with the real engine: request, publish, request again."""
    old, new = tiny_model(0), tiny_model(1)
    engine = engine_of(old)
    prompt = random_prompts(1)[0]
    drain(engine, [request("a", prompt)])
    before = engine.served()
    assert before.version == 0 and before.cached_tokens > 0 and before.cleared
    engine.load_weights(dict(new.named_parameters()), 1)
    assert not engine.served().cleared
    hits = engine.counters.prefix_hit_tokens
    again = drain(engine, [request("b", prompt)])["b"]
    assert engine.counters.prefix_hit_tokens == hits
    assert same_bits(again, drain_with_version(new, prompt, 1))
    engine.clear_caches()
    served = engine.served()
    assert served.cached_tokens == 0 and served.cleared and served.policy_hash != before.policy_hash


def drain_with_version(model, prompt, version):
    engine = TransformersEngine(copy.deepcopy(model), stop_id=STOP, settings=small_settings(), version=version)
    return drain(engine, [request("z", prompt)])["z"]


def test_served_hash_is_of_the_live_tensors():
    engine = engine_of(tiny_model())
    before = engine.served().policy_hash
    weight = engine.model.model.layers[0].mlp.up_proj.weight
    weight.data.view(torch.uint8)[3, 5] ^= 1
    assert engine.served().policy_hash != before


def test_bad_weights_are_refused_by_name_and_nothing_is_replaced():
    engine = engine_of(tiny_model(0))
    before = engine.served()
    good = dict(tiny_model(1).named_parameters())
    name = "model.layers.0.mlp.up_proj.weight"
    for bad in (
        {k: v for k, v in good.items() if k != name},
        good | {name: torch.zeros(3, 3)},
        good | {"model.layers.9.extra": torch.zeros(1)},
    ):
        with pytest.raises(ValueError, match="up_proj|extra"):
            engine.load_weights(bad, 1)
    assert engine.served() == before


def test_requests_that_cannot_fit_are_refused():
    engine = engine_of(tiny_model())
    with pytest.raises(ValueError, match="max_context_tokens"):
        engine.submit(request("long", np.zeros(395), max_tokens=6))
    with pytest.raises(ValueError, match="at least one token"):
        engine.submit(request("empty", np.zeros(0)))


def test_sampling_follows_the_inverse_cdf_and_reports_temperature_one():
    p = np.array([0.5, 0.25, 0.125, 0.125])
    logits = torch.tensor(np.log(p), dtype=torch.float32).expand(5, -1)
    u = torch.tensor([0.0, 0.4999, 0.5001, 0.76, 0.9999], dtype=torch.float64)
    tokens, logprobs = sample_tokens(logits, u, temperature=1.0)
    assert tokens.tolist() == [0, 0, 1, 2, 3]
    np.testing.assert_allclose(logprobs, np.log(p)[tokens], rtol=1e-6)
    # Temperature 2: p^(1/2) normalised = [.3694, .2612, .1847, .1847]; log-probabilities stay those of temperature one.
    tokens, logprobs = sample_tokens(logits, u, temperature=2.0)
    assert tokens.tolist() == [0, 1, 1, 2, 3]
    np.testing.assert_allclose(logprobs, np.log(p)[tokens], rtol=1e-6)


def test_a_token_without_probability_is_never_sampled():
    logits = torch.tensor([[float("-inf"), 0.0, float("-inf")]])
    for u in (0.0, 0.5, 1 - 2**-53):
        assert sample_tokens(logits, torch.tensor([u], dtype=torch.float64), temperature=1.0)[0].item() == 1
