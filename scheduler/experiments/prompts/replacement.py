"""Insertion of a prompt into the bank, and replacement when it is full (section 4.3.3)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scheduler.experiments.prompts.bank import PromptBank
from scheduler.experiments.prompts.clustering import Floats, normalize_features


def insert_prompt(
    bank: PromptBank, prompt_id: str, feature: Floats
) -> tuple[PromptBank, str | None]:
    """Add a prompt to the cluster whose medoid is nearest.

    Parameters
    ----------
    bank : PromptBank
        Stays as it is.
    prompt_id : str
        Not yet in the bank.
    feature : (D,) array
        Activation features of the prompt.

    Returns
    -------
    bank : PromptBank
        With the prompt, if it was not itself the one replaced.
    removed : str or None
        The prompt that left a full bank.

    Raises
    ------
    ValueError
        For an id that is there, or features that are not finite, all zero, or of another
        length than the bank's.

    Notes
    -----
    The text removes the prompt of the cluster that is nearest to its representative. Taken by
    the letter that is the representative itself, at distance zero, and the first layer would
    lose its cluster. The medoid is exempt here. The newcomer is not: next to the medoid it
    adds nothing that the bank does not have. No score is computed and nothing is clustered
    again.
    """
    if prompt_id in bank.ids:
        raise ValueError(f"the prompt {prompt_id} is in the bank")
    unit = normalize_features(np.asarray(feature, dtype=np.float64)[None, :])
    if unit.shape[1] != bank.features.shape[1]:
        raise ValueError(f"{unit.shape[1]} features, the bank has {bank.features.shape[1]}")
    cluster = int(np.argmax(bank.features[bank.medoids] @ unit[0]))
    grown = replace(
        bank,
        ids=(*bank.ids, prompt_id),
        features=np.concatenate([bank.features, unit]),
        cluster_of=np.append(bank.cluster_of, cluster),
    )
    if len(grown) <= bank.capacity:
        return grown, None
    place = _find_replaced(grown, cluster)
    return _without(grown, place), grown.ids[place]


def _find_replaced(bank: PromptBank, cluster: int) -> int:
    """The member nearest to the medoid, the medoid itself exempt; the oldest among equals."""
    medoid = bank.medoids[cluster]
    members = bank.members_of(cluster)
    others = members[members != medoid]
    return int(others[np.argmax(bank.features[others] @ bank.features[medoid])])


def _without(bank: PromptBank, place: int) -> PromptBank:
    return replace(
        bank,
        ids=(*bank.ids[:place], *bank.ids[place + 1 :]),
        features=np.delete(bank.features, place, axis=0),
        cluster_of=np.delete(bank.cluster_of, place),
        medoids=np.where(bank.medoids > place, bank.medoids - 1, bank.medoids),
    )
