"""The terms of a job, as the market takes them.

Written by ``manage.py settings_write`` from the market's own definitions; not edited by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

Settings = Mapping[str, Any]


class JobTerms(TypedDict, total=False):
    """What a bid and a quote may say."""

    #: rank, alpha, dropout, target_modules, or 'auto'.
    adapter: Settings
    #: epochs, batch_size, learning_rate, sequence_length, early_stopping and so on, or
    #: 'auto'.
    training: Settings
    #: Only nodes of providers that the operator has verified. Without it, as your
    #: organisation has it. It leaves fewer plans to choose from; slots cost the same.
    verified_only: bool | None
    #: What to begin with: 'ft:' and the id of a job of yours whose adapter is to be
    #: continued, or, for one job, the model of a quote's warm start. Without it, the zone's
    #: base model.
    model: str
    #: Have a vendor prepare the data first: kinds (who may see them: automatic, human,
    #: outside), drop_duplicates, mask_personal_data, languages, validation_share, skills,
    #: instructions, review_s (seconds to refuse a delivery of people or of an outside vendor;
    #: with 0 the rule accepts it). {} takes the defaults; null trains on the data as they
    #: are.
    preparation: Settings | None
    #: Up to 16 pairs of texts of your own, shown with the bid and its job.
    metadata: Mapping[str, str] | None
