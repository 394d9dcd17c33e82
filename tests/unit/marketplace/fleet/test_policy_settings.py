"""What the parameters of a zone's price policy may be."""

from __future__ import annotations

import pytest
from django.core.management import CommandError, call_command

from marketplace.common.errors import UserError
from marketplace.fleet.models import Zone, ZoneChange
from marketplace.fleet.policy_settings import (
    BID_PARAMETERS,
    PARAMETERS,
    POLICY_PARAMETERS,
    RATE_PARAMETERS,
    RULE_PARAMETERS,
)
from marketplace.fleet.services import set_policy_settings
from scheduler.auction import ZoneRules
from scheduler.auction.prices import Settings
from tests import market_builders as market
from tests.builders import NOW

pytestmark = pytest.mark.django_db


def test_settings_are_set_in_place_of_all_there_were():
    zone = market.zone()
    assert zone.settings == {}
    for settings in ({"growth": 0.2, "refusal_hints": False}, {"futures": 6}):
        set_policy_settings(zone=zone, settings=settings, now=NOW)
        zone.refresh_from_db()
        assert zone.settings == settings


@pytest.mark.parametrize(
    ("began_with", "settings", "stays"),
    [
        ({}, {"beats_per_slot": 6}, 2),
        ({"beats_per_slot": 6}, {"beats_per_slot": 2, "growth": 0.1}, 6),
        # Without it, it would be as it is built.
        ({"beats_per_slot": 6, "growth": 0.2}, {"growth": 0.1}, 6),
    ],
)
def test_beats_of_a_zone_never_change(began_with, settings, stays):
    zone = market.zone(policy_settings=began_with)
    with pytest.raises(UserError) as caught:
        set_policy_settings(zone=zone, settings=settings, now=NOW)
    assert caught.value.message == (
        f"beats_per_slot stays {stays} as long as the zone lives: verifiers of its log count by "
        "it. For other beats, open another zone."
    )
    zone.refresh_from_db()
    assert (zone.settings, ZoneChange.objects.count()) == (began_with, 0)
    # What says the same is no change.
    same = {"beats_per_slot": stays, "growth": 0.3}
    assert set_policy_settings(zone=zone, settings=same, now=NOW).settings == same


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"grwoth": 0.1},
            "There is no setting 'grwoth'; there are ask_cap_micros, beats_per_slot, ",
        ),
        ({"growth": -0.1}, "growth is a number, from 0 to 10, not -0.1."),
        ({"growth": "0.1"}, "growth is a number, from 0 to 10, not '0.1'."),
        ({"growth": True}, "growth is a number, from 0 to 10, not True."),
        ({"growth": float("nan")}, "growth is a number, from 0 to 10, not nan."),
        ({"growth": None}, "growth is a number, from 0 to 10, not None."),
        ({"alpha": 1.0}, "There is no setting 'alpha'; "),
        ({"refusal_hints": 1}, "refusal_hints is true or false, not 1."),
        ({"iterations": 0}, "iterations is a whole number, from 1 to 1,000, not 0."),
        ({"iterations": 2.5}, "iterations is a whole number, from 1 to 1,000, not 2.5."),
        ([1], "Settings are an object of names and values"),
    ],
)
def test_settings_are_refused_with_what_they_may_be(settings, says):
    zone = market.zone(policy_settings={"growth": 0.4})
    with pytest.raises(UserError) as caught:
        set_policy_settings(zone=zone, settings=settings, now=NOW)
    assert caught.value.message.startswith(says)
    assert caught.value.code == "invalid_policy_setting"
    zone.refresh_from_db()
    assert zone.settings == {"growth": 0.4}
    with pytest.raises(UserError):
        market.zone(name="other", policy_settings=settings)
    assert not Zone.objects.filter(name="other").exists()


def test_every_parameter_is_one_that_the_engine_or_the_solver_knows():
    assert set(RULE_PARAMETERS) <= set(ZoneRules.__dataclass_fields__)
    assert set(Settings.__dataclass_fields__) <= set(POLICY_PARAMETERS)
    assert set(RATE_PARAMETERS) == {"ask_cap_micros", "reference_rate_micros"}
    assert set(BID_PARAMETERS) == {"holding_limit"}
    groups = (RULE_PARAMETERS, POLICY_PARAMETERS, RATE_PARAMETERS, BID_PARAMETERS)
    assert len(PARAMETERS) == sum(map(len, groups))


def test_the_command_sets_settings_and_says_what_they_are(capsys):
    zone = market.zone(name="cheap", policy_settings={"growth": 0.2})
    call_command("zone_policy", "cheap")
    assert capsys.readouterr().out == 'cheap: {"growth": 0.2}\n'
    call_command("zone_policy", "cheap", parameters='{"growth": 0.1}')
    assert capsys.readouterr().out == 'cheap: {"growth": 0.1}\n'
    zone.refresh_from_db()
    assert zone.settings == {"growth": 0.1}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"parameters": '{"growth": -1}'}, "growth is a number, from 0 to 10, not -1."),
        ({"parameters": "[1]"}, "Settings are an object"),
        ({"parameters": "growth=1"}, "The parameters are not JSON"),
    ],
)
def test_the_command_refuses_what_cannot_be(options, says):
    zone = market.zone(name="cheap")
    with pytest.raises(CommandError, match=says):
        call_command("zone_policy", "cheap", **options)
    with pytest.raises(CommandError, match="no zone 'dear'"):
        call_command("zone_policy", "dear")
    zone.refresh_from_db()
    assert zone.settings == {}
