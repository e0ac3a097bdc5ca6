"""What each learner rank does in its own process; `test_ranks.py` compares what they bring back.

Starting a process costs seconds (importing torch and transformers), so one group of processes goes through everything.
"""

from __future__ import annotations

import multiprocessing
import socket
from pathlib import Path

import torch
from learner_parts import direct_update, make_batch, make_rank, own_events, stream_sources, stream_update
from torch import nn

from thundersync.learner.optimizer import AdamWSettings, MasterAdamW
from thundersync.learner.rank import LearnerRank
from thundersync.learner.ranks import RankGroup
from thundersync.objectives import GRPO, OPD
from thundersync.policy_hash import policy_hash
from thundersync.ports import RewardReady

GROUPS_OF_UPDATE = (3, 1, 3, 3)
"""Three groups on two ranks; at update 1 only rank 0 has one. Four ranks leave rank 3 without any."""
OBJECTIVES = (GRPO(prompts=3), OPD())


def run_ranks(size: int, folder: Path) -> list[dict]:
    """Results of `scenarios` of every rank, each in a process of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    # A server that has imported the libraries forks each rank: one import for all of them.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rank_processes"])
    processes = [context.Process(target=_rank, args=(address, rank, size, folder)) for rank in range(size)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(200)
        if process.is_alive():
            process.kill()
    assert [process.exitcode for process in processes] == [0] * size
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(size)]


def _rank(address: str, rank: int, size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    ranks = RankGroup.join(address, rank=rank, size=size, timeout_s=180)
    torch.save(scenarios(ranks, folder), folder / f"rank{rank}.pt")
    ranks.leave()


def scenarios(ranks: RankGroup, folder: Path) -> dict:
    return {
        "runs": {objective.name: run(objective, ranks, folder / objective.name) for objective in OBJECTIVES},
        "optimizer": {str(moments): step_alone(moments, ranks) for moments in (torch.float32, torch.bfloat16)},
        "token mean": token_mean(ranks),
        "refusals": {name: refusal(name, ranks) for name in SABOTAGE},
    }


def run(objective, ranks: RankGroup, folder: Path) -> dict:
    """Streamed updates, a checkpoint, and one update at once before and after loading it."""
    learner = make_rank(objective, ranks=ranks)
    start, directions = weights(learner), record_directions(learner)
    steps, parameters, memory = [], [], []
    for update, groups in enumerate(GROUPS_OF_UPDATE):
        steps.append(stream_update(learner, update, groups)[1])
        parameters.append(weights(learner))
        memory.append(learner.stream.memory)
    learner.save(folder)
    straight = direct_update(learner, len(steps), 3)[1]
    learner.load(folder)
    resumed = direct_update(learner, len(steps), 3)[1]
    return {
        "start": start,
        "directions": directions[: len(steps)],
        "steps": steps,
        "parameters": parameters,
        "memory": memory,
        "straight": straight,
        "resumed": resumed,
        "shard_bytes": learner.optimizer.shard_bytes,
    }


def step_alone(moments: torch.dtype, ranks: RankGroup) -> dict[str, torch.Tensor]:
    """The optimizer's whole state after steps along directions that are the same on all ranks; 969 weights."""
    torch.manual_seed(0)
    model = nn.Linear(50, 19)
    optimizer = MasterAdamW(model, AdamWSettings(learning_rate=1e-2, weight_decay=0.1, moments=moments), ranks)
    for _ in range(5):
        optimizer.step({name: torch.randn(p.shape) for name, p in model.named_parameters()})
    return {**optimizer.state(), "bytes": optimizer.shard_bytes, "parameters": flat(model.parameters())}


def token_mean(ranks: RankGroup) -> float:
    """Case D5: undivided sums 5 and 7 over 5 and 1 tokens; further ranks have none."""
    total, tokens = {0: (5.0, 5), 1: (7.0, 1)}.get(ranks.rank, (0.0, 0))
    gradient = torch.tensor([total])
    ranks.sum_(gradient)
    return gradient.item() / sum(ranks.gather(tokens))


class Tampered(RankGroup):
    """Rank 1's network changes what was reduced."""

    factor = 1.001

    def sum_(self, tensor: torch.Tensor) -> None:
        super().sum_(tensor)
        if self.rank == 1:
            tensor.mul_(self.factor)


class TamperedToNaN(Tampered):
    factor = float("nan")


class Doubled(OPD):
    """States the same settings, divides by something else."""

    def divisor(self, scored_tokens: int) -> float:
        return 2.0 * super().divisor(scored_tokens)


Doubled.__qualname__ = "OPD"


def elsewhere(learner: LearnerRank) -> None:
    learner.version = 1
    stream_sources(learner, 1, 3)


def one_missing(learner: LearnerRank) -> None:
    learner.open(make_batch(0, 3))
    for event in [event for event in own_events(learner, 0, 3) if isinstance(event, RewardReady)][1:]:
        learner.learn_trajectory(event)


def not_finite(learner: LearnerRank) -> None:
    stream_sources(learner, 0, 3)
    learner.stream._sums._flat_b[0][7] = float("inf")


def nothing(learner: LearnerRank) -> None:
    """Never opens the batch."""


SABOTAGE = {
    "version": ({}, elsewhere),
    "policy": ({"seed": 1}, None),
    "batch": ({}, lambda learner: stream_sources(learner, 0, 2)),
    "objective": ({"objective": GRPO(prompts=4)}, None),
    "optimizer": ({"learning_rate": 2e-2}, None),
    "divisor": ({"objective": Doubled()}, None),
    "norm": ({"ranks": Tampered}, None),
    "norm nan": ({"ranks": TamperedToNaN}, None),
    "missing": ({}, one_missing),
    "not finite": ({}, not_finite),
    "not open": ({}, nothing),
}
"""What rank 1 has or does otherwise than the others."""


def refusal(name: str, ranks: RankGroup) -> dict:
    """One step that must not happen, as this rank saw it."""
    settings, instead = SABOTAGE[name]
    own = {"objective": OPD() if name == "divisor" else GRPO(prompts=3), "ranks": ranks}
    if ranks.rank == 1:
        own |= settings
    if isinstance(own["ranks"], type):
        own["ranks"] = own["ranks"](rank=ranks.rank, size=ranks.size)
    learner = make_rank(**own)
    (stream_sources if ranks.rank != 1 or instead is None else lambda learner, *_: instead(learner))(learner, 0, 3)
    before, version, error = policy_hash(learner.weights()), learner.version, None
    try:
        learner.step()
    except Exception as raised:
        error = raised
    return {
        "error": f"{type(error).__name__}: {error}",
        "nothing changed": (policy_hash(learner.weights()), learner.version) == (before, version),
        "moments": float(learner.optimizer.state()["exp_avg"].abs().max()),
        "still open": learner.stream.is_open,
    }


def record_directions(learner: LearnerRank) -> list[torch.Tensor]:
    """Fills up with the flat direction of every step."""
    directions, step = [], learner.optimizer.step

    def recorded(direction):
        directions.append(flat(direction.values()))
        return step(direction)

    learner.optimizer.step = recorded
    return directions


def weights(learner: LearnerRank) -> torch.Tensor:
    return flat(learner.weights().values())


def flat(tensors) -> torch.Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
