"""Grade 3: whole Sync (`sums`) and ThunderSync runs publish the same policy at every update and differ in time only.

Equal hashes alone prove little: the conditions say when they prove something.
"""

from __future__ import annotations

from dataclasses import dataclass

from thundersync.records import RecordError, RunDirectory, TrajectoryRecord, UpdateRecord

LEAST_UPDATES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class EndToEnd:
    """Two runs of one seed, update by update."""

    updates: int
    """Updates that both runs have."""
    hashes_equal: int
    """Of these, updates that published the same policy hash."""
    hashes_distinct: int
    """Different policies among them: equal hashes must not come from a policy that stands still."""
    groups: int
    nonuniform_groups: int
    """Groups whose rewards differ, so that they move the policy."""
    orders_differ: int
    """Updates whose trajectories finished in another order in the two runs."""
    sources: int
    sources_before_close: int
    """ThunderSync's sources whose gradient started before their batch had closed."""

    @property
    def conditions(self) -> dict[str, bool]:
        """Condition -> whether it holds."""
        return {
            f"at least {LEAST_UPDATES} updates": self.updates >= LEAST_UPDATES,
            "the hash changes at every update": self.hashes_distinct == self.updates,
            "at least half the groups are non-uniform": 2 * self.nonuniform_groups >= self.groups,
            "arrival orders differ between the runs": self.orders_differ > 0,
            "at least half the sources started before their batch closed": 2 * self.sources_before_close
            >= self.sources,
        }

    @property
    def holds(self) -> bool:
        return self.hashes_equal == self.updates and all(self.conditions.values())


def compare_runs(sync: RunDirectory, thundersync: RunDirectory) -> EndToEnd:
    """From the records of a Sync `sums` run and a ThunderSync run of the same configuration and seed.

    Raises RecordError when they do not have the same updates.
    """
    updates = sync.read(UpdateRecord), thundersync.read(UpdateRecord)
    numbers = [[update.update for update in run] for run in updates]
    if numbers[0] != numbers[1]:
        raise RecordError(
            f"{sync.path} has {len(numbers[0])} updates and {thundersync.path} has {len(numbers[1])}, or other ones: "
            "only runs of the same updates can be compared"
        )
    pairs = list(zip(*updates, strict=True))
    orders = [_orders(sync), _orders(thundersync)]
    return EndToEnd(
        updates=len(pairs),
        hashes_equal=sum(a.policy_hash == b.policy_hash for a, b in pairs),
        hashes_distinct=len({a.policy_hash for a, _ in pairs}),
        groups=sum(len(a.groups) for a, _ in pairs),
        nonuniform_groups=sum(len(a.groups) - a.uniform_groups for a, _ in pairs),
        orders_differ=sum(orders[0].get(a.update) != orders[1].get(a.update) for a, _ in pairs),
        sources=sum(b.sources for _, b in pairs),
        sources_before_close=sum(b.sources_before_close for _, b in pairs),
    )


def _orders(run: RunDirectory) -> dict[int, list[str]]:
    """Update -> its trajectories in the order in which their rewards came."""
    orders: dict[int, list[str]] = {}
    for record in run.read(TrajectoryRecord):
        orders.setdefault(int(record.key.split("/")[0].removeprefix("update=")), []).append(record.key)
    return orders
