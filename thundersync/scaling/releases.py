"""The same learner work, released at other times: what each release policy makes of a trace (Appendix D.3).

    policy        a trajectory's work is ready                               the closure of a group is ready
    group         with the last reward of its group                          with the last reward of its group
    trajectory    with its reward                                            as above
    content       with its last token                                        as above
    turn_eager    `early` of it turn by turn, `late` with its last turn      with the last turn of its group
    turn_forward  as above, with other shares                                as above

Shares are multiples of a plain forward and backward of the trajectory. Their sum says what streaming by turns costs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from thundersync.scaling.trace import WHOLE, Job, StepTrace, Trace, unit_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Learner work of a trajectory that is released by turns, over that of its plain forward and backward."""

    early: float
    """With each turn, in proportion to its service."""
    late: float
    """When the trajectory closes."""

    def __post_init__(self) -> None:
        if not (self.early >= 0 and self.late >= 0 and 0 < self.early + self.late < float("inf")):
            raise ValueError(f"early {self.early:g} and late {self.late:g}: shares are not negative, nor both zero")


TURN_EAGER = Shares(early=1.09, late=0.81)
"""Measured on twelve turns and one CPU thread, plain forward and backward = 1; late is 43 % of it (the paper's deferred
fraction delta is 45 %)."""
TURN_FORWARD = Shares(early=0.35, late=0.73)
"""Measured in the same way: the forward passes early, the one backward pass late."""


def release(step: StepTrace, policy: str, shares: Shares | None = None) -> StepTrace:
    """The step as `policy` would release it: group, trajectory, content, or with `shares` turn by turn.

    Raises ValueError for what the trace cannot tell, naming it.
    """
    if shares is not None:
        return replace(step, jobs=tuple(_by_turns(step, shares)))
    if policy == "content":
        if any(job.content is None for job in step.jobs if job.trajectory != WHOLE):
            raise ValueError(f"update {step.update} does not say when tokens were final: content cannot be predicted")
        return replace(step, jobs=tuple(_at(step, lambda job: job.content)))
    if policy == "trajectory":
        last = _last(step, lambda job: (job.group, job.trajectory))
        return replace(step, jobs=tuple(_at(step, lambda job: last[job.group, job.trajectory])))
    if policy == "group":
        last = _last(step, lambda job: job.group)
        return replace(step, jobs=tuple(_at(step, lambda job: last[job.group])))
    raise ValueError(
        f"unknown release policy {policy!r}: valid are group, trajectory, content, turn_eager, turn_forward"
    )


def predictable(trace: Trace) -> tuple[str, ...]:
    """The release policies that the trace says enough about, coarsest first."""
    policies = ["group"]
    jobs = [job for step in trace.steps for job in step.jobs]
    if trace.unit != "group":
        policies.append("trajectory")
    if all(job.content is not None for job in jobs if job.trajectory != WHOLE) and trace.unit == "trajectory":
        policies.append("content")
    if trace.unit == "turn" and not any(job.turn == WHOLE for job in jobs if job.trajectory != WHOLE):
        policies += ["turn_eager", "turn_forward"]
    return tuple(policies)


def _at(step: StepTrace, ready: Callable[[Job], float]) -> Iterator[Job]:
    """Trajectory work at `ready`, the closures of groups with the last event of their group."""
    last = _last(step, lambda job: job.group)
    for job in step.jobs:
        yield replace(job, ready=last[job.group] if job.trajectory == WHOLE else ready(job))


def _by_turns(step: StepTrace, shares: Shares) -> Iterator[Job]:
    if unit_of(step.jobs) != "turn":
        raise ValueError(f"update {step.update} does not say when turns were ready: turns cannot be predicted")
    last = _last(step, lambda job: (job.group, job.trajectory))
    late: dict[tuple[int, int], float] = defaultdict(float)
    for job in step.jobs:
        if job.trajectory == WHOLE:
            continue
        late[job.group, job.trajectory] += shares.late * job.service
        yield replace(job, service=shares.early * job.service)
    ranks = {job.group: job.rank for job in step.jobs}
    for (group, trajectory), service in late.items():
        yield Job(group=group, trajectory=trajectory, ready=last[group, trajectory], service=service, rank=ranks[group])
    yield from (job for job in _at(step, lambda job: job.ready) if job.trajectory == WHOLE)


def _last(step: StepTrace, key: Callable[[Job], object]) -> dict[object, float]:
    """The latest readiness among the jobs of one key."""
    last: dict[object, float] = {}
    for job in step.jobs:
        last[key(job)] = max(job.ready, last.get(key(job), 0.0))
    return last
