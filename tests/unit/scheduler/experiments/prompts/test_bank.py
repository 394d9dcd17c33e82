"""Clusters, the bank, insertion and replacement, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scheduler.experiments.prompts.bank import PromptBank, build_bank
from scheduler.experiments.prompts.clustering import cluster_by_medoids, normalize_features
from scheduler.experiments.prompts.replacement import insert_prompt


def turn(*degrees: float) -> np.ndarray:
    """Rows of length one at these angles."""
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def make_bank(capacity: int = 10) -> PromptBank:
    names = ("a0", "a1", "a2", "b0", "b1", "b2")
    return build_bank(names, turn(-8, 0, 9, 82, 90, 99), clusters=2, capacity=capacity, seed=3)


def cluster_names(bank: PromptBank) -> set[frozenset[str]]:
    return {
        frozenset(bank.ids[k] for k in bank.members_of(cluster))
        for cluster in range(len(bank.medoids))
    }


def test_similar_prompts_share_a_cluster_around_the_one_in_their_middle() -> None:
    bank = make_bank()
    assert cluster_names(bank) == {frozenset({"a0", "a1", "a2"}), frozenset({"b0", "b1", "b2"})}
    assert {bank.ids[k] for k in bank.medoids} == {"a1", "b1"}


def test_one_seed_gives_one_clustering() -> None:
    features = normalize_features(np.random.default_rng(1).standard_normal((60, 5)))
    one, other = (cluster_by_medoids(features, 7, seed=4) for _ in range(2))
    assert (one[0] == other[0]).all()
    assert (one[1] == other[1]).all()


def test_copies_of_one_prompt_make_clusters_none_of_which_is_empty() -> None:
    medoids, cluster_of = cluster_by_medoids(np.ones((5, 1)), 3, seed=0)
    assert len(set(medoids.tolist())) == 3
    assert set(cluster_of.tolist()) == {0, 1, 2}


def test_a_prompt_goes_to_the_cluster_of_the_nearest_medoid() -> None:
    grown, removed = insert_prompt(make_bank(), "new", turn(40)[0])
    assert removed is None
    assert frozenset({"a0", "a1", "a2", "new"}) in cluster_names(grown)
    assert len(make_bank()) == 6


def test_a_full_bank_gives_up_what_is_nearest_to_the_medoid_but_never_the_medoid() -> None:
    grown, removed = insert_prompt(make_bank(capacity=6), "new", turn(20)[0])
    assert removed == "a0"
    assert len(grown) == 6
    assert cluster_names(grown) == {
        frozenset({"a1", "a2", "new"}),
        frozenset({"b0", "b1", "b2"}),
    }
    assert {grown.ids[k] for k in grown.medoids} == {"a1", "b1"}
    assert np.allclose(grown.features[grown.ids.index("new")], turn(20)[0])


def test_a_newcomer_beside_the_medoid_is_the_one_that_leaves() -> None:
    bank = make_bank(capacity=6)
    grown, removed = insert_prompt(bank, "new", turn(1)[0])
    assert removed == "new"
    assert grown.ids == bank.ids
    assert (grown.cluster_of == bank.cluster_of).all()


def test_medoids_survive_any_number_of_insertions_into_a_full_bank() -> None:
    rng = np.random.default_rng(5)
    bank = make_bank(capacity=6)
    for k in range(200):
        bank, _ = insert_prompt(bank, f"new-{k}", rng.standard_normal(2))
        assert len(bank) == 6
        assert {bank.ids[place] for place in bank.medoids} == {"a1", "b1"}
        assert (bank.cluster_of[bank.medoids] == [0, 1]).all()


@pytest.mark.parametrize("poison", [(math.nan, 1.0), (math.inf, 1.0), (0.0, 0.0)])
def test_a_prompt_without_a_direction_is_refused(poison: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="finite and not all zero"):
        insert_prompt(make_bank(), "new", np.array(poison))
    with pytest.raises(ValueError, match="finite and not all zero"):
        build_bank(["x", "y"], np.array([poison, (1.0, 0.0)]), clusters=1)


def test_a_huge_norm_changes_nothing() -> None:
    grown, _ = insert_prompt(make_bank(), "new", 1e300 * turn(40)[0])
    assert np.allclose(grown.features[-1], turn(40)[0])


def test_what_is_no_bank_is_refused() -> None:
    with pytest.raises(ValueError, match="ids of prompts must differ"):
        build_bank(["x", "x"], turn(0, 9), clusters=1)
    with pytest.raises(ValueError, match="2 prompts with 3 rows"):
        build_bank(["x", "y"], turn(0, 9, 18), clusters=1)
    with pytest.raises(ValueError, match="more than the bank's 1"):
        build_bank(["x", "y"], turn(0, 9), clusters=1, capacity=1)
    with pytest.raises(ValueError, match="2 prompts make 1 to 2 clusters, not 3"):
        build_bank(["x", "y"], turn(0, 9), clusters=3)
    with pytest.raises(ValueError, match="a1 is in the bank"):
        insert_prompt(make_bank(), "a1", turn(0)[0])
    with pytest.raises(ValueError, match="3 features, the bank has 2"):
        insert_prompt(make_bank(), "new", np.ones(3))
