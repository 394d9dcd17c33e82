"""What an owner may ask of a preparation, with ranges."""

from __future__ import annotations

from dataclasses import dataclass, field

from workers.preparation.languages import KNOWN_LANGUAGES
from workers.preparation.personal_data import KNOWN_REGIONS, Masker
from workers.preparation.roles import KNOWN_ROLES


class PreparationSettingsError(ValueError):
    """A setting is out of range; the message says what to write instead."""


@dataclass(frozen=True, slots=True)
class PreparationSettings:
    """Which steps run, and how strictly.

    Raises
    ------
    PreparationSettingsError
        When a value is out of its range.
    """

    #: Rewrite questions and answers of any shape as chat messages.
    to_chat: bool = True
    #: ``ColumnRole`` by the name of a column, in lower case: what the owner says it holds.
    roles: dict[str, str] = field(default_factory=dict[str, str])
    #: Leave out rows that say the same as an earlier one.
    drop_duplicates: bool = True
    #: Jaccard similarity of word triples from which two rows are near duplicates.
    near_duplicate_similarity: float = 0.85
    #: Replace personal data by placeholders such as ``[EMAIL_1]``.
    mask_personal_data: bool = False
    #: ISO 3166 codes whose phone numbers are recognised without a country prefix; empty: all.
    phone_regions: tuple[str, ...] = ()
    #: ISO 639-1 codes of the languages to keep; empty keeps all.
    languages: tuple[str, ...] = ()
    #: Characters of text in a row, at least and at most.
    min_chars: int = 1
    max_chars: int = 1_000_000
    #: Share of rows set aside for validation; 0 sets none aside.
    validation_share: float = 0.0
    #: Chooses the held-out rows.
    seed: int = 0

    def __post_init__(self) -> None:
        for column, role in self.roles.items():
            if role not in KNOWN_ROLES:
                raise PreparationSettingsError(
                    f"Role {role!r} of column {column!r} is not known. Use one of: "
                    f"{', '.join(sorted(KNOWN_ROLES))}."
                )
        if not 0.5 <= self.near_duplicate_similarity <= 1:
            raise PreparationSettingsError("near_duplicate_similarity must be between 0.5 and 1.")
        if not 0 <= self.validation_share <= 0.5:
            raise PreparationSettingsError("validation_share must be between 0 and 0.5.")
        if not 1 <= self.min_chars <= self.max_chars:
            raise PreparationSettingsError("min_chars must be at least 1 and at most max_chars.")
        for language in self.languages:
            if language not in KNOWN_LANGUAGES:
                raise PreparationSettingsError(
                    f"Language {language!r} is not known. Use ISO 639-1 codes such as en or de."
                )
        for region in self.phone_regions:
            if region not in KNOWN_REGIONS:
                raise PreparationSettingsError(
                    f"Region {region!r} is not known. Use ISO 3166 codes such as US or DE."
                )

    def build_masker(self) -> Masker | None:
        """Build what masks one row; ``None`` where nothing is masked."""
        return Masker(self.phone_regions) if self.mask_personal_data else None
