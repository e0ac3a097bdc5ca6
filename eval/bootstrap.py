"""Cluster bootstrap as weights: resampling tasks is a (replicates x tasks) matrix, so any score is a product with it.

Attempts of one task are never resampled: the task (or its repository) is the unit that is drawn.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np


def weights(
    clusters: Sequence[Hashable], *, replicates: int, seed: int, strata: Sequence[Hashable] | None = None
) -> np.ndarray:
    """float64 [replicates, units], rows sum to one: what each unit weighs in a resampled mean.

    Whole clusters are drawn with replacement; with `strata`, each stratum keeps its share of the units and draws among
    its own clusters. A cluster that lies in two strata is refused (ValueError). Give each unit its own cluster for the
    plain bootstrap.
    """
    strata = [0] * len(clusters) if strata is None else list(strata)
    home: dict[Hashable, Hashable] = {}
    for cluster, stratum in zip(clusters, strata, strict=True):
        if home.setdefault(cluster, stratum) != stratum:
            raise ValueError(f"cluster {cluster!r} lies in the strata {home[cluster]!r} and {stratum!r}")
    random = np.random.default_rng(seed)
    result = np.zeros((replicates, len(clusters)))
    for stratum in dict.fromkeys(strata):
        names = [name for name in home if home[name] == stratum]
        draws = random.multinomial(len(names), np.full(len(names), 1 / len(names)), size=replicates)
        column = {name: i for i, name in enumerate(names)}
        units = [i for i, s in enumerate(strata) if s == stratum]
        times = draws[:, [column[clusters[i]] for i in units]].astype(float)
        result[:, units] = times / times.sum(axis=1, keepdims=True) * (len(units) / len(clusters))
    return result


def interval(replicates: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Percentile interval. Infinite replicates (a target never reached) stay infinite at the end that they reach."""
    tail = (1 - level) / 2
    ordered = np.sort(np.asarray(replicates, dtype=float))
    low, high = (int(round(q * (len(ordered) - 1))) for q in (tail, 1 - tail))
    return float(ordered[low]), float(ordered[high])
