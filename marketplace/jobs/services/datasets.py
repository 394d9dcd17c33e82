"""Tokens of stored data sets, by the tokenizers of zones."""

from __future__ import annotations

from django.db import IntegrityError, transaction

from marketplace.fleet import base_models
from marketplace.fleet.models import Zone
from marketplace.jobs.dataset_reader import read_dataset
from marketplace.jobs.models import Dataset, DatasetTokens


def is_dataset_counted(*, dataset: Dataset, zone: Zone) -> bool:
    """Whether ``ensure_dataset_tokens`` need not read the file."""
    if dataset.zone_id is not None and _shares_tokenizer(dataset.zone, zone):
        return True
    return DatasetTokens.objects.filter(dataset=dataset, zone=zone).exists()


def ensure_dataset_tokens(*, dataset: Dataset, zone: Zone) -> tuple[int, int]:
    """Tokens of a data set and of its longest row, by a zone's tokenizer; counted once."""
    if dataset.zone_id is not None and _shares_tokenizer(dataset.zone, zone):
        return dataset.tokens, dataset.longest_row_tokens
    counted = DatasetTokens.objects.filter(dataset=dataset, zone=zone).first()
    if counted is None:
        with dataset.file.open("rb") as file:
            reading = read_dataset(
                file,
                name=dataset.name,
                tokenizer=_load_tokenizer(zone),
                skip_lines=frozenset(dataset.faulty_lines),
            )
        counted = DatasetTokens(
            dataset=dataset,
            zone=zone,
            tokens=reading.tokens,
            longest_row_tokens=reading.longest_row_tokens,
        )
        try:
            with transaction.atomic():
                counted.save(force_insert=True)
        except IntegrityError:
            counted = DatasetTokens.objects.get(dataset=dataset, zone=zone)
    return counted.tokens, counted.longest_row_tokens


def _load_tokenizer(zone: Zone):
    return base_models.tokenizer(
        zone.tokenizer_source or zone.base_model_source, zone.base_model_revision or None
    )


def _shares_tokenizer(one: Zone | None, other: Zone) -> bool:
    return one is not None and (
        one.pk == other.pk
        or (one.tokenizer_source or one.base_model_source, one.base_model_revision)
        == (other.tokenizer_source or other.base_model_source, other.base_model_revision)
    )
