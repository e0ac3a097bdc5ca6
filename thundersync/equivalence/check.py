"""The replays of `make equivalence-check` for one objective, and what they must show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from thundersync.equivalence.compare import Comparison, broken_fp32, broken_fp64, compare
from thundersync.equivalence.precision import native_bf16
from thundersync.equivalence.replay import Batches, Replay, Variant, reordered, replay
from thundersync.learner.optimizer import AdamWSettings
from thundersync.objectives.objective import Objective

SHUFFLES = 2
"""Random arrival orders that exact sums are held to, beside the recorded one and Sync's."""


EMULATED_BF16_BATCHES = 3
"""BF16 batches where the CPU has no BF16 products: emulated ones cost minutes for ten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is replayed."""

    policy: Path
    objective: Objective
    settings: AdamWSettings
    batches: Batches
    releases: tuple[str, ...]
    """Release policies of the objective; the first is the default one."""
    exact_exponent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Everything that was compared for one objective."""

    fp32: dict[str, Comparison]
    """Release -> ThunderSync against Sync `direct`, both FP32."""
    fp64: dict[str, Comparison]
    """The same in FP64, over the first batch."""
    bf16_sync: Comparison
    """Sync BF16 against Sync FP32."""
    bf16_thundersync: Comparison
    """ThunderSync BF16 against Sync FP32."""
    bf16_gaps: tuple[float, ...]
    """Equation 30 between the schedules, both BF16."""
    exact: dict[str, bool]
    """Arrival order -> the same policy hash as Sync `sums` after every update."""
    exact_underflow: float
    exact_cost: float
    """Learner time with exact sums over that with FP32 sums, same batches and release."""
    sample: dict[str, list[float]]
    """Random coordinates of the first directions, for the scatter panels."""

    def broken(self) -> list[str]:
        """Thresholds that are exceeded, in words."""
        found = [f"{release}: {words}" for release, c in self.fp32.items() for words in broken_fp32(c)]
        found += [f"{release}: {words}" for release, c in self.fp64.items() for words in broken_fp64(c)]
        found += [
            f"exact sums: {order} ended in other bits than Sync" for order, same in self.exact.items() if not same
        ]
        return found

    def as_dict(self) -> dict:
        return asdict(self)


def check(subject: Subject, *, on_update: Callable[[], None] = lambda: None) -> Findings:
    """Runs every replay of the subject. `on_update` is called `replayed_updates(subject)` times."""

    torch.set_num_threads(1)  # the order of additions, and so the bits, must not depend on the machine

    def run(variant: Variant, batches: Batches = subject.batches) -> Replay:
        return replay(subject.policy, subject.objective, subject.settings, batches, variant, on_update=on_update)

    sync = Variant(schedule="sync", release=subject.releases[0])
    streamed = {release: Variant(schedule="thundersync", release=release) for release in subject.releases}
    default = streamed[subject.releases[0]]

    reference = run(sync)
    fp32 = {release: run(variant) for release, variant in streamed.items()}
    first = subject.batches[:1]
    wide = run(replace(sync, precision="fp64"), first)
    fp64 = {release: run(replace(variant, precision="fp64"), first) for release, variant in streamed.items()}
    some = _bf16_batches(subject)
    bf16_sync = run(replace(sync, precision="bf16"), some)
    bf16_ours = run(replace(default, precision="bf16"), some)
    beginning = replace(reference, parameters=reference.parameters[: len(some)])

    exact = {"exact_exponent": subject.exact_exponent}
    exact_sync = run(replace(sync, reduction="sums", **exact))
    orders = {"recorded order": run(replace(default, **exact))}
    generator = torch.Generator().manual_seed(0)
    for i in range(SHUFFLES):
        orders[f"random order {i + 1}"] = run(replace(default, **exact), reordered(subject.batches, generator))
    return Findings(
        fp32={release: compare(r, reference) for release, r in fp32.items()},
        fp64={release: compare(r, wide) for release, r in fp64.items()},
        bf16_sync=compare(bf16_sync, beginning),
        bf16_thundersync=compare(bf16_ours, beginning),
        bf16_gaps=compare(bf16_ours, bf16_sync).gaps,
        exact={name: r.hashes == exact_sync.hashes for name, r in orders.items()},
        exact_underflow=exact_sync.underflow,
        exact_cost=orders["recorded order"].learner_s / fp32[subject.releases[0]].learner_s,
        sample=_sample(reference, fp32[subject.releases[0]], bf16_sync, bf16_ours),
    )


def replayed_updates(subject: Subject) -> int:
    """Updates of all replays of `check`, for a progress bar."""
    long = 1 + len(subject.releases) + 2 + SHUFFLES
    return long * len(subject.batches) + 1 + len(subject.releases) + 2 * len(_bf16_batches(subject))


def _bf16_batches(subject: Subject) -> Batches:
    return subject.batches if native_bf16() else subject.batches[:EMULATED_BF16_BATCHES]


def _sample(*replays: Replay, coordinates: int = 2000) -> dict[str, list[float]]:
    """The same random coordinates of four first directions."""
    names = ("sync_fp32", "thundersync_fp32", "sync_bf16", "thundersync_bf16")
    size = len(replays[0].direction_P)
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(size, (min(coordinates, size),), generator=generator)
    return {name: r.direction_P[chosen].tolist() for name, r in zip(names, replays, strict=True)}
