"""Finding an owner's bids by words of their names, however many bids there are.

PostgreSQL's full-text search without a language: an index has each word of a name behind its
owner's id, and so the start of a word is found among the words of one owner. A bid's zone is one
more such word, so that one index finds bids by their base model too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from django.contrib.postgres.search import SearchQuery, SearchVector
from django.db.models import CharField, F, Func, TextField, Value
from django.db.models.functions import Concat, Replace

#: What parts words in a name; the database's own parser takes ``a.b`` and ``a/b`` for one.
_BETWEEN = "-_./\\:;,@+*#&|!?=()[]{}<>~'\"%$^`"


class PartedText(Func):
    """A text with a space in place of whatever parts words."""

    function = "translate"
    output_field = TextField()  # type: ignore[assignment]

    def __init__(self, text: F) -> None:
        super().__init__(text, Value(_BETWEEN), Value(" " * len(_BETWEEN)))


def build_vector(*, is_indexed: bool = True) -> SearchVector:
    """What the index is of: the owner's id before each word of the name, and before the zone's.

    Parameters
    ----------
    is_indexed
        False: the same words, by an expression that no index is of. The planner knows nothing of
        how many bids have a word, and takes the index wherever it can.
    """
    owner = Replace(F("organisation_id"), Value("_"), Value(""), output_field=CharField())
    zone = Replace(F("zone_id"), Value("_"), Value(""), output_field=CharField())
    behind_owner = Replace(
        Concat(Value(" "), PartedText(F("name")), output_field=TextField()),
        Value(" "),
        # Any expression is one; the stubs know of constants only.
        Concat(Value(" "), owner, output_field=TextField()),  # type: ignore[arg-type]
        output_field=TextField(),
    )
    text = Concat(behind_owner, Value(" "), owner, zone, output_field=TextField())
    if not is_indexed:
        text = Concat(text, Value(" "), output_field=TextField())
    return SearchVector(text, config="simple")


def build_query(words: str, *, organisation_id: str, zone_ids: Iterable[str]) -> SearchQuery | None:
    """An owner's bids whose names have a word that begins with each of these, or of some zones.

    ``None`` where there is nothing to look for.
    """
    owner = organisation_id.replace("_", "")
    parted = words.translate(str.maketrans(_BETWEEN, " " * len(_BETWEEN)))
    wanted = [word for word in re.split(r"\s+", parted) if word]
    options = [" & ".join(f"'{owner}{word}':*" for word in wanted)] if wanted else []
    options += [f"'{owner}{zone_id.replace('_', '')}'" for zone_id in zone_ids]
    if not options:
        return None
    return SearchQuery(
        " | ".join(f"({option})" for option in options), config="simple", search_type="raw"
    )
