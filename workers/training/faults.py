"""Who caused a failure: the owner's input, or the house."""

from __future__ import annotations


class TrainingFault(Exception):
    """A job cannot go on; the text is one sentence for its owner, with what to do."""


class UserFault(TrainingFault):
    """The job's data or settings are the cause: another node would fail as well."""


class SystemFault(TrainingFault):
    """The node is the cause: the same job may well run elsewhere."""
