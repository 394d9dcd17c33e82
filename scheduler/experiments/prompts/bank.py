"""The prompt bank: candidates and the two layers over them (section 4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.experiments.prompts.clustering import (
    Floats,
    Ints,
    cluster_by_medoids,
    normalize_features,
)

#: The paper's threshold of replacement and number of clusters (sections 4.3.3 and 5.2).
CAPACITY = 3000
CLUSTERS = 50


@dataclass(frozen=True, slots=True, eq=False)
class PromptBank:
    """Initial prompts, grouped by their activation features.

    Candidates are named by their place: ``ids[i]`` has the features ``features[i]``. Build it
    with :func:`build_bank`.
    """

    ids: tuple[str, ...]
    #: (C, D), rows of length one.
    features: Floats
    #: (K,): the first layer, a representative prompt per cluster.
    medoids: Ints
    #: (C,): cluster of each prompt.
    cluster_of: Ints
    #: Most prompts it holds.
    capacity: int

    def __len__(self) -> int:
        return len(self.ids)

    def members_of(self, cluster: int) -> Ints:
        """The second layer: all prompts of one cluster."""
        return np.flatnonzero(self.cluster_of == cluster)


def build_bank(
    ids: Sequence[str],
    features: Floats,
    *,
    clusters: int = CLUSTERS,
    capacity: int = CAPACITY,
    seed: int = 0,
) -> PromptBank:
    """Cluster prompts into a bank.

    Parameters
    ----------
    ids : sequence of str
        One per prompt, all different.
    features : (C, D) array
        Activation features of each prompt on the bank's base model.
    clusters : int
        K; the least number of scores, 2 sqrt(C), takes sqrt(C) clusters of equal size.
    capacity : int
        Prompts above which an insertion replaces one.
    seed : int
        Of the clustering.

    Raises
    ------
    ValueError
        For ids that repeat, features that do not match them or are not finite, more prompts
        than the capacity, or a number of clusters that cannot be.
    """
    if len(set(ids)) != len(ids):
        raise ValueError("ids of prompts must differ")
    if len(features) != len(ids):
        raise ValueError(f"{len(ids)} prompts with {len(features)} rows of features")
    if len(ids) > capacity:
        raise ValueError(f"{len(ids)} prompts are more than the bank's {capacity}")
    unit = normalize_features(features)
    medoids, cluster_of = cluster_by_medoids(unit, clusters, seed)
    return PromptBank(tuple(ids), unit, medoids, cluster_of, capacity)
