"""The life of a logical batch in a stream: parameters stay fixed from `open` to `close`; nothing is left after it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from thundersync.objectives.objective import Objective
from thundersync.streaming.cuttable import require_cuttable
from thundersync.streaming.exact_sums import ExactSums, Grid, Rewards
from thundersync.streaming.guards import FixedParameters, require_no_dropout
from thundersync.streaming.host_memory import HostMemory
from thundersync.streaming.open_group import GroupClosure, OpenGroup
from thundersync.streaming.open_scope import OpenScope
from thundersync.streaming.running_sums import RunningSums
from thundersync.streaming.scores import SourceStatistics
from thundersync.streaming.turn_graph import GraphMemory


class OpenBatch:
    """Opens and closes batches and groups, and keeps their sums; how sources enter is `GradientStream`'s.

    The arguments are those of `GradientStream`.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        *,
        dtype: torch.dtype = torch.float32,
        run_tokens: int = 1024,
        grid: Grid | None = None,
        graph_bytes: int | None = None,
        logprob_tolerance: float | None = None,
    ) -> None:
        require_cuttable(model)
        self.model, self.objective, self.dtype, self.run_tokens = model, objective, dtype, run_tokens
        self.logprob_tolerance = logprob_tolerance
        if grid is not None and objective.scope == "batch":
            raise ValueError(f"exact sums do not cover {objective.name}, whose weights depend on the whole batch")
        self.grid = grid
        self.graphs = GraphMemory(budget=graph_bytes)
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if not named:
            raise ValueError("the model has no parameter with requires_grad=True: there is nothing to learn")
        self._names = [name for name, _ in named]
        self._parameters = [p for _, p in named]
        self._fixed: FixedParameters | None = None
        self._spoilt = ""
        """What failed half-way in the open batch; empty for nothing."""
        self._sums: RunningSums | ExactSums | None = None
        self._scope = OpenScope()
        """Of the batch, for an objective of scope "batch"; unused otherwise."""
        self._groups: dict[Hashable, OpenGroup] = {}
        self._closed: set[Hashable] = set()
        self.statistics = SourceStatistics()
        """Of all sources since the batch was opened."""
        self.memory = HostMemory()
        """Of the running sums: now, and the peak since the batch was opened."""

    @property
    def is_open(self) -> bool:
        return self._sums is not None

    def open(self) -> None:
        """Opens a logical batch at the model's current parameters.

        Raises RuntimeError when one is open already, or dropout is active.
        """
        if self.is_open:
            raise RuntimeError("a batch is open already: close() or abort() it first")
        require_no_dropout(self.model)
        self._fixed = FixedParameters(list(self.model.parameters()))
        self.graphs.reset()
        self._sums = self._new_sums(self._parameters, 1)
        self.statistics = SourceStatistics()
        self.memory = HostMemory()
        self._measure()

    def open_group(self, group: Hashable, *, size: int, prompt_ids: Any, shift: float | None = None) -> None:
        """Registers a group of `size` trajectories that continue `prompt_ids`. Allocates nothing yet.

        `shift` fixes c of Equation 7; by default it is the first reward bound in the objective's scope. Raises
        ValueError for a group that is known already, an empty prompt, a size that the objective refuses, or another
        shift than the batch has where that is the scope.
        """
        self._require_open()
        if group in self._groups or group in self._closed:
            raise ValueError(f"group {group} was opened already in this batch")
        self.objective.check_group_size(size, group)
        prompt_ids_P = torch.as_tensor(prompt_ids, device=self._parameters[0].device).long().reshape(-1)
        if not len(prompt_ids_P):
            raise ValueError(f"group {group}: the prompt is empty, so the first token has no distribution")
        exact = None if self.grid is None else Rewards()
        scope = self._scope if self.objective.scope == "batch" else OpenScope(exact=exact)
        if shift is not None:
            if scope.shift not in (None, shift):
                raise ValueError(f"group {group}: the batch has one shift for all groups, {scope.shift}, not {shift}")
            scope.shift = shift
        self._groups[group] = OpenGroup(
            key=group,
            size=size,
            prompt_ids_P=prompt_ids_P,
            objective=self.objective,
            parameters=self._parameters,
            new_sums=self._new_sums,
            batch=self._sums,
            scope=scope,
        )

    def close_group(self, group: Hashable) -> GroupClosure:
        """Combines the group's sums (Equation 7) and runs one backward pass through the shared prompt.

        With scope "batch" the sums stay open for the other groups, and each basis takes a backward pass of its own.
        """
        opened = self._group(group)
        opened.require_closable()
        with self._all_or_nothing(f"closing group {group}"):
            closure = opened.close()
        self._closed.add(group)
        del self._groups[group]
        self._measure()
        return closure

    def close(self) -> dict[str, Tensor]:
        """The ascent direction g_k of the batch: name -> tensor in host memory, divided by N.

        Raises RuntimeError while a group is open or when the parameters changed, ValueError when the objective has no
        update for the batch; the batch then stays open.
        """
        sums, scored_tokens = self._drain(self.objective.divisor)
        divisor = self.objective.divisor(scored_tokens)  # Equation 9: unnormalised until here, divided once
        return {name: tensor.div_(divisor) for name, tensor in sums.items()}

    def close_sums(
        self, add_up: Callable[[Tensor], None] | None = None, batch_rewards: Sequence[float] | None = None
    ) -> tuple[dict[str, Tensor], int]:
        """As `close`, but undivided and with this rank's scored tokens: ranks add both up, then divide once.

        `add_up` adds up a flat buffer over ranks, in place. What it raises leaves nothing to do but `abort`. An
        objective of scope "batch" also needs the `batch_rewards` of all ranks together.
        """
        return self._drain(lambda scored_tokens: 1.0, add_up, batch_rewards)

    @property
    def batch_rewards(self) -> tuple[float, ...]:
        """What has been bound to the open batch on this rank, where the objective's scope is the batch."""
        return tuple(self._scope.rewards)

    def require_closable(self) -> None:
        """Raises RuntimeError when no batch is open, a group still is, parameters changed or dropout became active."""
        self._require_open()
        if self._groups:
            raise RuntimeError(f"groups are still open: {', '.join(map(str, self._groups))}; close_group() each first")
        require_no_dropout(self.model)
        self._fixed.check_values()

    def abort(self) -> None:
        """Lets go of an open batch without an update."""
        self._groups.clear()
        self._closed.clear()
        self._sums = self._fixed = None
        self._spoilt = ""
        self._scope = OpenScope()
        self._measure()

    def _new_sums(self, like: Sequence[Tensor], bases: int) -> RunningSums | ExactSums:
        return RunningSums(like, bases, self.dtype) if self.grid is None else ExactSums(like, bases, self.grid)

    def _require_open(self) -> None:
        if not self.is_open:
            raise RuntimeError("no batch is open: call open() first")
        if self._spoilt:
            raise RuntimeError(f"{self._spoilt} failed half-way: the batch cannot be completed any more, abort() it")

    @contextmanager
    def _all_or_nothing(self, what: str, errors: type[BaseException] = BaseException) -> Iterator[None]:
        """Work that cannot be undone half-way: where it raises, nothing but `abort` is possible afterwards."""
        try:
            yield
        except errors:
            self._spoilt = what
            raise

    def _group(self, group: Hashable) -> OpenGroup:
        self._require_open()
        if group in self._closed:
            raise ValueError(f"group {group} is closed: nothing can be added to it")
        if group not in self._groups:
            raise ValueError(f"group {group} was never opened in this batch")
        return self._groups[group]

    def _measure(self) -> None:
        """Notes what is alive now: sums once each, whoever shares them, and gradients that wait for a reward."""
        opened = self._groups.values()
        scopes = [self._scope, *(group.scope for group in opened)]
        own = {id(scope.sums): scope.sums.nbytes for scope in scopes if scope.sums not in (None, self._sums)}
        batch = 0 if self._sums is None else self._sums.nbytes
        self.memory.record(
            sums=batch + sum(own.values()) + sum(group.waiting_bytes for group in opened),
            adjoints=sum(group.adjoint_bytes for group in opened),
            groups=len(own),
        )

    def _drain(
        self,
        check: Callable[[int], float],
        add_up: Callable[[Tensor], None] | None = None,
        batch_rewards: Sequence[float] | None = None,
    ) -> tuple[dict[str, Tensor], int]:
        """The batch's sums, after every guard; the stream holds nothing afterwards."""
        self.require_closable()
        scored_tokens = self.statistics.scored_tokens
        check(scored_tokens)
        scope, beta = self._scope, ()
        if scope.sums is not None:
            beta = self.objective.beta(scope.rewards if batch_rewards is None else batch_rewards, scope.shift)
        with self._all_or_nothing("closing the batch"):
            if any(beta):
                self._sums.fold((1.0,), scope.sums.combine(beta))
            if add_up is not None:
                self._sums.reduce(add_up)
            sums = {n: s.to(self.dtype) for n, s in zip(self._names, self._sums.combine((1.0,)), strict=True)}
        self.abort()
        return sums, scored_tokens
