"""The replays of `make equivalence-check` for one objective, and what they must show."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace

import torch

from thundersync.equivalence.compare import (
    DIRECTION_FP32,
    Comparison,
    broken_fp32,
    broken_fp64,
    compare,
    direction_bound,
    relative_error,
)
from thundersync.equivalence.precision import native_bf16
from thundersync.equivalence.replay import Batches, Recording, Replay, Variant, reordered
from thundersync.equivalence.workers import Job, Workers, taken

SHUFFLES = 2
"""Random arrival orders in which ThunderSync's exact sums are held to the bits of Sync's, beside two ranks."""

COST_ROUNDS = 3
"""How often exact and FP32 sums take turns at the first batch, for what exact ones cost; a pretrained model, once."""

EMULATED_BF16_BATCHES = 3
"""BF16 batches where the CPU has no BF16 products: emulated ones cost minutes for ten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is checked."""

    recording: Recording
    releases: tuple[str, ...]
    """Release policies of the objective; the first is the default one."""
    exact_exponent: int
    pretrained: bool = False
    """Whether first directions are held to `direction_bound`, not to the embedded models' DIRECTION_FP32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Everything that was compared for one objective."""

    fp32: dict[str, Comparison]
    """Release -> ThunderSync against Sync `direct`, both FP32."""
    fp32_rounding: float
    """Relative error of the first direction of Sync `direct` in FP32 against FP64."""
    fp32_bound: float
    """What the first directions in FP32 are held to."""
    fp64: dict[str, Comparison]
    """As `fp32` in FP64, over the first batch."""
    bf16_sync: Comparison
    """Sync BF16 against Sync FP32."""
    bf16_thundersync: Comparison
    """ThunderSync BF16 against Sync FP32."""
    bf16_gaps: tuple[float, ...]
    """Equation 30 between the schedules, both BF16."""
    bf16_others: dict[str, float]
    """Release that is not the default -> relative error of its first direction in BF16 against Sync FP32."""
    exact: dict[str, bool]
    """Arrival order -> the same policy hash as Sync `sums` after every update."""
    exact_others: dict[str, bool]
    """Release that is not the default -> in a random order the same policy hash as its Sync `sums`, after one batch."""
    exact_underflow: float
    exact_cost: float
    """Learner time with exact sums over that with FP32 sums, ThunderSync's default release, the first batch."""
    exact_memory: float
    """Peak bytes of the running sums, exact over FP32."""
    ranks: Comparison
    """ThunderSync on two learner ranks against one, both FP32."""
    ranks_exact: bool
    """Two ranks with exact sums -> the same policy hash as one rank of Sync `sums` after every update."""
    sample: dict[str, list[float]]
    """Random coordinates of the first directions, for the scatter panels."""

    def broken(self) -> list[str]:
        """Thresholds that are exceeded, in words."""
        found = [f"{release}: {words}" for release, c in self.fp32.items() for words in broken_fp32(c, self.fp32_bound)]
        found += [f"{release}: {words}" for release, c in self.fp64.items() for words in broken_fp64(c)]
        found += [f"two ranks: {words}" for words in broken_fp32(self.ranks, self.fp32_bound)]
        held = self.exact | {f"release {name}": same for name, same in self.exact_others.items()}
        held |= {"two ranks": self.ranks_exact}
        found += [f"exact sums: {order} ended in other bits than Sync" for order, same in held.items() if not same]
        return found

    def as_dict(self) -> dict:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Futures:
    """The replays of a subject, started in the order in which they are wanted."""

    sync: Future
    fp32: dict[str, Future]
    ranks: list[Future]
    fp64_sync: Future
    fp64: dict[str, Future]
    bf16_sync: Future
    bf16: Future
    bf16_others: dict[str, Future]
    exact_sync: Future
    exact: dict[str, Future]
    exact_others: dict[str, tuple[Future, Future]]
    """Sync `sums` in the recorded order, and ThunderSync in a random one."""
    exact_ranks: list[Future]
    exact_cost: Future[float]


