"""Tokens of stored data sets, by the tokenizers of zones."""

from __future__ import annotations

from django.db import IntegrityError, transaction

from marketplace.common.errors import UserError
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import find_zone_tokenizer
from marketplace.fleet.text_encoder import load_text_encoder
from marketplace.jobs.dataset_reader import Reading, read_dataset
from marketplace.jobs.models import Dataset, DatasetTokens
from marketplace.jobs.work import find_dataset_tokens


def is_dataset_counted(*, dataset: Dataset, zone: Zone) -> bool:
    """Whether ``ensure_dataset_tokens`` need not read the file."""
    return find_dataset_tokens(dataset=dataset, zone=zone) is not None


def ensure_dataset_tokens(*, dataset: Dataset, zone: Zone) -> DatasetTokens:
    """Tokens of a data set by a zone's tokenizer and chat template; counted once.

    Raises
    ------
    UserError
        ``unfit_dataset``: the zone's chat template cannot lay its conversations out.
    """
    found = find_dataset_tokens(dataset=dataset, zone=zone)
    if found is not None:
        return found
    with dataset.file.open("rb") as file:
        reading, runs = read_dataset(
            file,
            name=dataset.name,
            encoder=load_text_encoder(find_zone_tokenizer(zone)),
            skip_lines=frozenset(dataset.faulty_lines),
        )
    if reading.fatal is not None:
        raise UserError("unfit_dataset", reading.fatal, param="dataset_id")
    try:
        with transaction.atomic():
            return store_dataset_tokens(
                dataset=dataset, zone=zone, reading=reading, runs=runs.to_bytes()
            )
    except IntegrityError:
        return DatasetTokens.objects.get(dataset=dataset, zone=zone)


def store_dataset_tokens(
    *, dataset: Dataset, zone: Zone, reading: Reading, runs: bytes
) -> DatasetTokens:
    """Store what was counted; ``runs`` are ``TokenRuns``, packed."""
    return DatasetTokens.objects.create(
        dataset=dataset,
        zone=zone,
        tokens=reading.tokens,
        longest_row_tokens=reading.longest_row_tokens,
        runs=runs,
    )
