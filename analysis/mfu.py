"""Trainer active MFU (Equations 10 and 11): learner FLOPs over complete update wall time and the learner's peak rate.

    MFU_k = F_k / (T_k * sum_d P_d),        mean over the window

F_k comes from the FLOP ledger and the token counts in the records: an untimed pass over the same shapes. Recomputation
takes time and is not credited. On a CPU no data sheet gives P_d: it is measured, and every report calls it that.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

from analysis.load import Run, RunDetails
from thundersync.learner.flop_ledger import Lora
from thundersync.learner.flop_passes import Spoken, Work, direct, streamed
from thundersync.learner.flop_shapes import Shape, shape_of
from thundersync.learner.settings import PAPER_TARGETS
from thundersync.records import Mean, RecordError, RunRecord, SourceRecord, TrajectoryRecord, UpdateRecord, parse_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Peak rate of one learner device."""

    flops: float
    origin: str
    """Where the number comes from, in words for a report."""


DATA_SHEET = {"B200": 2250e12, "H200": 989.5e12}
"""Dense BF16, FLOP/s (Appendix B.4)."""


def peak_of(record: RunRecord, measure: Callable[[], float]) -> Peak:
    """P_d of the run's learner device: of its data sheet, else as recorded, else as `measure` finds it now."""
    for name, flops in DATA_SHEET.items():
        if name in record.device_name:
            return Peak(flops=flops, origin=f"dense BF16 peak of the {name}'s data sheet (Appendix B.4)")
    fp32 = f"measured FP32 peak of one {record.device_name}: the fastest of many matrix products on one thread"
    if record.learner_peak_flops is not None:
        return Peak(flops=record.learner_peak_flops, origin=f"{fp32}, when the session of the run started")
    return Peak(
        flops=measure(), origin=f"{fp32}, on the machine and at the time of this report, as the run recorded none"
    )


def policy_shape(run: Run) -> Shape:
    """Of the policy that the run trains."""
    return shape_of(SimpleNamespace(**_policy_config(run)))


def adapters(run: Run) -> Lora | None:
    """The adapters that the run trains; None where it trains all weights."""
    lora = run.record.config.get("model", {}).get("lora")
    if lora is None:
        return None
    return Lora(
        rank=lora["rank"], targets=frozenset(lora["targets"] or PAPER_TARGETS[_policy_config(run)["model_type"]])
    )


def _policy_config(run: Run) -> dict:
    """The configuration beside the run's first checkpoint. Raises RecordError where it is missing."""
    path = run.path / run.checkpoints[0].path / "config.json"
    if not path.exists():
        raise RecordError(f"{path} is missing: without the policy's configuration its FLOPs are unknown")
    return json.loads(path.read_text(encoding="utf-8"))


def learner_work(
    run: Run, details: RunDetails, updates: Sequence[UpdateRecord], shape: Shape, lora: Lora | None = None
) -> dict[int, Work]:
    """FLOPs of the learner by update."""
    members, sources = defaultdict(list), defaultdict(list)
    for trajectory in details.trajectories:
        members[_group(trajectory.key)].append(trajectory)
    for source in details.sources:
        if source.key is not None:
            sources[_group(source.key)].append(source)
    eager = run.record.config["objective"]["release"] == "turn_eager"
    return {
        u.update: sum((_group_work(shape, members[g], sources[g], eager, lora) for g in u.groups), Work())
        for u in updates
    }


def active_mfu(run: Run, work: dict[int, Work], updates: Sequence[UpdateRecord], peak: Peak) -> Mean:
    """Sum and count of MFU_k, as shares in [0, 1]: Equation 11 is its value."""
    rate = peak.flops * learner_devices(run)
    return Mean(sum=sum(work[u.update].useful.total / (u.step_seconds * rate) for u in updates), count=len(updates))


def learner_devices(run: Run) -> int:
    """One for each learner rank, as long as they have one each beside rollout."""
    return min(run.record.config["scale"].get("learner_ranks", 1), run.record.devices - 1)


def _group(key: str) -> str:
    return key.split("/trajectory=")[0]


def _group_work(
    shape: Shape, members: Sequence[TrajectoryRecord], sources: Sequence[SourceRecord], eager: bool, lora: Lora | None
) -> Work:
    prompt = members[0].tokens.prompt
    if any(source.kind == "direct" for source in sources):
        return direct(shape, prompt, [_whole(t) for t in members], lora=lora)
    closed = sum(source.tokens for source in sources if source.kind == "group")
    turns, replayed = defaultdict(dict), {}
    for source in sources:
        if source.kind == "source" and "/turn=" in source.key:
            key = parse_key(source.key)
            turns[str(key.trajectory_key)][key.turn] = source.tokens
        elif source.kind == "deferred" and eager:
            replayed[source.key] = source.tokens
        # A graph that `turn_forward` dropped ran forward for nothing, for an unknown part of its turns: not counted.
    spoken = [
        Spoken(
            tokens=t.tokens.context + t.tokens.generated,
            scored=t.tokens.scored,
            turns=tuple(tokens for _, tokens in sorted(turns[t.key].items())),
            replayed=replayed.get(t.key, 0),
        )
        for t in members
    ]
    return streamed(shape, prompt, spoken, closures=closed // max(1, prompt - 1), lora=lora)


def _whole(t: TrajectoryRecord) -> Spoken:
    return Spoken(tokens=t.tokens.context + t.tokens.generated, scored=t.tokens.scored)
