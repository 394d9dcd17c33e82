"""What vendors can do with data."""

from __future__ import annotations

from django.db import models


class Skill(models.TextChoices):
    """One kind of work on data, as owners ask for it and vendors list it."""

    FORMAT_REPAIR = "format_repair", "Repairs broken rows and rewrites them as chat messages"
    DEDUPLICATION = "deduplication", "Leaves out exact and near duplicates"
    MASKING = "masking", "Replaces e-mail addresses, phone numbers, cards and keys (not names)"
    LANGUAGE_FILTER = "language_filter", "Keeps chosen languages"
    LENGTH_FILTER = "length_filter", "Leaves out rows that are too short, too long or repetitive"
    SPLITTING = "splitting", "Sets validation rows aside that share no prompt with training rows"
    LABELLING = "labelling", "Labels or answers rows by your instructions"
    TRANSLATION = "translation", "Translates rows"


def describe_skills(skills: list[str]) -> list[str]:
    """Skills in words, in the order of the list above; those of earlier versions are left out."""
    return [skill.label for skill in Skill if skill.value in skills]
