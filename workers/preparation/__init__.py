"""The automatic vendor's work: a messy data set in, a prepared one and a report out.

Runs on a CPU beside the market, without a model and without a network. Each step says what it
changed or dropped, line by line, and why:

1. ``reading``: bytes of JSONL, JSON lists, CSV or plain text to one object per row;
2. ``repair``: broken JSON, wrong keys and roles, broken characters, and the chat format;
3. ``filters``: length, repetition, language;
4. ``duplicates``: exact and near duplicates (MinHash, checked by exact Jaccard);
5. ``personal_data``: e-mail addresses, phones, cards, bank accounts, addresses, keys (not names);
6. ``splitting``: held-out rows that share no prompt with training rows.

``prepare_dataset`` runs them all; ``inspect_dataset`` only counts what they would find.
``list_rows`` shows each row with a proposal to people, and ``compare_datasets`` what a delivery did
to a data set.
"""

from __future__ import annotations

from workers.preparation.changes import Action, Change, Step
from workers.preparation.inspection import Inspection, inspect_dataset
from workers.preparation.plan import PreparationPlan
from workers.preparation.prepare import prepare_dataset
from workers.preparation.settings import PreparationSettings, PreparationSettingsError

__all__ = [
    "Action",
    "Change",
    "Inspection",
    "PreparationPlan",
    "PreparationSettings",
    "PreparationSettingsError",
    "Step",
    "inspect_dataset",
    "prepare_dataset",
]
