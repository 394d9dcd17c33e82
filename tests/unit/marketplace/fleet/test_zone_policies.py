"""What a zone's price policy and its parameters may be."""

from __future__ import annotations

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction

from marketplace.common.errors import UserError
from marketplace.fleet.models import Zone
from marketplace.fleet.services import set_zone_policy
from marketplace.fleet.zone_policies import PARAMETERS, POLICY_PARAMETERS, RULE_PARAMETERS
from scheduler.auction import ZoneRules
from scheduler.auction.prices import Settings
from scheduler.experiments.auction.max_form.policies import max_form_rules
from tests import builders
from tests import market_builders as market
from tests.builders import NOW

pytestmark = pytest.mark.django_db


def test_new_zones_choose_their_policy_by_themselves():
    zone = market.zone()
    assert (zone.policy, zone.settings) == ("auto", {})
    assert (zone.policy_set_by, zone.policy_set_at) == (None, None)


def test_the_operator_sets_policy_and_settings_and_is_named():
    zone, operator = market.zone(), builders.operator()
    settings = {"growth": 0.2, "alpha": None, "refusal_hints": False, "solve_every_slots": 6}
    set_zone_policy(zone=zone, policy="lagrangian", settings=settings, set_by=operator, now=NOW)
    zone.refresh_from_db()
    assert (zone.policy, zone.settings) == ("lagrangian", settings)
    assert (zone.policy_set_by, zone.policy_set_at) == (operator, NOW)
    # Without settings, those there are stay.
    set_zone_policy(zone=zone, policy="residual", set_by=operator, now=NOW)
    zone.refresh_from_db()
    assert (zone.policy, zone.settings) == ("residual", settings)


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("printed", "'printed' reproduces the paper and is not truthful"),
        ("free", "A policy is one of auto, residual, lagrangian."),
        ("", "A policy is one of auto, residual, lagrangian."),
    ],
)
def test_a_policy_that_no_live_zone_may_have_is_refused_everywhere(policy, says):
    zone = market.zone()
    with pytest.raises(UserError, match=says) as caught:
        set_zone_policy(zone=zone, policy=policy, set_by=None, now=NOW)
    assert (caught.value.code, caught.value.param) == ("unknown_policy", "policy")
    with pytest.raises(UserError, match=says):
        market.zone(name="other", policy=policy)
    assert not Zone.objects.filter(name="other").exists()
    with pytest.raises(IntegrityError, match="fleet_zone_policy_is_live"), transaction.atomic():
        Zone.objects.update(policy=policy)
    zone.refresh_from_db()
    assert (zone.policy, zone.policy_set_at) == ("auto", None)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"grwoth": 0.1},
            "There is no setting 'grwoth'; there are alpha, beta, first_step, ",
        ),
        ({"growth": -0.1}, "growth is a number, from 0 to 10, not -0.1."),
        ({"growth": "0.1"}, "growth is a number, from 0 to 10, not '0.1'."),
        ({"growth": True}, "growth is a number, from 0 to 10, not True."),
        ({"growth": float("nan")}, "growth is a number, from 0 to 10, not nan."),
        ({"growth": None}, "growth is a number, from 0 to 10, not None."),
        ({"alpha": -1}, "alpha is a number, at least 0, or null, not -1."),
        ({"refusal_hints": 1}, "refusal_hints is true or false, not 1."),
        ({"iterations": 0}, "iterations is a whole number, from 1 to 1000, not 0."),
        ({"iterations": 2.5}, "iterations is a whole number, from 1 to 1000, not 2.5."),
        ([1], "Settings are an object of names and values"),
    ],
)
def test_settings_are_refused_with_what_they_may_be(settings, says):
    zone = market.zone(policy_settings={"growth": 0.4})
    with pytest.raises(UserError) as caught:
        set_zone_policy(zone=zone, policy="auto", settings=settings, set_by=None, now=NOW)
    assert caught.value.message.startswith(says)
    assert caught.value.code == "invalid_policy_setting"
    zone.refresh_from_db()
    assert (zone.settings, zone.policy_set_at) == ({"growth": 0.4}, None)


def test_every_parameter_is_one_that_the_engine_or_the_solver_knows():
    assert set(RULE_PARAMETERS) - set(max_form_rules()) <= set(ZoneRules.__dataclass_fields__)
    assert set(Settings.__dataclass_fields__) <= set(POLICY_PARAMETERS)
    assert len(PARAMETERS) == len(RULE_PARAMETERS) + len(POLICY_PARAMETERS)


def test_the_command_sets_policy_and_settings_and_says_what_they_are(capsys):
    zone = market.zone(name="cheap", policy_settings={"growth": 0.2})
    call_command("zone_policy", "cheap")
    assert capsys.readouterr().out == 'cheap: auto, settings {"growth": 0.2}\n'
    call_command("zone_policy", "cheap", policy="residual")
    assert capsys.readouterr().out == 'cheap: residual, settings {"growth": 0.2}\n'
    call_command("zone_policy", "cheap", parameters='{"steepness": 0.1}')
    assert capsys.readouterr().out == 'cheap: residual, settings {"steepness": 0.1}\n'
    zone.refresh_from_db()
    assert (zone.policy, zone.settings) == ("residual", {"steepness": 0.1})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"policy": "printed"}, "A policy is one of auto, residual, lagrangian."),
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
    assert (zone.policy, zone.settings, zone.policy_set_at) == ("auto", {}, None)
