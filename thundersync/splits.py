"""The SHA-256 group rule of Appendix C.2: which repositories and source families form the development set.

The rule sees identifiers only, so a split depends neither on a model's performance nor on who computes it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

_MIRROR = re.compile(r"swesmith/(?P<owner>.+?)__(?P<name>.+)\.[0-9a-f]{8}")
_EVOLUTION = re.compile(r"[-_]+evol(?:ved|ution)?(?:[-_]?v?\d+)?$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Normalised group identifiers, each side in the order of their digests."""

    training: tuple[str, ...]
    development: tuple[str, ...]


def normalised_group(group: str) -> str:
    """Strips, folds case, and maps SWE-smith's mirror `swesmith/OWNER__REPO.COMMIT8` back to `owner/repo`."""
    name = group.strip().casefold()
    mirror = _MIRROR.fullmatch(name)
    return f"{mirror['owner']}/{mirror['name']}" if mirror else name


def split_groups(groups: Iterable[str], fraction: float = 0.05) -> Split:
    """The first ceil(fraction * n) of the n distinct groups, ordered by SHA-256, are the development set.

    `fraction` is taken as the decimal it is written as, so that 0.05 of 131 groups is 7 and of 3,474 is 174.
    Raises ValueError for a fraction outside [0, 1] or an empty identifier.
    """
    share = Fraction(str(fraction))
    if not 0 <= share <= 1:
        raise ValueError(f"fraction must lie between 0 and 1, not {fraction}")
    distinct = {normalised_group(group) for group in groups}
    if "" in distinct:
        raise ValueError("a group identifier is empty: every task needs a repository or source family")
    ordered = sorted(distinct, key=lambda group: hashlib.sha256(group.encode()).hexdigest())
    development = -(-share.numerator * len(ordered) // share.denominator)
    return Split(training=tuple(ordered[development:]), development=tuple(ordered[:development]))


def source_family(task_id: str) -> str:
    """The group of a SETA task: its identifier without the evolution suffix.

    The suffix is `evol`, `evolved` or `evolution`, set off by `-` or `_`, with an optional number at the very end:
    `sort-logs-evol-2`, `sort-logs_evolved` and `sort-logs` are one family.
    """
    return _EVOLUTION.sub("", task_id.strip())


def list_digest(ids: Iterable[str]) -> str:
    """SHA-256 of the sorted, newline-joined identifiers: the name of a task list in a manifest."""
    return hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()
