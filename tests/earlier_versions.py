"""Zones whose logs began under what sold before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from marketplace.auction.book import engine_cache as books
from marketplace.fleet.models import Zone
from scheduler.auction import ZoneRules
from scheduler.experiments.auction.max_form.policies import max_form_rules


@contextmanager
def selling_under_residual() -> Iterator[None]:
    """Zones begin and sell under ``residual``, as before; then every process restarts."""
    now = books.with_zone_settings

    def under_residual(rules: ZoneRules, *, zone: Zone) -> ZoneRules:
        return replace(now(rules, zone=zone), policy="residual", retired=max_form_rules())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(books, "with_zone_settings", under_residual)
        yield
    forget_engines()


def forget_engines() -> None:
    """Every process restarts: the engines it had are gone."""
    books._lane_books.clear()
    books._read_books.clear()
