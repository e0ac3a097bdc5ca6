"""One rollout replica: an engine, a workload and the agent loops that they serve. Single-threaded asyncio, no Ray.

`start` admits a batch's trajectories in their order; each is a task that waits for a free sandbox, runs its agent loop
and puts its events on one queue. The pump advances the engine while it has work and lets sandboxes speak in between.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from thundersync.batch import LogicalBatch, Task, Trajectory, TrajectoryKey
from thundersync.ports import Event
from thundersync.records import parse_key
from thundersync.rollout.agent import Attempt, Scorer, run_trajectory
from thundersync.rollout.chat import Chat
from thundersync.rollout.engine import Engine, EngineCounters, GenerationRequest, GenerationResult, ServedPolicy
from thundersync.rollout.script import TurnScript
from thundersync.rollout.settings import GenerationSettings

if TYPE_CHECKING:
    import torch

    from thundersync.environments.workload import Workload


class Replica:
    """Create it, and call its methods, inside one running event loop."""

    def __init__(
        self,
        *,
        engine: Engine,
        chat: Chat,
        workload: Workload,
        settings: GenerationSettings,
        run_seed: int,
        scorer: Scorer | None = None,
        script: TurnScript | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine = engine
        self.chat = chat
        self.workload = workload
        self.settings = settings
        self.run_seed = run_seed
        self.scorer = scorer
        self.script = script
        self.now = now
        self._events: asyncio.Queue[Event | BaseException] = asyncio.Queue()
        self._episodes = asyncio.Semaphore(settings.concurrent_episodes_per_replica)
        self._tasks: set[asyncio.Task] = set()
        self._results: dict[str, asyncio.Future[GenerationResult]] = {}
        self._pump: asyncio.Task | None = None

    # ---- rollout

    def start(self, batch: LogicalBatch) -> None:
        """Admits every trajectory of the batch, in the batch's order."""
        for group in batch.groups:
            for index in range(group.size):
                key = TrajectoryKey(*group.key, index)
                self._spawn(self._admitted(group.task, key))

    async def next_event(self) -> Event:
        """The next event of all started batches, in readiness order. Raises what a trajectory died of."""
        item = await self._events.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def ready_events(self) -> list[Event]:
        """The events that are there now, without waiting. Raises what a trajectory died of."""
        events: list[Event] = []
        while not self._events.empty():
            item = self._events.get_nowait()
            if isinstance(item, BaseException):
                raise item
            events.append(item)
        return events

    async def attempt(
        self,
        task: Task,
        key: TrajectoryKey,
        *,
        run_seed: int | None = None,
        emit: Callable[[Event], None] | None = None,
    ) -> Trajectory:
        """One attempt at a task in a fresh episode: what evaluation awaits, and what `start` admits.

        `run_seed` replaces the replica's for this attempt; without `emit` the events are dropped.
        """
        run_seed = self.run_seed if run_seed is None else run_seed
        async with self._episodes:
            episode = await self.workload.open(task.task_id)
            try:
                attempt = Attempt(
                    key=key,
                    task=task,
                    run_seed=run_seed,
                    chat=self.chat,
                    settings=self.settings,
                    generate=self._generate,
                    now=self.now,
                    emit=emit or (lambda event: None),
                    scorer=self.scorer if emit else None,
                )
                return await run_trajectory(attempt, episode)
            finally:
                await episode.close()

    # ---- publication

    def load_weights(self, state_dict: Mapping[str, torch.Tensor], version: int) -> None:
        """Takes effect between two engine steps; sequences in flight go on under the new policy."""
        self.engine.load_weights(state_dict, version)

    def clear(self) -> None:
        self.engine.clear_caches()

    def served(self) -> ServedPolicy:
        return self.engine.served()

    # ---- state

    @property
    def counters(self) -> EngineCounters:
        return self.engine.counters

    async def close(self) -> None:
        """Cancels what is in flight and closes its sandboxes. Whoever waits for an event gets an error."""
        tasks = [*self._tasks, *([self._pump] if self._pump else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        # Or the last call for events would wait for ever, and keep engine and caches alive with it.
        self._events.put_nowait(RuntimeError("the replica was closed"))

    # ---- inside

    async def _admitted(self, task: Task, key: TrajectoryKey) -> None:
        try:
            await self.attempt(task, key, emit=self._events.put_nowait)
        except Exception as error:
            error.add_note(f"while rolling out {key} of task {task.task_id}")
            self._events.put_nowait(error)

    def _spawn(self, coroutine) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _generate(self, request: GenerationRequest) -> GenerationResult:
        if request.request_id in self._results:
            raise ValueError(f"{request.request_id} is already being generated: two attempts share a key")
        if self.script is not None:
            request = replace(request, scripted_ids=self.script.action_ids(self.chat, parse_key(request.request_id)))
        future = asyncio.get_running_loop().create_future()
        self.engine.submit(request)
        self._results[request.request_id] = future
        if self._pump is None or self._pump.done():
            self._pump = asyncio.ensure_future(self._run_engine())
        try:
            return await future
        finally:
            self._results.pop(request.request_id, None)

    async def _run_engine(self) -> None:
        """Steps the engine until it has no work. An engine error fails every request in flight, which reports it."""
        try:
            while self.engine.busy:
                for result in self.engine.step():
                    future = self._results.get(result.request_id)
                    if future is not None and not future.done():
                        future.set_result(result)
                await asyncio.sleep(0)
        except Exception as error:
            for future in self._results.values():
                if not future.done():
                    future.set_exception(RuntimeError(f"the engine failed: {error!r}"))
