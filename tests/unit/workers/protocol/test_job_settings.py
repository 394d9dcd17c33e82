"""Every number of a job's settings has two ends, for a node and, narrower, at a sale."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from workers.protocol.job_settings import (
    LORA_RANGES,
    TRAINING_RANGES,
    NumberRange,
    SettingError,
    check_adapter,
    check_training,
)
from workers.protocol.job_spec import AdapterSpec, TrainingSpec


def is_training_accepted(name: str, value: float, *, on_sale: bool) -> bool:
    try:
        check_training(replace(TrainingSpec(), **{name: value}), on_sale=on_sale)
    except SettingError:
        return False
    return True


def is_adapter_accepted(name: str, value: float, *, on_sale: bool) -> bool:
    try:
        check_adapter(replace(AdapterSpec(), **{name: value}), on_sale=on_sale)
    except SettingError:
        return False
    return True


@pytest.mark.parametrize("on_sale", [False, True])
@pytest.mark.parametrize(
    ("accepts", "name", "allowed"),
    [
        *((is_training_accepted, *item) for item in TRAINING_RANGES.items()),
        *((is_adapter_accepted, *item) for item in LORA_RANGES.items()),
    ],
)
def test_a_number_is_accepted_up_to_its_ends_and_refused_beyond(
    accepts, name: str, allowed: NumberRange, on_sale: bool
) -> None:
    low, high = allowed.get_ends(on_sale=on_sale)
    is_open = name in ("warmup_share", "dropout") or (name == "validation_share" and not on_sale)
    assert accepts(name, low, on_sale=on_sale)
    assert accepts(name, high, on_sale=on_sale) is not is_open
    assert not accepts(name, math.nextafter(low, -math.inf), on_sale=on_sale)
    assert not accepts(name, math.nextafter(high, math.inf), on_sale=on_sale)
