"""Every configuration file that is shipped loads; unknown keys and choices are refused with the valid ones."""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

import pytest

from experiments import equivalence
from experiments.compose import CONF, checked_overrides, compose_run
from experiments.matched_performance import plan
from thundersync.config import ConfigError, parse_config
from thundersync.environments import SandboxMissing
from thundersync.objectives import GRPO, OPD, REINFORCE, RLOO, DrGRPO
from thundersync.trainer import require_available

GROUPS = {group: sorted(path.stem for path in (CONF / group).glob("*.yaml")) for group in ("schedule", "objective",
          "workload", "scale")}  # fmt: skip


def combinations() -> list[tuple[str, ...]]:
    """Every objective at every scale, and everything else for one objective: a composition takes half a second."""
    objectives, one = GROUPS["objective"], {"schedule": ["sync"], "workload": ["micro_swe"]}
    of_scale = itertools.product(*(GROUPS | one).values())
    others = itertools.product(*(GROUPS | {"objective": objectives[:1]}).values())
    return sorted({*of_scale, *others})


@pytest.mark.parametrize("choices", combinations(), ids="-".join)
def test_every_combination_composes(choices):
    config = compose_run([f"{group}={choice}" for group, choice in zip(GROUPS, choices, strict=True)])
    assert (config.schedule.name, config.objective.name, config.workload.name, config.scale.name) == choices


@pytest.mark.parametrize("model", sorted(path.stem for path in (CONF / "model").glob("*.yaml")))
def test_every_model_composes(model):
    assert compose_run([f"model={model}"]).model.name


def test_the_paper_scale_is_tables_5_and_6():
    """Numbers written here from the paper's tables."""
    grpo, opd = (compose_run(["scale=paper", f"objective={o}"]) for o in ("grpo", "opd"))
    assert (grpo.objective.prompts_per_update, grpo.objective.trajectories_per_prompt) == (32, 8)
    assert (opd.objective.prompts_per_update, opd.objective.trajectories_per_prompt) == (32, 4)
    assert grpo.optimizer.learning_rate == 1e-6 and grpo.optimizer.betas == (0.9, 0.999)
    assert grpo.optimizer.epsilon == 1e-8 and grpo.optimizer.weight_decay == 0 and grpo.optimizer.clip_norm == 1
    assert grpo.objective.advantage_epsilon == 1e-6
    generation = grpo.generation
    assert (generation.max_turns, generation.max_tokens_per_turn, generation.max_generated_tokens) == (300, 1024, 16384)
    assert (generation.max_prompt_tokens, generation.max_context_tokens) == (16384, 131072)
    assert (generation.observation_head, generation.observation_tail) == (2048, 2048)
    assert (generation.temperature, generation.tool_timeout_s, generation.active_sequences_per_replica) == (1, 120, 16)
    assert (grpo.objective.release, opd.objective.release) == ("trajectory", "turn_eager")
    assert compose_run(["objective=opd"]).objective.release == "turn_forward"  # beyond the paper: make bench-release
    assert (grpo.scale.learner_ranks, grpo.optimizer.moments) == (4, "bf16")
    assert grpo.schedule.open_groups == 1 and compose_run([]).schedule.open_groups is None
    # 128 GPU-hours on eight GPUs, hourly checkpoints, three attempts, Lambda's price.
    assert grpo.scale.budget_s * grpo.scale.devices == 128 * 3600
    assert grpo.scale.checkpoint_every_s == 3600 and grpo.scale.evaluation_attempts == 3
    assert grpo.scale.price_usd_per_device_hour == 6.69


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("shedule=sync", "unknown setting shedule .did you mean schedule.*; valid: schedule, objective"),
        ("objective=ppo", "unknown objective 'ppo'; valid: dr_grpo, grpo, opd, reinforce, rloo"),
        ("objective.score=token_mean", "unknown setting objective.score"),
        ("schedule=synk", "unknown schedule 'synk'; valid: async, fully_async, sync, thundersync"),
        ("optimizer.lr=1", "unknown setting optimizer.lr.*optimizer.learning_rate"),
        ("generation.max_turn=3", "did you mean generation.max_turns"),
    ],
)
def test_unknown_names_list_the_valid_ones(override, message):
    with pytest.raises(ConfigError, match=message):
        checked_overrides([override])


def test_settings_that_no_file_writes_down_can_be_given():
    given = ["generation.temperature=0.5", "scale.learner_timeout_s=9", "optimizer.betas=[0.5,0.9]", "seed=4"]
    config = compose_run(given)
    assert (config.generation.temperature, config.scale.learner_timeout_s) == (0.5, 9)
    assert config.optimizer.betas == (0.5, 0.9) and config.seed == 4
    assert checked_overrides([*given, "-m"]) == [*(f"++{one}" for one in given[:3]), "seed=4", "-m"]


def test_what_is_missing_is_said_before_a_session_starts(monkeypatch):
    def missing():
        raise SandboxMissing("bubblewrap is not installed: apt-get install bubblewrap")

    monkeypatch.setattr("thundersync.trainer.require_sandbox", missing)
    with pytest.raises(ConfigError, match="bubblewrap is not installed"):
        require_available(compose_run([]))
    with pytest.raises(ConfigError, match="mirror=wandb needs the package wandb"):
        require_available(compose_run(["mirror=wandb"]))


