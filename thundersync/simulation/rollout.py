"""The Rollout port on virtual time: replicas with slots, trajectories that take time and make no tokens.

A slot is taken from a trajectory's start to its reward and given on in order of admission, so a trajectory's times are
known when it is admitted: a batch costs one heap operation a trajectory, and one timer for each event that it sends.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from thundersync.batch import GroupPlan, LogicalBatch, Trajectory, TrajectoryKey, Turn
from thundersync.ports import ContentReady, Event, RewardReady, RolloutError, TurnReady
from thundersync.simulation.durations import WHOLE, Durations, TrajectoryTimes
from thundersync.simulation.faults import Faults
from thundersync.simulation.learner import TurnWork, VirtualLearner

_NONE = np.zeros(0, np.int32)


@dataclass(slots=True, kw_only=True)
class Flight:
    """One trajectory on its replica, in virtual seconds."""

    key: TrajectoryKey
    replica: VirtualReplica
    times: TrajectoryTimes
    started: float
    content_at: float
    reward_at: float
    outcome: str

    def turn_ends_T(self) -> np.ndarray:
        """float64: when each turn is ready; the last is `content_at`."""
        return self.started + self.times.seconds * self.times.turn_ends_T

    def turn_starts(self, turn: int) -> float:
        return self.started + (self.times.seconds * float(self.times.turn_ends_T[turn - 1]) if turn else 0.0)

    def trajectory(self, reward: float | None = None) -> Trajectory:
        """One Turn stands for all of them: it carries the versions between which the trajectory was sampled."""
        last = len(self.times.turn_ends_T) - 1
        versions = self.replica.version_at(self.started), self.replica.version_at(self.turn_starts(last))
        return Trajectory(
            key=self.key,
            task_id="",
            prompt_ids_P=_NONE,
            turns=_turns(versions),
            reward=reward,
            success=None if reward is None else False,
            outcome=self.outcome,
        )


class VirtualReplica:
    """A number of rollout slots, and the history of the versions that were served on them."""

    def __init__(self, number: int, slots: int, first_version: int, faults: Faults) -> None:
        self.number, self.name = number, f"replica-{number}"
        self.load = 0
        """Trajectories admitted and not yet rewarded."""
        self._faults = faults
        self._free = [0.0] * slots
        self._served_at, self._served = [-math.inf], [first_version]

    @property
    def version(self) -> int:
        return self._served[-1]

    def version_at(self, time: float) -> int:
        """The version that was served then; `time` is not after now."""
        return self._served[bisect_right(self._served_at, time) - 1]

    def serve(self, version: int) -> None:
        self._served_at.append(asyncio.get_running_loop().time())
        self._served.append(version)

    def take_slot(self, seconds: float) -> float:
        """Takes the slot that is free first for so long; returns when it starts."""
        started = max(asyncio.get_running_loop().time(), self._free[0])
        heapq.heapreplace(self._free, started + seconds)
        return started

    def answers_at(self, time: float) -> float:
        """When something that is ready at `time` is heard of outside: later or never, with a fault."""
        if not self._faults:
            return time
        if time >= self._faults.silent_from("replica", self.number):
            return math.inf
        return time + self._faults.delay("replica", self.number, time)

    async def silence(self) -> None:
        """What a call finds that the replica will not answer: an error if it died, else nothing for ever."""
        if self._faults.of("replica_dies", self.number):
            raise RolloutError(f"{self.name} died")
        await asyncio.get_running_loop().create_future()


class VirtualRollout:
    """Groups go whole to the replica with the fewest admitted trajectories."""

    def __init__(
        self,
        durations: Durations,
        replicas: Sequence[VirtualReplica],
        *,
        faults: Faults = Faults(),  # noqa: B008  (frozen)
        tool_timeout_s: float = math.inf,
        turns_to: VirtualLearner | None = None,
        send_turns: bool = True,
    ) -> None:
        """`turns_to` hands the turns of each batch straight to the learner's queues instead of sending their events."""
        self.replicas = tuple(replicas)
        self.flights: list[Flight] = []
        """Every trajectory that was admitted, for drawing."""
        self._durations, self._faults, self._tool_timeout_s = durations, faults, tool_timeout_s
        self._turns_to, self._send_turns = turns_to, send_turns and turns_to is None
        self._events: asyncio.Queue[Event | BaseException] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        for replica in self.replicas:
            if death := faults.of("replica_dies", replica.number):
                error = RolloutError(f"rollout replica {replica.name} died")
                loop.call_at(death.at, self._events.put_nowait, error)

    async def start(self, batch: LogicalBatch) -> None:
        work = [turns for plan in batch.groups for turns in self._admit(plan)]
        if self._turns_to is not None:
            self._turns_to.expect(work)

    async def events(self) -> AsyncIterator[Event]:
        while True:
            event = await self._events.get()
            if isinstance(event, BaseException):
                raise event
            yield event

    def _admit(self, plan: GroupPlan) -> list[TurnWork]:
        replica = min(self.replicas, key=lambda replica: replica.load)
        replica.load += plan.size
        work = []
        for i in range(plan.size):
            key = TrajectoryKey(*plan.key, i)
            times, outcome = self._with_faults(key, self._durations.trajectory(key))
            flight = _flight(key, replica, times, outcome)
            self.flights.append(flight)
            if self._send_turns:
                self._at(flight, flight.turn_starts(1), self._turn, flight, 0)
            else:
                self._at(flight, flight.content_at, self._content, flight)
            if self._turns_to is not None:
                work.append(TurnWork(plan.key, flight.turn_ends_T(), times.turn_service * times.turn_shares_T))
        return work

    def _with_faults(self, key: TrajectoryKey, times: TrajectoryTimes) -> tuple[TrajectoryTimes, str]:
        """A hanging tool takes until its timeout and ends the trajectory; a lost reward takes for ever."""
        outcome = "virtual"
        if self._faults.on("tool_hangs", key):
            seconds = times.seconds * float(times.turn_ends_T[0]) + self._tool_timeout_s
            times, outcome = replace(times, seconds=seconds, turn_ends_T=WHOLE, turn_shares_T=WHOLE), "tool_timeout"
        if self._faults.on("reward_lost", key):
            times = replace(times, verification=math.inf)
        return times, outcome

    def _at(self, flight: Flight, time: float, deliver, *args) -> None:
        """Calls `deliver` when the replica is heard; an event that is never heard is never sent."""
        heard = flight.replica.answers_at(time)
        if heard < math.inf:
            asyncio.get_running_loop().call_at(heard, deliver, *args)

    def _turn(self, flight: Flight, index: int) -> None:
        version = flight.replica.version_at(flight.turn_starts(index))
        event = TurnReady(
            key=flight.key.turn(index),
            prompt_ids_P=_NONE,
            turn=_turns((version, version))[0],
            teacher_logprobs_A=_NONE,
            at=asyncio.get_running_loop().time(),
        )
        self._send(flight, event, "turn" if index == 0 else "")
        if index + 1 < len(flight.times.turn_ends_T):
            self._at(flight, flight.turn_starts(index + 2), self._turn, flight, index + 1)
        else:
            self._content(flight)

    def _content(self, flight: Flight) -> None:
        now = asyncio.get_running_loop().time()
        self._send(flight, ContentReady(trajectory=flight.trajectory(), at=now), "content")
        if flight.reward_at <= flight.content_at:
            self._reward(flight)
        else:
            self._at(flight, flight.reward_at, self._reward, flight)

    def _reward(self, flight: Flight) -> None:
        flight.replica.load -= 1
        now = asyncio.get_running_loop().time()
        self._send(flight, RewardReady(trajectory=flight.trajectory(reward=0.0), at=now), "reward")

    def _send(self, flight: Flight, event: Event, kind: str) -> None:
        self._events.put_nowait(event)
        fault = self._faults.on("event_twice", flight.key)
        if fault and fault.event == kind:
            asyncio.get_running_loop().call_later(fault.seconds, self._events.put_nowait, event)


def _flight(key: TrajectoryKey, replica: VirtualReplica, times: TrajectoryTimes, outcome: str) -> Flight:
    started = replica.take_slot(times.rollout)
    content_at = started + times.seconds
    return Flight(
        key=key,
        replica=replica,
        times=times,
        started=started,
        content_at=content_at,
        reward_at=content_at + times.verification,
        outcome=outcome,
    )


@lru_cache(maxsize=4096)
def _turns(versions: tuple[int, int]) -> tuple[Turn]:
    versions_A = np.array(versions, np.int32)
    return (Turn(context_ids_C=_NONE, action_ids_A=_NONE, logprobs_A=_NONE, versions_A=versions_A),)
