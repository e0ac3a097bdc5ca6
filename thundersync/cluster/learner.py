"""A learner rank as a Ray actor.

Calls are served one at a time in the order in which they were made: the actor's mailbox is the work-conserving queue of
Equation 1.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import ray
import torch

from thundersync.batch import GroupKey, LogicalBatch
from thundersync.cluster.clock import TrainingClock
from thundersync.cluster.placement import import_then_pin
from thundersync.cluster.specs import LearnerSpec, Seat
from thundersync.heap import settle_heap
from thundersync.policy_hash import policy_hash
from thundersync.ports import ContentReady, Event, Receipt, RewardReady, StepReport, TurnReady


class LearnerProcess:
    """Taken into use by `configure` for a run, and again for the next one."""

    def __init__(self, cores: tuple[int, ...]) -> None:
        import_then_pin(cores, "thundersync.learner.policy", "thundersync.learner.rank")
        self._clock = TrainingClock()
        self._rank = None
        self._policy: Path | None = None

    def address(self) -> str:
        """Where the ranks of the next run may meet, if this process is their rank 0."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return f"tcp://{ray.util.get_node_ip_address()}:{probe.getsockname()[1]}"

    def configure(self, spec: LearnerSpec, seat: Seat) -> tuple[int, str]:
        """Joins the other ranks, loads policy, optimizer and the state of a resumed run: (version, policy hash).

        All ranks are configured at the same time: each waits here for the others.
        """
        from thundersync.learner.policy import load_policy
        from thundersync.learner.rank import LearnerRank
        from thundersync.learner.ranks import ALONE, RankGroup
        from thundersync.streaming import Grid

        if self._rank is not None:
            self._rank.ranks.leave()
        settle_heap()
        alone = seat.size == 1
        meeting = {"rank": seat.rank, "size": seat.size, "timeout_s": seat.timeout_s}
        ranks = ALONE if alone else RankGroup.join(seat.address, **meeting)
        grid = None if spec.exact_exponent is None else Grid(exponent=spec.exact_exponent)
        self._rank = LearnerRank(
            load_policy(spec.policy, lora=spec.lora),
            spec.objective,
            spec.optimizer,
            now=self._clock.now,
            ranks=ranks,
            grid=grid,
            graph_bytes=spec.graph_bytes,
            logprob_tolerance=spec.logprob_tolerance,
        )
        if spec.resume_from is not None:
            self._rank.load(spec.resume_from)
        self._policy = spec.policy
        return self._rank.version, policy_hash(self._rank.weights())

    def start_clock(self, epoch: float) -> None:
        self._clock.epoch = epoch

    def open(self, batch: LogicalBatch) -> None:
        self._rank.open(batch)

    def learn_trajectory(self, event: RewardReady) -> Receipt:
        return self._rank.learn_trajectory(event)

    def learn_turn(self, event: TurnReady) -> Receipt:
        return self._rank.learn_turn(event)

    def forward_turn(self, event: TurnReady) -> Receipt:
        return self._rank.forward_turn(event)

    def learn_content(self, event: ContentReady, turns: Sequence[TurnReady] = ()) -> Receipt:
        return self._rank.learn_content(event, turns)

    def bind_reward(self, event: RewardReady) -> Receipt:
        return self._rank.bind_reward(event)

    def close_trajectory(self, event: ContentReady | RewardReady) -> Receipt:
        return self._rank.close_trajectory(event)

    def close_group(self, group: GroupKey) -> Receipt:
        return self._rank.close_group(group)

    def learn_batch(self, events: list[Event]) -> list[Receipt]:
        return self._rank.learn_batch(events)

    def step(self) -> StepReport:
        return self._rank.step()

    def weights(self) -> dict[str, torch.Tensor]:
        """The tensors that replicas load."""
        return self._rank.weights()

    def save(self, policy: Path, state: Path) -> None:
        """Exports the policy with its tokenizer, and everything that a resumed run needs; called on all ranks."""
        self._rank.ranks.together(lambda: self._export(policy) if self._rank.rank == 0 else None)
        self._rank.save(state)

    def _export(self, policy: Path) -> None:
        from transformers import AutoTokenizer

        self._rank.export(policy)
        AutoTokenizer.from_pretrained(str(self._policy)).save_pretrained(str(policy))


LearnerActor = ray.remote(num_cpus=0)(LearnerProcess)
