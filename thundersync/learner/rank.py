"""One learner rank: a model, its gradient stream and its optimizer, behind the calls of the Learner port.

Synchronous and without Ray; `cluster/` wraps it into an actor. Each call returns when its work is done, with a receipt.
Several ranks share a batch by whole groups: sources go to the rank that owns their group (`LogicalBatch.shares`), while
`open`, `step`, `save`, `load` and `abort` go to all; `step` and `save` wait for each other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from thundersync.batch import GroupKey, Ledger, LogicalBatch, SourceKey, TrajectoryKey
from thundersync.learner.gather import Gathered, gather_trajectories, gather_turns
from thundersync.learner.optimizer import AdamWSettings, MasterAdamW
from thundersync.learner.peak_memory import PeakMemory
from thundersync.learner.policy import served_tensors
from thundersync.learner.ranks import ALONE, RankGroup, require_agreement
from thundersync.objectives.objective import Objective
from thundersync.policy_hash import policy_hash
from thundersync.ports import ContentReady, Event, Receipt, RewardReady, StepReport, TurnReady
from thundersync.streaming import Continuation, GradientStream, Grid, GroupClosure, SourceStatistics

POLICY_FILE, OPTIMIZER_FILE, STATE_FILE = "policy.safetensors", "optimizer.safetensors", "learner.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a rank stands before a step; all ranks must stand at the same place."""

    version: int
    policy: str
    """Hash of the parameters at that version."""
    batch: str
    objective: str
    optimizer: str


