"""K-medoids over cosine distance, for the bank's first layer (section 4.3.1)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
#: Rounds after which the clusters are taken as they are; some ten are usual.
MOST_ROUNDS = 100


def normalize_features(features: Floats) -> Floats:
    """Scale each row to length one, so that a product of rows is their cosine.

    Parameters
    ----------
    features : (C, D) array
        Activation features, one row per prompt.

    Returns
    -------
    (C, D) array

    Raises
    ------
    ValueError
        For a row that is not finite or has no length: it has no direction to compare.
    """
    features = np.asarray(features, dtype=np.float64)
    if features.ndim != 2 or not len(features):
        raise ValueError("features must be a table with a row per prompt")
    # Divided by the largest entry first, so that no square overflows.
    largest = np.abs(features).max(axis=1, keepdims=True)
    if not np.isfinite(largest).all() or not (largest > 0).all():
        raise ValueError("features must be finite and not all zero")
    scaled = features / largest
    return scaled / np.linalg.norm(scaled, axis=1, keepdims=True)


def cluster_by_medoids(features: Floats, clusters: int, seed: int) -> tuple[Ints, Ints]:
    """Divide prompts into clusters around medoids.

    Parameters
    ----------
    features : (C, D) array
        Rows of length one.
    clusters : int
        K, at least 1 and at most C.
    seed : int
        Chooses the first medoids; the same seed gives the same clusters.

    Returns
    -------
    medoids : (K,) array
        Index of each cluster's representative.
    cluster_of : (C,) array
        Cluster of each prompt; a medoid is in its own.

    Raises
    ------
    ValueError
        When there are not 1 to C clusters.

    Notes
    -----
    Medoids are drawn far apart (in proportion to the distance from those drawn before), then
    assignment and choice of medoids alternate until nothing changes; neither raises the sum
    of distances. The sum of cosine distances from row x to n rows of length one is
    ``n - x . (their sum)``, so no table of distances is needed.
    """
    count = len(features)
    if not 1 <= clusters <= count:
        raise ValueError(f"{count} prompts make 1 to {count} clusters, not {clusters}")
    medoids = _draw_apart(features, clusters, np.random.default_rng(seed))
    cluster_of = assign_clusters(features, medoids)
    for _ in range(MOST_ROUNDS):
        chosen = np.array(
            [find_medoid(features, np.flatnonzero(cluster_of == k)) for k in range(clusters)]
        )
        if (chosen == medoids).all():
            break
        medoids = chosen
        cluster_of = assign_clusters(features, medoids)
    return medoids, cluster_of


def assign_clusters(features: Floats, medoids: Ints) -> Ints:
    """Give each row to the nearest medoid, the first among equals, and each medoid to itself."""
    cluster_of = np.argmax(features @ features[medoids].T, axis=1).astype(np.int64)
    cluster_of[medoids] = np.arange(len(medoids))
    return cluster_of


def find_medoid(features: Floats, members: Ints) -> int:
    """Find the member with the least sum of distances to the others."""
    rows = features[members]
    return int(members[np.argmax(rows @ rows.sum(axis=0))])


def _draw_apart(features: Floats, clusters: int, rng: np.random.Generator) -> Ints:
    chosen = [int(rng.integers(len(features)))]
    distance = 1.0 - features @ features[chosen[0]]
    for _ in range(clusters - 1):
        distance[chosen] = 0.0
        weights = np.maximum(distance, 0.0)
        if weights.sum() <= 0.0:
            # Only copies are left.
            weights = np.ones(len(features))
            weights[chosen] = 0.0
        chosen.append(int(rng.choice(len(features), p=weights / weights.sum())))
        distance = np.minimum(distance, 1.0 - features @ features[chosen[-1]])
    return np.array(chosen, dtype=np.int64)