def check(subject: Subject, started: Futures, *, on_updates: Callable[[int], object] = lambda count: None) -> Findings:
    """Waits for every replay of the subject and compares. `on_updates` hears of `replayed_updates(subject)` updates."""
    some, updates = len(_bf16_batches(subject.recording.batches)), len(subject.recording.batches)

    def take(future: Future, count: int) -> Replay:
        result = taken(future)
        on_updates(count)
        return result

    reference = take(started.sync, updates)
    # Each replay is compared as it comes: its parameters after every update are not kept.
    fp32, default = {}, subject.releases[0]
    for release, future in started.fp32.items():
        streamed = take(future, updates)
        fp32[release] = compare(streamed, reference)
        if release == default:
            ours = streamed
    ranks = compare(take(started.ranks[0], updates), ours)
    wide = take(started.fp64_sync, 1)
    rounding = relative_error(reference.direction_P, wide.direction_P)
    fp64 = {release: compare(take(future, 1), wide) for release, future in started.fp64.items()}
    beginning = replace(reference, parameters=reference.parameters[:some])
    bf16_sync, bf16_ours = take(started.bf16_sync, some), take(started.bf16, some)
    bf16_others = {name: take(future, 1) for name, future in started.bf16_others.items()}
    exact_sync = take(started.exact_sync, updates)
    exact = {order: take(future, updates) for order, future in started.exact.items()}
    exact_others = {name: [take(f, 1).hashes for f in pair] for name, pair in started.exact_others.items()}
    exact_ranks = [take(started.exact_ranks[0], updates), *map(taken, started.exact_ranks[1:])]
    return Findings(
        fp32=fp32,
        fp32_rounding=rounding,
        fp32_bound=direction_bound(rounding) if subject.pretrained else DIRECTION_FP32,
        fp64=fp64,
        bf16_sync=compare(bf16_sync, beginning),
        bf16_thundersync=compare(bf16_ours, beginning),
        bf16_gaps=compare(bf16_ours, bf16_sync).gaps,
        bf16_others={
            name: relative_error(found.direction_P, reference.direction_P) for name, found in bf16_others.items()
        },
        exact={order: result.hashes == exact_sync.hashes for order, result in exact.items()},
        exact_others={name: sync == streamed for name, (sync, streamed) in exact_others.items()},
        exact_underflow=exact_sync.underflow,
        exact_cost=started.exact_cost.result(),
        exact_memory=exact_sync.sums_bytes / ours.sums_bytes,
        ranks=ranks,
        ranks_exact=all(result.hashes == exact_sync.hashes for result in exact_ranks),
        sample=_sample(reference, ours, bf16_sync, bf16_ours),
    )


def start_replays(subject: Subject, workers: Workers) -> Futures:
    """Hands every replay of the subject to the workers; `check` takes them."""
    sync = Variant(schedule="sync", release=subject.releases[0])
    streamed = {release: Variant(schedule="thundersync", release=release) for release in subject.releases}
    default, others = streamed[subject.releases[0]], subject.releases[1:]
    exact = {r: replace(variant, exact_exponent=subject.exact_exponent) for r, variant in streamed.items()}
    exact_default = exact[subject.releases[0]]
    generator = torch.Generator().manual_seed(0)

    batches = subject.recording.batches

    def job(variant: Variant, batches: Batches = batches, bits_only: bool = False) -> Job:
        return Job(recording=replace(subject.recording, batches=batches), variant=variant, bits_only=bits_only)

    def start(variant: Variant, batches: Batches = batches, bits_only: bool = False) -> Future:
        return workers.submit(job(variant, batches, bits_only))

    def sums(variant: Variant) -> Variant:
        return replace(variant, schedule="sync", reduction="sums")

    first, some = batches[:1], _bf16_batches(batches)
    return Futures(
        sync=start(sync),
        fp32={release: start(variant) for release, variant in streamed.items()},
        ranks=workers.submit_ranks(job(default)),
        fp64_sync=start(replace(sync, precision="fp64"), first),
        fp64={release: start(replace(variant, precision="fp64"), first) for release, variant in streamed.items()},
        bf16_sync=start(replace(sync, precision="bf16"), some),
        bf16=start(replace(default, precision="bf16"), some),
        bf16_others={r: start(replace(streamed[r], precision="bf16"), first) for r in others},
        exact_sync=start(sums(exact_default), bits_only=True),
        exact={
            f"random order {i + 1}": start(exact_default, reordered(batches, generator), bits_only=True)
            for i in range(SHUFFLES)
        },
        exact_others={
            r: (
                start(sums(exact[r]), first, bits_only=True),
                start(exact[r], reordered(first, generator), bits_only=True),
            )
            for r in others
        },
        exact_ranks=workers.submit_ranks(job(exact_default, bits_only=True)),
        exact_cost=workers.submit_ratio(job(exact_default, first), default, 1 if subject.pretrained else COST_ROUNDS),
    )


def replayed_updates(subject: Subject) -> int:
    """Updates of all replays of `check`, for a progress bar."""
    long = 1 + len(subject.releases) + 1 + 1 + SHUFFLES + 1
    batches, others = subject.recording.batches, len(subject.releases) - 1
    return long * len(batches) + 1 + len(subject.releases) + 2 * len(_bf16_batches(batches)) + 3 * others


def _bf16_batches(batches: Batches) -> Batches:
    return batches if native_bf16() else batches[:EMULATED_BF16_BATCHES]


def _sample(*replays: Replay, coordinates: int = 2000) -> dict[str, list[float]]:
    """The same random coordinates of four first directions."""
    names = ("sync_fp32", "thundersync_fp32", "sync_bf16", "thundersync_bf16")
    size = len(replays[0].direction_P)
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(size, (min(coordinates, size),), generator=generator)
    return {name: r.direction_P[chosen].tolist() for name, r in zip(names, replays, strict=True)}
