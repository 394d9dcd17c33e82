"""What its owner chose about an upload: lines that are no rows, rows that are long, columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from marketplace.common.errors import UserError
from marketplace.jobs.importing import ROLES
from marketplace.jobs.models import Upload
from workers.protocol.wire import from_json

ASK, LEAVE_OUT, CUT, REFUSE = "ask", "leave_out", "cut", "refuse"
FAULTY_CHOICES = (ASK, LEAVE_OUT, REFUSE)
LONG_CHOICES = (ASK, CUT, LEAVE_OUT, REFUSE)


@dataclass(frozen=True, slots=True)
class UploadChoices:
    """What to do with lines that cannot be used as they are."""

    #: Lines that are no rows.
    faulty_lines: str = ASK
    #: Rows longer than the model takes.
    long_rows: str = ASK
    #: The file's column by the name that training knows.
    columns: dict[str, str] = field(default_factory=dict)
    #: What a key of JSON rows holds, one of ``ROLES``, by its name in lower case.
    roles: dict[str, str] = field(default_factory=dict)

    @property
    def asks(self) -> bool:
        """Whether a person looks on, who can be asked."""
        return ASK in (self.faulty_lines, self.long_rows)


def get_choices(upload: Upload) -> UploadChoices:
    return from_json(UploadChoices, upload.choices)


def merge_choices(upload: Upload, chosen: Mapping[str, Any]) -> UploadChoices:
    """The upload's choices with some of them made."""
    return replace(get_choices(upload), **chosen)


def check_choices(choices: UploadChoices) -> None:
    """Refuse words that mean no choice.

    Raises
    ------
    UserError
        ``invalid_choice``.
    """
    for name, value, allowed in (
        ("faulty_lines", choices.faulty_lines, FAULTY_CHOICES),
        ("long_rows", choices.long_rows, LONG_CHOICES),
    ):
        if value not in allowed:
            words = ", ".join(choice for choice in allowed if choice != ASK)
            raise UserError("invalid_choice", f"{name} is one of {words}.", param=name)
    if not set(choices.roles.values()) <= set(ROLES):
        raise UserError(
            "invalid_choice", f"roles name for each key one of {', '.join(ROLES)}.", param="roles"
        )
