"""One simulated run: a schedule, the virtual ports and their settings; what came of it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from thundersync.batch import GroupPlan, LogicalBatch, Task
from thundersync.ports import Event, LearnerError, PublicationError, PublishedUpdate, Receipt, RolloutError
from thundersync.publication import AcknowledgedPublisher
from thundersync.sampler import TaskSampler
from thundersync.schedules import SCHEDULES, Parts, Release
from thundersync.simulation.durations import Durations
from thundersync.simulation.faults import Faults
from thundersync.simulation.learner import VirtualLearner, policy_hash
from thundersync.simulation.rollout import Flight, VirtualReplica, VirtualRollout
from thundersync.simulation.virtual_time import run
from thundersync.watch import WatchedLearner, WatchedRollout

NAMED_ERRORS = (PublicationError, RolloutError, LearnerError)
"""The errors with which a run may end; each says who failed, what waits, and which setting holds the limit."""
BY_TURNS = ("turn_eager", "turn_forward")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is simulated, as in the configuration of a real run; times in virtual seconds."""

    schedule: str
    prompts: int
    group_size: int
    updates: int
    slots: int
    """Trajectories that a replica runs at once."""
    replicas: int = 1
    ranks: int = 1
    release: str = "trajectory"
    needs_reward: bool = True
    open_groups: int | None = None
    waiting_rewards: int = 1
    reduction: str = "direct"
    lag_bound: int = 2
    acknowledge_timeout_s: float = math.inf
    rollout_timeout_s: float = math.inf
    learner_timeout_s: float = math.inf
    tool_timeout_s: float = math.inf
    turn_events: bool = False
    """Send an event for each turn where nothing but the learner's queue would see it; the times are the same."""


class Publication(NamedTuple):
    """A version was declared published; `served` is what each replica answered then."""

    version: int
    served: tuple[int, ...]


@dataclass(slots=True)
class Outcome:
    """What happened: the schedule's own reports, and what the ports saw."""

    setting: Setting
    durations: Durations
    error: Exception | None = None
    """A named error, where one ended the run."""
    events: list[Event] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    published: list[PublishedUpdate] = field(default_factory=list)
    publications: list[Publication] = field(default_factory=list)
    flights: list[Flight] = field(default_factory=list)
    learner: VirtualLearner | None = None
    keep_events: bool = True

    # ---- the Journal port

    def event(self, event: Event) -> None:
        if self.keep_events:
            self.events.append(event)

    def receipt(self, receipt: Receipt) -> None:
        if self.keep_events:
            self.receipts.append(receipt)

    async def update_published(self, update: PublishedUpdate) -> bool:
        self.published.append(update)
        await asyncio.sleep(self.durations.boundary(update.batch.update))
        return len(self.published) < self.setting.updates

    # ---- reading

    def step_seconds(self, warmup: int = 0) -> list[float]:
        """Complete update wall times (Appendix B.1), the first `warmup` left out."""
        return [update.published_at - update.started_at for update in self.published[warmup:]]


class VirtualClock:
    def now(self) -> float:
        return asyncio.get_running_loop().time()


class Acknowledgement(NamedTuple):
    version: int
    policy_hash: str
    cleared: bool = True


def simulate(
    setting: Setting,
    durations: Durations,
    faults: Faults = Faults(),  # noqa: B008  (frozen)
    *,
    batch: Callable[[int], LogicalBatch] | None = None,
    group: Callable[[int], GroupPlan] | None = None,
    keep_events: bool = True,
) -> Outcome:
    """Runs the schedule on virtual time to its last update, or to the named error that a fault ends in.

    Raises Deadlock where a run would hang for ever, and whatever the schedule raises besides NAMED_ERRORS.
    """
    sampler = TaskSampler(
        tasks=(Task(task_id="virtual", split_group="virtual", instruction=""),),
        seed=0,
        prompts=setting.prompts,
        group_size=setting.group_size,
    )
    outcome = Outcome(setting, durations, keep_events=keep_events)

    async def main() -> None:
        learner = outcome.learner = VirtualLearner(durations, ranks=setting.ranks, faults=faults)
        replicas = [VirtualReplica(i, setting.slots, 0, faults) for i in range(setting.replicas)]
        rollout = VirtualRollout(
            durations,
            replicas,
            faults=faults,
            tool_timeout_s=setting.tool_timeout_s,
            turns_to=learner if _folds_turns(setting, faults) else None,
            send_turns=setting.turn_events or _needs_turns(setting),
        )
        outcome.flights = rollout.flights
        parts = Parts(
            batch=batch or sampler.batch,
            group=group or sampler.group,
            prompts=setting.prompts,
            rollout=_watched(WatchedRollout, rollout, setting.rollout_timeout_s),
            learner=_watched(partial(WatchedLearner, ranks=setting.ranks), learner, setting.learner_timeout_s),
            publisher=_Publisher(setting, durations, replicas, outcome),
            clock=VirtualClock(),
            journal=outcome,
            release=Release(
                policy=setting.release,
                needs_reward=setting.needs_reward,
                open_groups=setting.open_groups,
                waiting_rewards=setting.waiting_rewards,
                ranks=setting.ranks,
            ),
            reduction=setting.reduction,
            lag_bound=setting.lag_bound,
        )
        try:
            await SCHEDULES[setting.schedule](parts)
        except NAMED_ERRORS as error:
            outcome.error = error

    run(main())
    return outcome


def _watched(watch: Callable, port: Any, timeout_s: float) -> Any:
    """As the controller watches its ports; without a limit there is nothing to watch for."""
    return watch(port, timeout_s=timeout_s) if timeout_s < math.inf else port


def _needs_turns(setting: Setting) -> bool:
    """Whether the schedule hands the events of turns on."""
    streams = setting.schedule == "thundersync" or (setting.schedule, setting.reduction) == ("sync", "sums")
    return streams and setting.release in BY_TURNS


def _folds_turns(setting: Setting, faults: Faults) -> bool:
    """Whether the learner may take the turns in without an event each: ThunderSync releases them at once."""
    at_once = setting.schedule == "thundersync" and setting.release in BY_TURNS and setting.open_groups is None
    return at_once and not setting.turn_events and not faults


class _Publisher:
    """The publisher of real runs over virtual replicas; notes what they served when it declared a version published."""

    def __init__(self, setting: Setting, durations: Durations, replicas: list[VirtualReplica], outcome: Outcome):
        self._replicas, self._outcome, self._durations = replicas, outcome, durations
        loads = {replica.name: partial(self._load, replica) for replica in replicas}
        self._publisher = AcknowledgedPublisher(replicas=loads, timeout_s=setting.acknowledge_timeout_s)

    async def publish(self, version: int, policy_hash: str) -> None:
        await self._publisher.publish(version, policy_hash)
        self._outcome.publications.append(Publication(version, tuple(replica.version for replica in self._replicas)))

    async def _load(self, replica: VirtualReplica, version: int) -> Acknowledgement:
        loop = asyncio.get_running_loop()
        due = loop.time() + self._durations.publication(version)
        if (heard := replica.answers_at(due)) == math.inf:
            await replica.silence()
        await asyncio.sleep(heard - loop.time())
        replica.serve(version)
        return Acknowledgement(version, policy_hash(version))
