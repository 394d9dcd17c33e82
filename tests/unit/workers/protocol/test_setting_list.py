"""The list of settings and the names that they are given by."""

from __future__ import annotations

from dataclasses import fields

import pytest

from workers.protocol.job_settings import SettingError
from workers.protocol.job_spec import AdapterSpec, TrainingSpec
from workers.protocol.setting_list import ALIASES, list_settings, name_settings


@pytest.mark.parametrize(("group", "spec"), [("adapter", AdapterSpec), ("training", TrainingSpec)])
def test_every_setting_is_listed_once_with_its_words(group, spec):
    listed = list_settings(group)
    assert [each.name for each in listed] == [field.name for field in fields(spec)]
    assert all(each.words.endswith(".") for each in listed)
    numbers = [each for each in listed if each.kind in ("integer", "number")]
    assert [each.name for each in numbers if each.allowed is None] == []


def test_names_of_other_trainers_mean_the_markets_own():
    asked = {"r": 8, "lora_alpha": 16, "lora_dropout": 0.1, "kind": "lora"}
    named = {"rank": 8, "alpha": 16, "dropout": 0.1, "kind": "lora"}
    assert name_settings("adapter", asked) == named
    asked = {"lr": 1e-4, "num_epochs": 2, "max_seq_length": 64}
    named = {"learning_rate": 1e-4, "epochs": 2, "sequence_length": 64}
    assert name_settings("training", asked) == named


@pytest.mark.parametrize("group", ALIASES)
def test_an_alias_means_a_setting_of_its_group(group):
    names = {each.name for each in list_settings(group)}
    assert set(ALIASES[group].values()) <= names
    assert not set(ALIASES[group]) & names


def test_a_setting_under_two_names_is_refused():
    with pytest.raises(SettingError) as refused:
        name_settings("adapter", {"rank": 8, "r": 8})
    assert refused.value.setting == "adapter.rank"
    assert refused.value.sentence == "adapter.rank is given under two names; give it once"


@pytest.mark.parametrize(
    ("group", "given", "nearest"),
    [
        ("adapter", "rnak", "rank"),
        ("adapter", "lora_aplha", "alpha"),
        ("training", "learning-rate", "learning_rate"),
        ("training", "max_sequence_len", "sequence_length"),
        ("training", "num_epoch", "epochs"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest(group, given, nearest):
    with pytest.raises(SettingError) as refused:
        name_settings(group, {given: 1})
    names = ", ".join(each.name for each in list_settings(group))
    assert refused.value.setting == f"{group}.{given}"
    assert refused.value.sentence == (
        f"There is no setting {group}.{given}; the nearest is {nearest}; there are {names}"
    )


def test_a_name_that_is_like_no_setting_is_refused_without_a_guess():
    with pytest.raises(SettingError) as refused:
        name_settings("training", {"zzz": 1})
    assert "nearest" not in refused.value.sentence
