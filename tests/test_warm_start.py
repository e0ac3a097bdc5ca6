"""Demonstrations, planted copy heads, Muon and the cache of the embedded models."""

import asyncio
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

import thundersync.warm_start.models as warm_start
import thundersync.warm_start.training as training
from thundersync.environments import TaskError
from thundersync.environments.words import WORDS
from thundersync.rollout.chat import Chat, train_tokenizer
from thundersync.rollout.fakes import FakeWorkload
from thundersync.rollout.settings import GenerationSettings
from thundersync.warm_start.copy_heads import plant_copy_heads
from thundersync.warm_start.demonstrations import Demonstration, Renaming, collect, corrupt, encode
from thundersync.warm_start.muon import Muon, orthogonalised
from thundersync.warm_start.widen import widened

COMMANDS = ["grep -rl acorn", "sed -i 's/k > 12/k < 34/' alder/amber.py", "echo anchor >> apple.txt"]


def demonstration(**changes) -> Demonstration:
    fields = dict(
        task_id="t",
        instruction="acorn should add 12",
        commands=("cat alder/amber.py", "submit"),
        observations=("return k + 34\n",),
        clean=True,
        solved=True,
    )
    return Demonstration(**(fields | changes))


def chat() -> Chat:
    texts = [*WORDS, *demonstration().texts] * 3
    return Chat(train_tokenizer(texts, vocab_size=1200))


def test_a_corruption_changes_or_drops_exactly_one_command():
    kinds = set()
    for seed in range(200):
        wrong = corrupt(COMMANDS, Random(seed))
        if len(wrong) == 2:
            assert any(wrong == COMMANDS[:i] + COMMANDS[i + 1 :] for i in range(3))
            kinds.add("dropped")
        else:
            (index,) = [i for i in range(3) if wrong[i] != COMMANDS[i]]
            kinds.add((index, "digit" if any(c.isdigit() for c in COMMANDS[index]) else "name"))
    assert kinds == {"dropped", (0, "name"), (1, "digit"), (2, "name")}


def test_demonstrations_are_really_run_and_say_what_the_verifier_said():
    workload = FakeWorkload()
    collected = asyncio.run(collect(workload, seed=0, corrupted_per_task=1))
    assert [d.task_id for d in collected] == [t.task_id for t in workload.training for _ in range(2)]
    clean = [d for d in collected if d.clean]
    assert all(d.solved and d.commands[-1] == "submit" for d in clean)
    assert clean[0].observations == ("red\n", "")
    assert {episode.secret for episode in workload.episodes} == {"red", "blue"}  # training tasks only
    assert all(episode.closed for episode in workload.episodes)


def test_a_task_whose_reference_fails_is_named():
    class Unsolvable(FakeWorkload):
        def reference_commands(self, task_id):
            return ["cat hint"]

    workload = Unsolvable()
    with pytest.raises(TaskError, match=f"task {workload.training[0].task_id} of .*: its reference fails"):
        asyncio.run(collect(workload, seed=0, corrupted_per_task=0))


def test_a_demonstration_is_laid_out_as_a_rollout_would_be():
    c = chat()
    ids, scored = encode(c, demonstration(), GenerationSettings())
    first, last = c.action("```\ncat alder/amber.py\n```"), c.action("```\nsubmit\n```")
    context = c.context("return k + 34\n", cut=False, head=2048, tail=2048)
    np.testing.assert_array_equal(ids, np.concatenate([c.prompt("acorn should add 12"), first, context, last]))
    np.testing.assert_array_equal(ids[scored], np.concatenate([first, last]))


def test_renaming_is_one_to_one_within_its_class_and_touches_nothing_else():
    c = chat()
    renaming = Renaming(c)
    table = renaming.table(np.random.default_rng(0))
    assert sorted(table) == list(range(len(c.tokenizer)))
    for members in renaming.classes:
        assert set(table[members]) == set(members)
    rest = np.setdiff1d(np.arange(len(table)), np.concatenate(renaming.classes))
    np.testing.assert_array_equal(table[rest], rest)
    assert len(renaming.classes[0]) == len(WORDS)
    ids, _ = encode(c, demonstration(), GenerationSettings())
    text = c.tokenizer.decode(table[ids].tolist())
    assert "acorn" not in text and "should" in text and "cat " in text


def test_planted_heads_copy_before_any_training():
    torch.manual_seed(0)
    config = Qwen3Config(
        hidden_size=160,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=300,
        tie_word_embeddings=True,
        attention_bias=True,
        initializer_range=0.08,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )
    model = Qwen3ForCausalLM(config).eval()

    def accuracy() -> float:
        ids = torch.randperm(300)[None, :80]
        ids = torch.cat([ids, ids[:, 20:60]], 1)
        with torch.no_grad():
            guess = model(input_ids=ids).logits[0, 80:-1].argmax(-1)
        return (guess == ids[0, 81:]).float().mean().item()

    before = np.mean([accuracy() for _ in range(5)])
    plant_copy_heads(model)
    assert before < 0.05 and np.mean([accuracy() for _ in range(5)]) > 5 * max(before, 0.02)
    with pytest.raises(ValueError, match="attention_bias"):
        plant_copy_heads(Qwen3ForCausalLM(Qwen3Config(hidden_size=32, num_hidden_layers=2, vocab_size=8)))


