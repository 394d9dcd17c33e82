"""Tokens of stored data sets, by the tokenizers of zones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from django.db import IntegrityError, transaction

from marketplace.common.bounded_cache import remember
from marketplace.common.errors import UserError
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import find_zone_tokenizer
from marketplace.fleet.text_encoder import load_text_encoder
from marketplace.jobs.dataset_reader import Reading, read_dataset
from marketplace.jobs.models import Dataset, DatasetTokens
from marketplace.jobs.repairing import open_repaired

#: Counts remembered; a crowd of bids asks for the same few.
_KEPT = 4096
_known: dict[tuple[str, str, str], DatasetTokens] = {}


def find_dataset_tokens(*, dataset: Dataset, zone: Zone) -> DatasetTokens | None:
    """The count of a data set by a tokenizer that the zone shares; ``None`` before it was made.

    Its stretches are read when they are asked for.
    """
    tokenizer = _name_tokenizer(zone)
    found = _known.get((dataset.pk, *tokenizer))
    if found is None:
        counts = DatasetTokens.objects.filter(dataset=dataset).select_related("zone")
        same = [one for one in counts.defer("runs") if _name_tokenizer(one.zone) == tokenizer]
        if not same:
            return None
        found = remember(_known, (dataset.pk, *tokenizer), same[0], most=_KEPT)
    return found


def _name_tokenizer(zone: Zone) -> tuple[str, str]:
    return zone.tokenizer_source or zone.base_model_source, zone.base_model_revision or ""


def is_dataset_counted(*, dataset: Dataset, zone: Zone) -> bool:
    """Whether ``ensure_dataset_tokens`` need not read the file."""
    return find_dataset_tokens(dataset=dataset, zone=zone) is not None


def ensure_dataset_tokens(*, dataset: Dataset, zone: Zone) -> DatasetTokens:
    """Tokens of a data set by a zone's tokenizer and chat template; counted once.

    Raises
    ------
    UserError
        ``unfit_dataset``: the zone's chat template cannot write one of its conversations. Its owner
        was asked about faulty lines before there was this zone's template.
    """
    found = find_dataset_tokens(dataset=dataset, zone=zone)
    if found is not None:
        return found
    with _open_rows(dataset) as file:
        reading, runs = read_dataset(
            file,
            name=dataset.name,
            encoder=load_text_encoder(find_zone_tokenizer(zone)),
            skip_lines=frozenset(dataset.faulty_lines),
        )
    if reading.fatal is not None or reading.errors:
        first = reading.errors[0] if reading.errors else None
        reason = f"Line {first['line']:,}: {first['message']}" if first else reading.fatal
        raise UserError("unfit_dataset", str(reason), param="dataset_id")
    try:
        with transaction.atomic():
            return store_dataset_tokens(
                dataset=dataset, zone=zone, reading=reading, runs=runs.to_bytes()
            )
    except IntegrityError:
        return DatasetTokens.objects.get(dataset=dataset, zone=zone)


@contextmanager
def _open_rows(dataset: Dataset) -> Iterator[IO[bytes]]:
    """The file that a data set is counted from: its own, or its rows repaired."""
    with dataset.file.open("rb") as file:
        if not dataset.needs_preparation:
            yield file
            return
        with open_repaired(file, roles=dataset.roles) as (path, _), path.open("rb") as repaired:
            yield repaired


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