class LearnerRank:
    """Learns one logical batch at a time: its own groups of it, where there are other ranks.

    version    k of the model's parameters as given
    now        seconds on the training clock
    grid       makes the running sums exact
    graph_bytes most memory of the graphs that release `turn_forward` keeps
    logprob_tolerance how far, in nats, the rollout engine's log-probability of a token may be from the learner's
    """

    def __init__(
        self,
        model: PreTrainedModel,
        objective: Objective,
        settings: AdamWSettings,
        *,
        now: Callable[[], float],
        ranks: RankGroup = ALONE,
        version: int = 0,
        grid: Grid | None = None,
        graph_bytes: int | None = None,
        logprob_tolerance: float | None = None,
    ) -> None:
        self.model, self.objective, self.version = model, objective, version
        self.ranks, self.rank = ranks, ranks.rank
        self.optimizer = MasterAdamW(model, settings, ranks)
        self.stream = GradientStream(
            model,
            objective,
            dtype=_sums_dtype(model),
            grid=grid,
            graph_bytes=graph_bytes,
            logprob_tolerance=logprob_tolerance,
        )
        self.closures: list[GroupClosure] = []
        """Shift and fold order of the groups of the open batch, in closing order."""
        self._now = now
        self._sizes: dict[GroupKey, int] = {}
        self._opened: set[GroupKey] = set()
        self._ledger: Ledger | None = None
        self._batch: LogicalBatch | None = None
        self._policy_hash = policy_hash(self.weights())
        self._memory = PeakMemory(next(model.parameters()).device)

    def open(self, batch: LogicalBatch) -> None:
        """Opens a logical batch at the current parameters.

        Raises ValueError when the batch was made for another version, RuntimeError when one is open already.
        """
        if batch.update != self.version:
            raise ValueError(f"batch {batch.update} cannot be learnt at version {self.version} of the parameters")
        for plan in batch.groups:
            self.objective.check_group_size(plan.size, plan.key)
        self.stream.open()
        self._memory.reset()
        self.closures = []
        share = self.ranks.share(batch)
        self._batch, self._ledger = batch, Ledger(share)
        self._sizes = {plan.key: plan.size for plan in share.groups}
        self._opened = set()

    def learn_trajectory(self, event: RewardReady) -> Receipt:
        """Forward and backward of one trajectory, folded into its group's running sums (release `trajectory`)."""
        started, key = self._now(), event.key
        whole = Gathered.of(event)
        group = self._open_group(key.group_key, whole.prompt_ids_P)
        self.stream.add_trajectory(group, key.trajectory, whole.continuation())
        self._ledger.close(key)
        return self._receipt(SourceKey(*key), "source", event.at, started, whole.tokens)

    def learn_turn(self, event: TurnReady) -> Receipt:
        """Forward and backward of one turn against detached state (release `turn_eager`)."""
        started, key = self._now(), event.key
        group = self._open_group(key.trajectory_key.group_key, event.prompt_ids_P)
        self.stream.add_turn(group, key.trajectory, _turn_source(event), turn=key.turn)
        return self._receipt(key, "source", event.at, started, len(event.turn.ids))

    def forward_turn(self, event: TurnReady) -> Receipt:
        """Forward of one turn, its graph kept (release `turn_forward`)."""
        started, key = self._now(), event.key
        group = self._open_group(key.trajectory_key.group_key, event.prompt_ids_P)
        self.stream.forward_turn(group, key.trajectory, _turn_source(event), turn=key.turn)
        return self._receipt(key, "source", event.at, started, len(event.turn.ids))

    def learn_content(self, event: ContentReady, turns: Sequence[TurnReady] = ()) -> Receipt:
        """Forward and backward of one trajectory whose tokens are final (release `content`).

        Held until its reward comes; folded at once where the objective needs none: then `turns` are its turns, scored
        by the teacher.
        """
        started, key = self._now(), event.key
        if self.objective.needs_reward:
            whole = Gathered.of(event)
            group = self._open_group(key.group_key, whole.prompt_ids_P)
            self.stream.add_content(group, key.trajectory, whole.continuation())
        else:
            whole = gather_turns([*turns, event])[key]
            group = self._open_group(key.group_key, whole.prompt_ids_P)
            self.stream.add_trajectory(group, key.trajectory, whole.continuation())
            self._ledger.close(key)
        return self._receipt(SourceKey(*key), "source", event.at, started, whole.tokens)

    def bind_reward(self, event: RewardReady) -> Receipt:
        """Folds what `learn_content` left into the group's running sums."""
        started, key = self._now(), event.key
        self.stream.bind_reward(key.group_key, key.trajectory, event.trajectory.reward)
        self._ledger.close(key)
        return self._receipt(key, "bind", event.at, started, 0)

    def close_trajectory(self, event: ContentReady | RewardReady) -> Receipt:
        """Ends a trajectory that came by turns (releases `turn_eager`, `turn_forward`)."""
        started, key = self._now(), event.key
        group = self._open_group(key.group_key, event.trajectory.prompt_ids_P)
        dropped = self.stream.graph_was_dropped(group, key.trajectory)
        again = self.stream.close_trajectory(group, key.trajectory, event.trajectory.reward)
        self._ledger.close(key)
        receipt = self._receipt(key, "deferred", event.at, started, again)
        return replace(receipt, deferred="graph_memory") if dropped else receipt

    def close_group(self, group: GroupKey) -> Receipt:
        """Combines the group's sums and runs one backward through the shared prompt."""
        started, tokens = self._now(), 0
        if group in self._opened:
            closure = self.stream.close_group(group)
            self.closures.append(closure)
            tokens = closure.prompt_tokens
        return self._receipt(group, "group", started, started, tokens)

    def learn_batch(self, events: Sequence[Event]) -> list[Receipt]:
        """The whole batch with its advantages known (reduction `direct`), group by group in the order of their keys.

        OPD learns from TurnReady events, with ContentReady as the mark of completeness, all others from RewardReady; in
        any order. Raises ValueError, before any work, when a registered trajectory is missing or came twice.
        """
        gathered = gather_turns(events) if self.objective.source == "turn" else gather_trajectories(events)
        self.ranks.together(lambda: self._close_all(gathered))
        batch_rewards = self._over_ranks([gathered[key].reward for key in sorted(gathered)])
        receipts = []
        for group in sorted(self._sizes):
            started = self._now()
            members = [gathered[TrajectoryKey(*group, i)] for i in range(self._sizes[group])]
            prompt, continuations = members[0].prompt_ids_P, [member.continuation() for member in members]
            _, closure = self.stream.add_group(group, prompt, continuations, batch_rewards)
            self.closures.append(closure)
            tokens = len(prompt) + sum(member.tokens for member in members)
            ready = max(member.ready_at for member in members)
            receipts.append(self._receipt(group, "direct", ready, started, tokens))
        return receipts

    def _close_all(self, keys: Iterable[TrajectoryKey]) -> None:
        for key in keys:
            self._ledger.close(key)
        self._ledger.require_complete()

    def step(self) -> StepReport:
        """Adds up over the ranks, divides, clips, one optimizer step.

        Raises while a group is open, and RanksRefused on all ranks when one of them cannot step or stands elsewhere;
        parameters and version then stay.
        """
        started = self._now()
        statistics = self._agree_to_step()
        sums, _ = self.stream.close_sums(self.ranks.sum_, batch_rewards=self._over_ranks(self.stream.batch_rewards))
        divisor = self.objective.divisor(statistics.scored_tokens)
        # Equation 9: unnormalised until here, divided once, by the count over all ranks.
        norms = self.optimizer.step({name: tensor.div_(divisor) for name, tensor in sums.items()})
        self.version += 1
        self._policy_hash = policy_hash(self.weights())
        peaks = [peak for peak in self.ranks.gather(self._memory.read()) if peak]
        return StepReport(
            version=self.version,
            policy_hash=self._policy_hash,
            started_at=started,
            ended_at=self._now(),
            divisor=divisor,
            gradient_norm=norms.gradient_norm,
            clip_coefficient=norms.clip_coefficient,
            entropy=statistics.entropy,
            logprob_mismatch=statistics.mismatch,
            peak_memory=max(peaks, key=lambda peak: peak[1], default=None),
        )

    def weights(self) -> dict[str, Tensor]:
        """What replicas have to load, name -> tensor, tied tensors once, adapters merged; see `served_tensors`."""
        return served_tensors(self.model)

    def export(self, directory: str | Path) -> None:
        """Writes the policy as transformers does, adapters merged; anybody's `from_pretrained` reads it."""
        self.model.save_pretrained(str(directory), state_dict=self.weights())

    def save(self, directory: str | Path) -> None:
        """Writes the learner's whole state at an optimizer boundary: policy, masters, moments, version.

        Rank 0 writes it, in the form of one rank: any number of ranks can load it. Raises RuntimeError while a batch is
        open.
        """
        self.ranks.together(self._require_no_open_batch)
        optimizer, folder = self.optimizer.state(), Path(directory)
        self.ranks.together(lambda: self._write(folder, optimizer) if self.rank == 0 else None)

    def load(self, directory: str | Path) -> None:
        """Restores what `save` wrote, bit for bit: with adapters, those of a model that has the same base weights.

        Raises ValueError for a policy without its recorded hash, or when the restored one has another.
        """
        folder = Path(directory)
        state = json.loads((folder / STATE_FILE).read_text())
        saved = load_file(folder / POLICY_FILE)
        if policy_hash(saved) != state["policy_hash"]:
            raise ValueError(f"{folder / POLICY_FILE}: its tensors do not have the hash recorded in {STATE_FILE}")
        own = self.weights()
        if saved.keys() != own.keys():
            odd = ", ".join(sorted(saved.keys() ^ own.keys())[:5])
            raise ValueError(f"{folder / POLICY_FILE} is of another architecture, see: {odd}")
        for name, tensor in own.items():
            tensor.copy_(saved[name])
        self.optimizer.load_state(load_file(folder / OPTIMIZER_FILE))
        if policy_hash(self.weights()) != state["policy_hash"]:
            raise ValueError(f"{folder}: its adapters belong to other base weights than those of this model")
        self.version, self._policy_hash = state["version"], state["policy_hash"]

    def abort(self) -> None:
        """Lets go of an open batch without an update."""
        self.stream.abort()
        self._ledger = self._batch = None

    def _over_ranks(self, rewards: Sequence[float | None]) -> list[float | None]:
        """The rewards of the whole batch, where the objective weights by them; this rank's own otherwise."""
        if self.objective.scope != "batch":
            return list(rewards)
        return [reward for own in self.ranks.gather(list(rewards)) for reward in own]

    def _agree_to_step(self) -> SourceStatistics:
        """Statistics over all ranks, once each has said that it can step, and from where. Nothing is reduced before."""
        everything = self.ranks.together(lambda: (self._standing(), self.stream.statistics))
        for field in fields(Standing):
            require_agreement(field.name, [getattr(standing, field.name) for standing, _ in everything])
        total = sum((statistics for _, statistics in everything), SourceStatistics())
        divisors = self.ranks.together(lambda: self.objective.divisor(total.scored_tokens))
        require_agreement("divisor", divisors)
        return total

    def _standing(self) -> Standing:
        """Raises when this rank's share of the batch is not complete, or its stream cannot close."""
        if self._ledger is not None:
            self._ledger.require_complete()
        self.stream.require_closable()
        members = repr([(plan.key, plan.size) for plan in self._batch.groups])
        return Standing(
            version=self.version,
            policy=self._policy_hash,
            batch=f"{len(self._batch.groups)} groups, sha256 {hashlib.sha256(members.encode()).hexdigest()[:16]}",
            objective=repr(self.objective),
            optimizer=repr(self.optimizer.settings),
        )

    def _require_no_open_batch(self) -> None:
        if self.stream.is_open:
            raise RuntimeError("a batch is open: the learner's state is saved at optimizer boundaries only")

    def _write(self, folder: Path, optimizer: dict[str, Tensor]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        weights = self.weights()
        save_file(weights, folder / POLICY_FILE)
        save_file(optimizer, folder / OPTIMIZER_FILE)
        state = {"version": self.version, "policy_hash": policy_hash(weights)}
        (folder / STATE_FILE).write_text(json.dumps(state, indent=1) + "\n")

    def _open_group(self, group: GroupKey, prompt_ids_P: np.ndarray) -> GroupKey:
        """Opens a group of the batch with its first source, whose event brings the prompt."""
        if group not in self._sizes:
            elsewhere = "" if self.ranks.size == 1 else f", or not rank {self.rank}'s"
            raise ValueError(f"{group} is not part of the open batch{elsewhere}")
        if group not in self._opened:
            self.stream.open_group(group, size=self._sizes[group], prompt_ids=prompt_ids_P)
            self._opened.add(group)
        return group

    def _receipt(
        self, key: SourceKey | TrajectoryKey | GroupKey, kind: str, ready_at: float, started_at: float, tokens: int
    ) -> Receipt:
        return Receipt(
            key=key,
            kind=kind,
            update=self.version,
            ready_at=ready_at,
            started_at=started_at,
            ended_at=self._now(),
            tokens=tokens,
            rank=self.rank,
        )


def _turn_source(event: TurnReady) -> Continuation:
    return Continuation(
        ids=event.turn.ids,
        scored=event.turn.scored,
        teacher_logprobs=event.teacher_logprobs_A,
        rollout_logprobs=event.turn.logprobs_A,
    )


def _sums_dtype(model: PreTrainedModel) -> torch.dtype:
    """FP32 for FP32 and BF16 models; an FP64 model is a reference and keeps its digits."""
    return torch.promote_types(model.dtype, torch.float32)