def test_each_objective_is_built_from_its_settings():
    def built(*overrides: str):
        return compose_run(["scale=smoke", *overrides]).objective.build()

    assert built("objective=grpo") == GRPO(prompts=2, eps=1e-6)
    assert built("objective=dr_grpo", "generation.max_generated_tokens=96") == DrGRPO(prompts=2, length=96)
    assert built("objective=rloo") == RLOO(prompts=2, score="sequence")
    assert built("objective=rloo", "objective.score=token_mean") == RLOO(prompts=2, score="token_mean")
    assert built("objective=reinforce") == REINFORCE(trajectories=2 * 2)
    assert built("objective=opd") == OPD()


def test_lora_has_the_papers_values_unless_told_otherwise():
    assert compose_run([]).model.lora is None
    lora = compose_run(["model.lora={}"]).model.lora
    assert (lora.rank, lora.alpha, lora.targets) == (32, 64, None)
    assert compose_run(["model.lora={rank:8,targets:[q_proj]}"]).model.lora.targets == ("q_proj",)


def test_an_unknown_objective_lists_the_valid_ones():
    values = json.loads(compose_run([]).model_dump_json())
    values["objective"]["name"] = "ppo"
    with pytest.raises(ConfigError, match="objective.name: Input should be 'grpo', 'dr_grpo', 'rloo', 'reinforce'"):
        parse_config(values)


def test_an_added_key_is_refused_with_the_valid_ones():
    values = json.loads(compose_run([]).model_dump_json())
    values["optimizer"]["momentum"] = 0.9
    with pytest.raises(ConfigError, match="unknown setting optimizer.momentum; valid here: betas, clip_norm, epsilon"):
        parse_config(values)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("objective.trajectories_per_prompt=1", "GRPO compares trajectories, set it to 2 or more"),
        ("objective.release=turn_eager", "grpo is released by trajectory or content or turn_forward"),
        ("scale.budget_s=-1", "scale.budget_s: Input should be greater than 0"),
        ("generation.top_p=0.9", "top_p"),
        ("model.lora={rank:0}", "model.lora: rank must be positive, is 0"),
        ("model.lora={ranks:8}", "unknown setting model.lora.ranks; valid here: alpha, rank, seed, targets"),
        ("logprob_tolerance=0", "logprob_tolerance: Input should be greater than 0"),
    ],
)
def test_values_that_cannot_run_are_refused_by_name(override, message):
    with pytest.raises(ConfigError, match=message):
        compose_run([override])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["objective=rloo", "objective.trajectories_per_prompt=1"], "RLOO compares trajectories, set it to 2 or more"),
        (["objective=dr_grpo", "objective.length=null"], "objective.length is not set"),
        (["objective=rloo", "objective.score=sum"], "objective.score: Input should be 'sequence' or 'token_mean'"),
        (
            ["objective=reinforce", "batch.reinforce.prompts=1", "batch.reinforce.trajectories=1"],
            "needs at least 2 trajectories, got 1",
        ),
    ],
)
def test_an_objective_that_has_no_update_is_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        compose_run(overrides)


def test_the_paper_scale_is_refused_with_what_it_needs():
    with pytest.raises(ConfigError, match="scale=paper needs 8 CUDA GPUs.*scale=embedded runs here"):
        require_available(compose_run(["scale=paper"]))
    with pytest.raises(ConfigError, match="needs scale=paper"):
        require_available(compose_run(["model=glm_4_7_flash"]))


def test_the_campaign_fixes_targets_first_and_finishes_a_seed_before_the_next():
    configs = plan(["scale=smoke"], [42, 43])
    assert [c.seed for c in configs] == [41] * 4 + [42] * 16 + [43] * 16
    assert len({c.name for c in configs}) == len(configs)
    assert all(Path(c.runs) == Path("runs/fig5/smoke") for c in configs)


@pytest.mark.parametrize(("budget", "every", "late"), [(48, 12, 36), (50, 12, 48), (12, 12, 12)])
def test_a_pilot_keeps_only_the_last_checkpoint_that_fits_into_the_budget(budget, every, late):
    configs = plan([f"scale.budget_s={budget}", f"scale.checkpoint_every_s={every}"], [42])
    assert {c.scale.checkpoint_every_s for c in configs if c.seed == 41} == {late}
    assert {c.scale.checkpoint_every_s for c in configs if c.seed == 42} == {every}


def test_figures_11_and_12_are_refused_with_what_their_hardware_is():
    """`make reproduce-fig11` is the check at the paper's scale; at embedded scale its policy is not widened."""
    arguments = argparse.Namespace(overrides=["scale=paper"])
    with pytest.raises(ConfigError, match="scale=paper needs .*CUDA GPUs"):
        require_available(equivalence.configuration(arguments, "grpo", "sync", 20))
    arguments.overrides = []
    assert equivalence.configuration(arguments, "opd", "sync", 10).model.intermediate is None
