"""Why settings that the market chose are what they are, in a clause each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from marketplace.auction.bidding.deadlines import DEADLINE
from marketplace.auction.bidding.terms import AUTO_SAMPLES, PACK_TOKENS_AUTO, RANK_AUTO
from workers.protocol.job_spec import AdapterSpec, TrainingSpec
from workers.protocol.wire import to_json

#: What stands as it is unless the owner says otherwise needs no reason.
_STANDARD = "the usual value"


def explain_choices(
    resolved: Iterable[str],
    *,
    adapter: AdapterSpec,
    training: TrainingSpec,
    rows: int,
    sequence_length_limit: int,
) -> dict[str, str]:
    """A sentence for each setting that was ``auto`` or left out.

    Parameters
    ----------
    resolved
        Names such as ``training.batch_size``.
    rows
        Of the data set.
    sequence_length_limit
        Of the zone.
    """
    reasons = _list_reasons(
        rows=rows,
        is_usual_rank=adapter.rank == RANK_AUTO,
        is_cut=training.sequence_length >= sequence_length_limit,
    )
    choices: dict[str, str] = {}
    for name in resolved:
        if name == DEADLINE:
            choices[name] = "The latest on sale, which is sooner than what was asked for."
        group, _, member = name.partition(".")
        spec = adapter if group == "adapter" else training
        if hasattr(spec, member):
            value = _show(getattr(spec, member))
            choices[name] = f"{value}: {reasons.get(name, _STANDARD)}."
    return choices


def _list_reasons(*, rows: int, is_usual_rank: bool, is_cut: bool) -> dict[str, str]:
    return {
        "adapter.rank": (
            "enough for most data"
            if is_usual_rank
            else "the largest that the zone's nodes have room for"
        ),
        "adapter.alpha": "twice the rank",
        "adapter.dropout": (
            "with fewer than 1,000 rows it helps against learning them by heart"
            if rows < 1000
            else "1,000 rows and more do without"
        ),
        "training.epochs": f"about {AUTO_SAMPLES:,} rows are seen in all, each 2 to 10 times",
        "training.batch_size": (
            f"near a thirtieth of {rows:,} rows, 4 to 32, and no more than one pass of a GPU holds "
            f"({PACK_TOKENS_AUTO:,} tokens); memory does not depend on it"
        ),
        "training.learning_rate": (
            "scaled with the root of the batch, and of how narrow the model is"
        ),
        "training.sequence_length": (
            "the longest that this zone trains; longer rows are cut there"
            if is_cut
            else "the longest row, rounded up, so that none is cut"
        ),
    }


def _show(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(to_json(value))
