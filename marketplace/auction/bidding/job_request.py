"""What an owner asks to have trained, before any of it is checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from marketplace.accounts.models import Organisation
from marketplace.fleet.models import Zone
from marketplace.jobs.models import Dataset
from marketplace.vendors.wishes import parse_wish
from workers.protocol.job_terms import PreparationWish


@dataclass(frozen=True, slots=True, eq=False)
class JobRequest:
    """A job that a bid, a quote or an express request is about."""

    organisation: Organisation
    zone: Zone
    dataset: Dataset
    adapter: Mapping[str, Any]
    training: Mapping[str, Any]
    #: Whose rows are held out; ``None``: a share of the data set's own.
    validation: Dataset | None = None
    #: What a vendor is to do with the data first; ``None``: they are trained on as they are.
    preparation: Mapping[str, Any] | None = None
    #: What it begins with, such as ``ft:`` and one of the owner's jobs; empty: the base model.
    model: str = ""
    #: Nodes of verified providers only; ``None``: as the organisation has it.
    verified_only: bool | None = None

    def parse_wish(self) -> PreparationWish | None:
        """What is asked of a preparation.

        Raises
        ------
        UserError
            ``invalid_preparation``.
        """
        return None if self.preparation is None else parse_wish(self.preparation)