SMALL = training.Recipe(layers=2, hidden=64, intermediate=64, heads=2, kv_heads=1, batch=4, clean_share=0.5)


def test_training_repeats_its_bits_and_lowers_the_loss():
    torch.set_num_threads(1)
    c = chat()
    demonstrations = [demonstration(), demonstration(commands=("cat amber.py", "submit"), clean=False)]
    models = [training.train(SMALL, c, demonstrations, steps=6, seed=seed) for seed in (0, 0, 1)]
    states = [torch.cat([p.flatten() for p in model.parameters()]) for model in models]
    assert torch.equal(states[0], states[1]) and not torch.equal(states[0], states[2])
    ids, scored = encode(c, demonstration(), GenerationSettings())

    def loss(model):
        with torch.no_grad():
            logits = model(input_ids=torch.from_numpy(ids.astype(np.int64))[None]).logits[0, :-1]
        keep = torch.from_numpy(scored[1:])
        return torch.nn.functional.cross_entropy(logits[keep], torch.from_numpy(ids[1:].astype(np.int64))[keep]).item()

    longer = training.train(SMALL, c, demonstrations, steps=60, seed=0)
    assert loss(longer) < 0.5 * loss(models[0])


@pytest.mark.slow
def test_models_are_built_once_and_an_interrupted_build_leaves_only_what_is_complete(tmp_path, monkeypatch):
    monkeypatch.setattr(warm_start, "load_workload", lambda name, root, training_tasks: FakeWorkload())
    monkeypatch.setattr(warm_start, "STUDENT", SMALL)
    monkeypatch.setattr(warm_start, "TEACHER", SMALL)
    requests = [warm_start.ModelRequest(workload="fake", seed=seed, steps=6) for seed in (0, 1)]
    trained = warm_start._trained

    def interrupted(jobs):
        yield from sorted(trained(jobs), key=lambda job: job.seed)[:3]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(warm_start, "_trained", interrupted)
        with pytest.raises(KeyboardInterrupt):
            warm_start.build_models(tmp_path, requests)
    (complete,) = (tmp_path / "models").iterdir()
    stamp = (complete / "student" / "model.safetensors").stat().st_mtime_ns
    first, second = warm_start.build_models(tmp_path, requests)
    assert first.student.parent == complete and second.student.parent != complete
    assert (complete / "student" / "model.safetensors").stat().st_mtime_ns == stamp
    for path in (first.student, first.teacher, second.student, second.teacher):
        assert {p.name for p in path.iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}
    assert warm_start.build_models(tmp_path, requests[::-1]) == [second, first]


@pytest.mark.slow
def test_a_warm_start_that_fails_is_named_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(warm_start, "load_workload", lambda name, root, training_tasks: FakeWorkload())
    monkeypatch.setattr(warm_start, "STUDENT", SMALL)
    monkeypatch.setattr(warm_start, "TEACHER", replace(SMALL, heads=3, kv_heads=2))  # no grouping of 3 heads by 2
    with pytest.raises(RuntimeError, match="the warm start of .*teacher failed"):
        warm_start.build_models(tmp_path, [warm_start.ModelRequest(workload="fake", seed=0, steps=6)])
    assert list((tmp_path / "models").iterdir()) == []


def test_a_widened_policy_computes_the_same_and_can_learn_with_the_new_units():
    torch.manual_seed(0)
    narrow = training._new_model(SMALL, chat())
    for parameter in narrow.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    wide = widened(narrow, 2 * SMALL.intermediate + 8, seed=0)
    ids = torch.arange(12)[None]
    logits = wide(input_ids=ids).logits
    assert torch.allclose(logits, narrow(input_ids=ids).logits, atol=1e-5)
    assert wide.model.layers[0].mlp.up_proj.weight.shape[0] == 2 * SMALL.intermediate + 8
    torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:]).backward()
    gradient = wide.model.layers[0].mlp.down_proj.weight.grad[:, SMALL.intermediate :]
    assert (gradient != 0).float().mean() > 0.9
    again = widened(narrow, 2 * SMALL.intermediate + 8, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(wide.parameters(), again.parameters(), strict=True))
    with pytest.raises(ValueError, match="model.intermediate is 4"):
        widened(narrow, 4, seed=0)


@pytest.mark.parametrize("shape", [(6, 20), (20, 6), (8, 8)])
def test_muon_directions_keep_the_singular_vectors_and_level_the_values(shape):
    torch.manual_seed(0)
    matrix = torch.randn(shape) * 0.01
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    inside = u.T @ orthogonalised(matrix) @ v.T
    assert torch.allclose(inside, torch.diag(torch.diag(inside)), atol=1e-3)
    assert 0.3 < torch.diag(inside).min() and torch.diag(inside).max() < 1.3


def test_a_first_muon_step_by_hand():
    """From rest the averaged gradient is 0.05 g and the direction a multiple of g, of which only the sign stays."""
    parameter = torch.nn.Parameter(torch.zeros(4, 2))
    parameter.grad = 3 * torch.eye(4)[:, :2]
    Muon([parameter], lr=0.1).step()
    size = parameter.detach()[0, 0]
    assert torch.allclose(parameter.detach(), size * torch.eye(4)[:, :2], atol=1e-6)
    assert size == pytest.approx(-0.1 * 2**0.5, rel=0.35)
