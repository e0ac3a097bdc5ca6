"""Trace replay: recorded readiness and service through Equation 14, beside what was measured (Appendix F.5).

    o = (R + L + P) / (max(R, c_n) + P)      speedup predicted from the ThunderSync run's own trace
    f = T_Sync / T_ThunderSync               speedup measured, both runs on the same logical workload
    s                                        speedup of the analytical law at the cell's ratios
    e = 100 |o - s| / s,   d = 100 (o - f) / o                                                          (Equation 29)

Where a gap d comes from, exactly:   f / o = (T_Sync / (R + L + P))  *  ((max(R, c_n) + P) / T_ThunderSync)
The first factor is below 1 when the stages take longer side by side than one after the other; it is a weighted mean of
R_Sync / R, L_Sync / L and P_Sync / P. The second is below 1 when the step lasts longer than its own jobs explain:
dispatch, gaps between jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from thundersync.scaling.trace import StepTrace, Trace, mean


def law_error(o: float, s: float) -> float:
    """Equation 29, e in percent: the trace's prediction from the law's."""
    return 100 * abs(o - s) / s


def runtime_gap(o: float, f: float) -> float:
    """Equation 29, d in percent: how far the measured speedup stays below the trace's prediction."""
    return 100 * (o - f) / o


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Mean seconds per update of a trace."""

    rollout: float
    learner: float
    suffix: float
    tail: float
    """Learner work left when rollout closes, of the replayed step."""
    replayed: float
    """Equation 14 with the recorded readiness and service."""
    sync: float
    """R + L + P of the same work."""
    measured: float | None
    """None where the trace holds no measured steps."""

    @property
    def speedup(self) -> float:
        """o: a ratio of means, as Equation 12."""
        return self.sync / self.replayed


def stages(steps: Sequence[StepTrace]) -> Stages:
    """Means over the updates of a trace."""
    measured = [step.observed for step in steps]
    return Stages(
        rollout=mean(step.rollout for step in steps),
        learner=mean(step.learner for step in steps),
        suffix=mean(step.suffix for step in steps),
        tail=mean(step.tail for step in steps),
        replayed=mean(step.streamed_step for step in steps),
        sync=mean(step.sync_step for step in steps),
        measured=None if None in measured else mean(measured),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A paired cell: a Sync run and a ThunderSync run of the same logical workload."""

    sync: Stages
    streamed: Stages
    """Of the ThunderSync run's own trace."""

    @property
    def predicted(self) -> float:
        """o."""
        return self.streamed.speedup

    @property
    def measured(self) -> float:
        """f."""
        return self.sync.measured / self.streamed.measured

    @property
    def gap(self) -> float:
        """d, in percent."""
        return runtime_gap(self.predicted, self.measured)

    @property
    def side_by_side(self) -> float:
        """The first factor of f / o."""
        return self.sync.measured / self.streamed.sync

    @property
    def unexplained(self) -> float:
        """The second factor of f / o."""
        return self.streamed.replayed / self.streamed.measured

    def stretch(self) -> dict[str, float]:
        """Stage time in the ThunderSync run over that in the Sync run; 1 where running side by side costs nothing."""
        pairs = {
            name: (getattr(self.streamed, name), getattr(self.sync, name)) for name in ("rollout", "learner", "suffix")
        }
        return {name: streamed / sync if sync else float("nan") for name, (streamed, sync) in pairs.items()}


def replay(sync: Trace, streamed: Trace) -> Replay:
    """Pairs two runs over the updates that both have. Raises ValueError when there are none, or no measured steps."""
    updates = {step.update for step in sync.steps} & {step.update for step in streamed.steps}
    if not updates:
        raise ValueError(f"{sync.source} and {streamed.source} have no update in common")
    pair = [stages([step for step in trace.steps if step.update in updates]) for trace in (sync, streamed)]
    for trace, means in zip((sync, streamed), pair, strict=True):
        if means.measured is None:
            raise ValueError(f"{trace.source} holds no measured step times: it cannot be compared")
    return Replay(sync=pair[0], streamed=pair[1])


def replay_table(pair: Replay) -> str:
    """The pair in Markdown: stages, replayed and measured steps, o, f, d and its two factors."""
    lines = ["| mean seconds per update | Sync run | ThunderSync run | ratio |", "|---|---|---|---|"]
    for name, ratio in pair.stretch().items():
        lines.append(f"| {name} | {getattr(pair.sync, name):.3f} | {getattr(pair.streamed, name):.3f} | {ratio:.2f} |")
    for name, one, other in (
        ("step, replayed", pair.sync.sync, pair.streamed.replayed),
        ("step, measured", pair.sync.measured, pair.streamed.measured),
    ):
        lines.append(f"| {name} | {one:.3f} | {other:.3f} | {other / one:.2f} |")
    lines += [
        "",
        f"Speedup predicted from the ThunderSync run's trace: o = {pair.predicted:.3f}; "
        f"measured: f = {pair.measured:.3f}; d = {pair.gap:.1f} % (Equation 29).",
        f"f / o = {pair.side_by_side:.3f} (stages take longer side by side, or do more) x {pair.unexplained:.3f} "
        "(the step lasts longer than its jobs explain).",
    ]
    return "\n".join(lines) + "\n"


def release_fraction(trace: Trace, u: np.ndarray) -> np.ndarray:
    """F-(u) of Equation 18: share of service released strictly before u R, mean over the updates. float64, as `u`."""
    curves = []
    for step in trace.steps:
        before = step.ready_N[None, :] < u[:, None] * step.rollout
        curves.append((before * step.service_N).sum(1) / step.service_N.sum())
    return np.mean(curves, axis=0)
