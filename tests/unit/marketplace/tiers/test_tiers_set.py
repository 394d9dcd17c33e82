"""``manage.py tiers_set``."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from marketplace.fleet.models import Zone
from marketplace.tiers.models import ZoneTiers
from tests import builders, market_builders
from tests.unit.marketplace.tiers.backends import MemoryBackend

pytestmark = pytest.mark.django_db


def tiers_set(*arguments: str) -> str:
    out = StringIO()
    call_command("tiers_set", *arguments, stdout=out)
    return out.getvalue().strip()


def test_the_operator_switches_the_tiers_of_a_zone_on_and_off(
    zone: Zone, backend: MemoryBackend
) -> None:
    house = market_builders.provider().organisation.name
    terms = (zone.name, "--provider", house, "--backend", "memory")
    assert tiers_set(*terms, "--serverless", "3", "--serverful", "2") == (
        f"Tiers of zone {zone.name}: on."
    )
    made = ZoneTiers.objects.get()
    assert (made.serverless_cap, made.serverful_cap, made.is_on) == (3, 2, True)
    assert tiers_set(*terms, "--off") == f"Tiers of zone {zone.name}: off."
    made.refresh_from_db()
    assert not made.is_on


@pytest.mark.parametrize(
    ("zone_name", "provider", "more", "message"),
    [
        ("nowhere", None, [], "There is no zone 'nowhere'"),
        (None, "Nobody", [], "Not exactly one provider is named 'Nobody'"),
        (None, None, ["--backend", "memory", "--serverful", "-1"], "0 or more"),
        (None, None, ["--backend", "moon"], "There is no backend 'moon'; choose memory."),
    ],
)
def test_mistakes_are_answered_with_a_sentence(
    zone: Zone,
    backend: MemoryBackend,
    zone_name: str | None,
    provider: str | None,
    more: list[str],
    message: str,
) -> None:
    house = market_builders.provider().organisation.name
    with pytest.raises(CommandError, match=message):
        tiers_set(zone_name or zone.name, "--provider", provider or house, *more)
    assert not ZoneTiers.objects.exists()


def test_without_a_provider_the_house_lists_its_machines_itself(
    zone: Zone, backend: MemoryBackend
) -> None:
    with pytest.raises(CommandError, match="Make an operator first, or name a provider"):
        tiers_set(zone.name, "--backend", "memory")
    builders.operator()
    for _ in range(2):
        tiers_set(zone.name, "--backend", "memory", "--probe-s", "5", "--delay-usd-per-h", "0")
    made = ZoneTiers.objects.get()
    assert made.provider.organisation.name == "House machines"
    assert made.provider.organisation.is_provider
    assert (made.probe_s, made.delay_usd_per_h, made.idle_s) == (5.0, 0.0, 60.0)
    with pytest.raises(CommandError, match="restore_s must be 0 or more"):
        tiers_set(zone.name, "--backend", "memory", "--restore-s", "-1")
