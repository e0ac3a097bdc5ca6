"""Several learner ranks take the update of one: processes with gloo against one rank in this process."""

from __future__ import annotations

import pytest
import torch
from learner_parts import direct_update, make_batch, make_rank
from rank_processes import GROUPS_OF_UPDATE, OBJECTIVES, SABOTAGE, run, run_ranks, step_alone

from thundersync.learner.ranks import ALONE, RankGroup, RanksRefused, require_agreement

NAMES = [objective.name for objective in OBJECTIVES]


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)], ids=lambda n: f"{n} ranks")
def ranks(request, tmp_path_factory) -> list[dict]:
    folder = tmp_path_factory.mktemp("ranks")
    results = run_ranks(request.param, folder)
    for result in results:
        result["folder"] = folder
    return results


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict[str, dict]:
    folder = tmp_path_factory.mktemp("alone")
    return {objective.name: run(objective, ALONE, folder / objective.name) for objective in OBJECTIVES}


@pytest.mark.parametrize("objective", NAMES)
def test_the_update_is_that_of_one_rank(ranks, alone, objective):
    """Also where ranks have no group: at update 1, all but rank 0."""
    one, many = alone[objective], ranks[0]["runs"][objective]
    first, expected = many["directions"][0], one["directions"][0]
    assert (first - expected).norm() < 2e-6 * expected.norm()
    for update, (step, reference) in enumerate(zip(many["steps"], one["steps"], strict=True)):
        assert (step.version, step.divisor) == (update + 1, reference.divisor)
        assert step.gradient_norm == pytest.approx(reference.gradient_norm, rel=1e-4) and step.gradient_norm > 0.01
        assert step.clip_coefficient == pytest.approx(reference.clip_coefficient, rel=1e-4)
        assert step.entropy == pytest.approx(reference.entropy, rel=1e-5)
        assert step.logprob_mismatch == pytest.approx(reference.logprob_mismatch, rel=1e-4, abs=1e-6)
        gap = (many["parameters"][update] - one["parameters"][update]).norm()
        assert gap < 5e-4 * (one["parameters"][update] - one["start"]).norm()


@pytest.mark.parametrize("objective", NAMES)
def test_parameters_are_bit_equal_on_all_ranks(ranks, objective):
    for update in range(len(GROUPS_OF_UPDATE)):
        hashes = {result["runs"][objective]["steps"][update].policy_hash for result in ranks}
        assert len(hashes) == 1
        assert all(
            torch.equal(
                result["runs"][objective]["parameters"][update], ranks[0]["runs"][objective]["parameters"][update]
            )
            for result in ranks
        )


@pytest.mark.parametrize("objective", OBJECTIVES, ids=NAMES)
def test_a_checkpoint_of_ranks_resumes_on_them_and_on_one(ranks, objective):
    for result in ranks:
        result = result["runs"][objective.name]
        assert result["straight"].policy_hash == result["resumed"].policy_hash != result["steps"][-1].policy_hash
    saved = ranks[0]["runs"][objective.name]
    one = make_rank(objective)
    one.load(ranks[0]["folder"] / objective.name)
    assert one.version == len(GROUPS_OF_UPDATE)
    step = direct_update(one, one.version, 3)[1]
    assert step.gradient_norm == pytest.approx(saved["straight"].gradient_norm, rel=2e-6)


def test_masters_and_moments_are_sharded(ranks):
    parameters = len(ranks[0]["runs"]["grpo"]["start"])
    shards = [result["runs"]["grpo"]["shard_bytes"] for result in ranks]
    assert sum(shard["master"] for shard in shards) == 4 * parameters
    assert sum(shard["moments"] for shard in shards) == 8 * parameters
    assert max(shard["master"] for shard in shards) <= 4 * -(-parameters // len(ranks))
    bf16 = [result["optimizer"]["torch.bfloat16"]["bytes"]["moments"] for result in ranks]
    assert sum(bf16) == 4 * 969


@pytest.mark.parametrize("moments", [torch.float32, torch.bfloat16], ids=str)
def test_sharded_steps_have_the_bits_of_unsharded_ones(ranks, moments):
    expected = step_alone(moments, ALONE)
    assert expected["exp_avg"].dtype == moments and expected["step"] == 5
    for result in ranks:
        for name in ("master", "exp_avg", "exp_avg_sq", "step", "parameters"):
            assert torch.equal(result["optimizer"][str(moments)][name], expected[name]), name


MESSAGES = {
    "version": "disagree on the version: rank 0 has 0, rank 1 has 1",
    "policy": "disagree on the policy: rank 0 has",
    "batch": "disagree on the batch: rank 0 has 3 groups, sha256",
    "objective": "disagree on the objective: rank 0 has GRPO(prompts=3, eps=1e-06), rank 1 has GRPO(prompts=4,",
    "optimizer": "disagree on the optimizer: rank 0 has AdamWSettings(learning_rate=0.01",
    "divisor": "disagree on the divisor: rank 0 has",
    "norm": "disagree on the global gradient norm: rank 0 has",
    "norm nan": "FloatingPointError: the global gradient norm is nan",
    "missing": "rank 1: update 0 cannot step: 1 lost: update=0/group=1/trajectory=",
    "not finite": "rank 1: its sum of gradients is not finite",
    "not open": "rank 1: no batch is open",
}


@pytest.mark.parametrize("name", SABOTAGE)
def test_what_one_rank_has_wrong_is_refused_on_all(ranks, name):
    seen = [result["refusals"][name] for result in ranks]
    assert len({refusal["error"] for refusal in seen}) == 1
    assert MESSAGES[name] in seen[0]["error"]
    assert name == "norm nan" or seen[0]["error"].startswith("RanksRefused: refused on all ranks: ")
    for refusal in seen:
        assert refusal["nothing changed"] and refusal["moments"] == 0
    # Before the sums are reduced nothing is lost either: the batch can be completed or aborted.
    assert seen[0]["still open"] == (not name.startswith("norm"))


@pytest.mark.parametrize("objective", NAMES)
def test_sums_stay_within_their_bound(ranks, objective):
    for result in ranks:
        run = result["runs"][objective]
        for memory in run["memory"]:
            assert 0 < memory.peak_sums <= 4 * (2 * memory.peak_groups + 1) * len(run["start"])
            assert memory.sums == memory.adjoints == memory.groups == 0


def test_d5_the_token_count_is_global(ranks):
    """Five tokens with gradient 1 on one rank, one token with gradient 7 on another: 12 / 6, not (1 + 7) / 2."""
    assert [result["token mean"] for result in ranks] == [2.0] * len(ranks)


def test_every_group_has_one_rank_and_every_weight_one_shard():
    batch = make_batch(0, 7)
    for size in (1, 2, 3, 4, 9):
        shares = [RankGroup(rank=rank, size=size).share(batch).groups for rank in range(size)]
        assert sorted(plan.key for share in shares for plan in share) == [plan.key for plan in batch.groups]
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        for numel in (1, 5, 8, 12):
            shards = [RankGroup(rank=rank, size=size).shard(numel) for rank in range(size)]
            assert [i for shard in shards for i in range(numel)[shard]] == list(range(numel))


def test_disagreement_lists_what_each_rank_has():
    require_agreement("version", [3, 3])
    with pytest.raises(RanksRefused, match="on the version: rank 0 has 3, rank 1 has 3, rank 2 has 4"):
        require_agreement("version", [3, 3, 4])
