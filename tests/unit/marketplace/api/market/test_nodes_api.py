"""Providers by API: tokens, nodes, asks, hours and how a node goes away; nobody else's node."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
import time_machine
from django.test import Client

from marketplace.accounts.models import AuditEntry, Membership, Role
from marketplace.api.kept_answers import sweep_records
from marketplace.api.models import IdempotencyRecord
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.config.management.commands.rotate_secrets import list_sealed_columns
from marketplace.fleet.models import Ask, JoinToken, Node, NodeStatus, Provider
from marketplace.fleet.services import join_node, retire_node, revoke_node_token
from tests import builders, vendor_builders
from tests import job_builders as build
from tests import market_builders as market
from tests.builders import NOW
from tests.unit.marketplace.api.client import Api, assert_problem
from tests.unit.marketplace.common.threads import at_once
from workers.protocol.messages import JoinRequest

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def now():
    with time_machine.travel(NOW, tick=False):
        yield NOW


@pytest.fixture
def zone():
    return market.zone()


@pytest.fixture
def node(zone):
    return market.node(zone, name="gpu-1")


@pytest.fixture
def api(node):
    return Api(node.provider.organisation)


def values():
    """All that acts on nodes may change."""
    return list(Node.objects.order_by("pk").values()), list(Ask.objects.values())


def test_a_node_is_shown_with_all_that_its_page_says(api, node, zone):
    shown = api.get(f"/api/nodes/{node.pk}").json()
    assert shown == {
        "id": node.pk,
        "object": "node",
        "name": "gpu-1",
        "zone": zone.name,
        "gpu_type": "cpu",
        "tier": "marketplace",
        "memory_gb": 8.0,
        "units_per_slot": 400.0,
        "ask": f"{4 * market.CELL_MICROS / 1e6:.6f}",
        "status": "online",
        **dict.fromkeys(("opens", "closes", "maintenance_from_at", "maintenance_until_at")),
        **dict.fromkeys(("available_from", "available_until", "shared_gpu", "rests_until")),
        **dict.fromkeys(("gpu_serves", "drained_at", "withdrawn_at", "left_at")),
        **dict.fromkeys(("suspended_at", "suspended_reason")),
        "last_heartbeat_at": "2026-03-02T09:00:00Z",
        "joined_at": "2026-03-02T09:00:00Z",
    }
    other = market.node(market.zone(), of=node.provider, name="gpu-2")
    assert [one["id"] for one in api.get("/api/nodes?name=gpu-2").json()["data"]] == [other.pk]
    assert [one["id"] for one in api.get(f"/api/nodes?zone={zone.name}").json()["data"]] == [
        node.pk
    ]


def test_an_ask_is_set_once_and_is_on_record(api, node):
    path = f"/api/nodes/{node.pk}/ask"
    for _ in range(2):
        assert api.put(path, {"ask": "0.25"}).json()["ask"] == "0.250000"
    [ask] = Ask.objects.all()
    owner = builders.owner_of(node.provider.organisation)
    assert (ask.node_id, ask.ask_micros, ask.set_by) == (node.pk, 250_000, owner)
    entry = AuditEntry.objects.latest("pk")
    assert (entry.act, entry.subject, entry.done) == (
        "PUT /api/nodes/<str:node_id>/ask",
        node.pk,
        True,
    )
    # Nothing is a price that a provider may ask.
    assert api.put(path, {"ask": 0}).json()["ask"] == "0.000000"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"ask": "NaN"}, "invalid_amount"),
        ({"ask": "Infinity"}, "invalid_amount"),
        ({"ask": 1e30}, "invalid_amount"),
        ({"ask": "1e999999999"}, "invalid_amount"),
        ({"ask": "0.0000001"}, "invalid_amount"),
        ({"ask": "-1"}, "invalid_amount"),
        ({"ask": True}, "invalid_amount"),
        ({"ask": ["1"]}, "invalid_amount"),
        ({"ask": "1000.000001"}, "invalid_ask"),
        ({"ask": None}, "invalid_request"),
        ({}, "invalid_request"),
        ({"ask": "1", "price": "1"}, "invalid_request"),
        ([], "invalid_request"),
    ],
)
def test_an_ask_that_cannot_be_is_refused_and_changes_nothing(api, node, body, code):
    before = values()
    assert_problem(api.put(f"/api/nodes/{node.pk}/ask", body), 400, code)
    raw = api._client.put(
        f"/api/nodes/{node.pk}/ask",
        data='{"ask": NaN}',
        content_type="application/json",
        headers=api.headers,
    )
    assert_problem(raw, 400, "malformed_request")
    assert values() == before


def test_hours_and_maintenance_change_one_without_the_other(api, node):
    path = f"/api/nodes/{node.pk}/hours"
    shown = api.patch(path, {"opens": "22:00", "closes": "06:00"}).json()
    assert (shown["opens"], shown["closes"]) == ("22:00", "06:00")
    assert (shown["available_from"], shown["available_until"]) == (
        "2026-03-02T22:00:00Z",
        "2026-03-03T06:00:00Z",
    )
    pause = {
        "maintenance_from_at": "2026-03-02T23:00:00+01:00",
        "maintenance_until_at": "2026-03-02T23:30:00Z",
    }
    shown = api.patch(path, pause).json()
    assert (shown["opens"], shown["maintenance_from_at"]) == ("22:00", "2026-03-02T22:00:00Z")
    assert shown["available_from"] == "2026-03-02T23:30:00Z"
    shown = api.patch(path, {"opens": None, "closes": None}).json()
    assert (shown["opens"], shown["maintenance_until_at"]) == (None, "2026-03-02T23:30:00Z")
    shown = api.patch(path, dict.fromkeys(pause)).json()
    assert (shown["maintenance_from_at"], shown["available_until"]) == (None, None)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"opens": "08:00"}, "invalid_hours"),
        ({"opens": "08:00", "closes": "08:00"}, "invalid_hours"),
        ({"opens": "24:00", "closes": "06:00"}, "invalid_request"),
        ({"opens": "8", "closes": "9"}, "invalid_request"),
        ({"opens": "08:00\n", "closes": "09:00"}, "invalid_request"),
        ({"opens": 800, "closes": 900}, "invalid_request"),
        ({"maintenance_from_at": "2026-03-03T00:00:00Z"}, "invalid_hours"),
        ({"maintenance_from_at": "2026-03-03T00:00:00"}, "invalid_moment"),
        # In UTC it lies before the year 1, which the database could not give back.
        (
            {
                "maintenance_from_at": "0001-01-01T00:00:00+01:00",
                "maintenance_until_at": "2026-03-03T00:00:00Z",
            },
            "invalid_moment",
        ),
        (
            {
                "maintenance_from_at": "2026-03-02T10:00:00Z",
                "maintenance_until_at": "2026-06-02T10:00:00Z",
            },
            "invalid_hours",
        ),
        (
            {
                "maintenance_from_at": "2026-03-02T07:00:00Z",
                "maintenance_until_at": "2026-03-02T08:00:00Z",
            },
            "invalid_hours",
        ),
        ({"monday": "08:00"}, "invalid_request"),
    ],
)
def test_hours_that_cannot_be_are_refused_and_change_nothing(api, node, body, code):
    before = values()
    assert_problem(api.patch(f"/api/nodes/{node.pk}/hours", body), 400, code)
    assert values() == before


def test_a_drained_node_is_put_back_and_one_that_is_withdrawn_leaves(api, node):
    at = f"/api/nodes/{node.pk}"
    shown = api.post(f"{at}/drain", key="k").json()
    assert (shown["status"], shown["drained_at"]) == ("draining", "2026-03-02T09:00:00Z")
    assert api.post(f"{at}/drain").json() == shown
    assert api.post(f"{at}/undrain", key="k").json()["status"] == "online"
    # A retry of the first is answered as it was, and drains nothing again.
    again = api.post(f"{at}/drain", key="k")
    assert (again.json(), again["Idempotent-Replayed"]) == (shown, "true")
    assert api.get(at).json()["status"] == "online"
    assert_problem(api.post(f"{at}/undrain"), 409, "node_not_draining")
    shown = api.post(f"{at}/withdraw").json()
    assert (shown["status"], shown["withdrawn_at"]) == ("draining", "2026-03-02T09:00:00Z")
    retire_node(node=node, now=NOW)
    assert api.get(at).json()["status"] == "left"
    before = values()
    for act in ("drain", "undrain", "withdraw", "revoke", "reset-speed"):
        assert_problem(api.post(f"{at}/{act}"), 409, "node_left")
    assert_problem(api.put(f"{at}/ask", {"ask": "1"}), 409, "node_left")
    assert_problem(api.patch(f"{at}/hours", {"opens": None, "closes": None}), 409, "node_left")
    assert values() == before


@pytest.mark.django_db(transaction=True)
def test_two_drains_at_once_are_one_and_both_are_answered(node):
    programs = [Api(node.provider.organisation) for _ in range(2)]
    answers = at_once(
        [lambda each=each: each.post(f"/api/nodes/{node.pk}/drain") for each in programs]
    )
    assert [answer.status_code for answer in answers] == [200, 200]
    assert [answer.json()["status"] for answer in answers] == ["draining", "draining"]
    assert Node.objects.get().drained_at == NOW


def test_a_node_whose_credentials_are_revoked_is_away_and_can_be_withdrawn(zone):
    node, _ = build.joined(zone, now=NOW)
    api = Api(node.provider.organisation)
    at = f"/api/nodes/{node.pk}"
    before = Node.objects.get().api_token_hash
    assert api.post(f"{at}/revoke").json()["status"] == "offline"
    assert Node.objects.get().api_token_hash != before
    assert api.put(f"{at}/ask", {"ask": "0.5"}).json()["ask"] == "0.500000"
    assert api.post(f"{at}/drain").json()["status"] == "offline"
    shown = api.post(f"{at}/withdraw").json()
    assert (shown["status"], shown["left_at"]) == ("left", "2026-03-02T09:00:00Z")


def acts_on(node_id):
    """Every request about one node: method, path, body."""
    yield "put", f"/api/nodes/{node_id}/ask", {"ask": "1"}
    yield "patch", f"/api/nodes/{node_id}/hours", {"opens": "08:00", "closes": "09:00"}
    for act in ("drain", "undrain", "withdraw", "revoke", "reset-speed"):
        yield "post", f"/api/nodes/{node_id}/{act}", {}


def test_a_strangers_node_is_unknown_and_stays_as_it_is(node, zone):
    before = values()
    vendor = vendor_builders.vendor(zone).organisation
    rival = market.node(zone).provider.organisation
    rivals_own = values()
    for stranger in (Api(builders.organisation()), Api(vendor), Api(rival)):
        for method, path, body in acts_on(node.pk):
            assert_problem(getattr(stranger, method)(path, body), 404, "unknown_node")
        for path in (f"/api/nodes/{node.pk}", f"/api/nodes/{node.pk}/rates"):
            assert_problem(stranger.get(path), 404, "unknown_node")
        assert node.pk not in stranger.get("/api/nodes").content.decode()
    assert values()[0][:1] == before[0]
    assert values() == rivals_own


def test_only_keys_of_owners_with_the_scope_change_a_node(node):
    organisation = node.provider.organisation
    reader = Api(organisation, scopes=["provider:read"])
    viewer = builders.user()
    held = Membership.objects.create(
        organisation=organisation, user=viewer, role=Role.MEMBER, created_at=NOW
    )
    program = Api(organisation)
    organisation.api_keys.latest("pk").delete()
    _, secret = builders.api_key(organisation, created_by=viewer)
    program.headers = {"Authorization": f"Bearer {secret}"}
    before = values()
    for method, path, body in acts_on(node.pk):
        assert_problem(getattr(reader, method)(path, body), 403, "missing_scope")
        assert_problem(getattr(program, method)(path, body), 403, "owners_only")
    assert_problem(reader.post("/api/join-tokens", {}), 403, "missing_scope")
    assert_problem(program.post("/api/join-tokens", {}), 403, "owners_only")
    held.role = Role.VIEWER
    held.save()
    with time_machine.travel(NOW + timedelta(minutes=1), tick=False):
        assert program.post(f"/api/nodes/{node.pk}/drain").status_code in (401, 403)
    assert values() == before
    assert not JoinToken.objects.exists()


def test_rates_say_why_a_node_sells_or_not():
    zone = market.zone(
        horizon_slots=12, policy_settings={"posts_rates": True, "holding_limit": False}
    )
    for ask in (1, 1, 3):
        market.node(zone, ask_micros=4 * ask * market.CELL_MICROS)
    refresh_zone(zone=zone, now=NOW)
    cheap, dear = Node.objects.earliest("pk"), Node.objects.latest("pk")
    shown = Api(cheap.provider.organisation).get(f"/api/nodes/{cheap.pk}/rates").json()
    [block] = shown.pop("blocks")
    assert shown == {
        "object": "node.rates",
        "node_id": cheap.pk,
        "ask": "0.400000",
        "floor": "0.500000",
        "others_low": None,
        "others_high": None,
    }
    assert (block["day_ahead"], block["in_force"], block["state"]) == (
        "0.500000",
        "0.500000",
        "on_sale",
    )
    shown = Api(dear.provider.organisation).get(f"/api/nodes/{dear.pk}/rates").json()
    assert [block["state"] for block in shown["blocks"]] == ["ask_above_rate"]
    silent = market.node(market.zone(), of=dear.provider)
    shown = Api(dear.provider.organisation).get(f"/api/nodes/{silent.pk}/rates").json()
    assert (shown["ask"], shown["floor"], shown["blocks"]) == (None, None, [])


def test_what_was_sold_is_served_by_a_node_that_is_drained(api, node, zone):
    owner = builders.organisation(usd="100")
    bid = market.bid(owner, zone)
    decide_pending_bids(zone=zone, now=NOW)
    bid.refresh_from_db()
    assert bid.status == "admitted"
    api.post(f"/api/nodes/{node.pk}/withdraw")
    refresh_zone(zone=zone, now=NOW)
    bid.refresh_from_db()
    assert bid.status == "admitted"
    assert Node.objects.get(pk=node.pk).status == NodeStatus.DRAINING


def ask_token(api, on, *, key=None, **changed):
    return api.post("/api/join-tokens", {"zone": on.name, "ask": "0.05"} | changed, key=key)


def test_a_join_token_is_made_used_shown_and_revoked(api, zone, settings):
    made = ask_token(api, zone, nodes=2, opens="22:00", closes="06:00")
    assert made.status_code == 201
    body = made.json()
    secret, commands = body.pop("secret"), body.pop("commands")
    assert secret.startswith("ftjoin_")
    assert all(secret in way["lines"] and settings.PUBLIC_URL in way["lines"] for way in commands)
    assert made["Location"] == f"/api/join-tokens/{body['id']}"
    assert (body["status"], body["uses_left"], body["ask"]) == ("open", 2, "0.050000")
    assert (body["opens"], body["closes"]) == ("22:00", "06:00")
    assert body["expires_at"] == "2026-03-03T09:00:00Z"
    assert secret not in json.dumps(api.get("/api/join-tokens").json())
    join_node(
        request=JoinRequest(token=secret, name="gpu-7", facts=build.facts(hostname="gpu-7")),
        now=NOW,
    )
    shown = api.get(made["Location"]).json()
    [machine] = shown.pop("machines")
    assert (shown["uses_left"], machine["name"]) == (1, "gpu-7")
    assert machine["steps"][-1]["step"] == "On sale"
    assert secret not in json.dumps(shown)
    for _ in range(2):
        assert api.delete(made["Location"]).status_code == 204
    [listed] = api.get("/api/join-tokens").json()["data"]
    assert (listed["status"], listed["revoked_at"]) == ("revoked", "2026-03-02T09:00:00Z")
    for stranger in (Api(builders.organisation()), Api(market.node(zone).provider.organisation)):
        assert_problem(stranger.get(made["Location"]), 404, "unknown_join_token")
        assert_problem(stranger.delete(made["Location"]), 404, "unknown_join_token")
        assert stranger.get("/api/join-tokens").json()["data"] == []


def test_a_retried_request_gets_the_same_token_and_no_secret_is_stored(api, zone):
    first = ask_token(api, zone, key="k")
    again = ask_token(api, zone, key="k")
    assert (again.json(), again["Idempotent-Replayed"]) == (first.json(), "true")
    assert JoinToken.objects.count() == 1
    secret = first.json()["secret"]
    stored = json.dumps(
        [*IdempotencyRecord.objects.values(), *JoinToken.objects.values()], default=str
    )
    assert secret not in stored
    assert IdempotencyRecord.objects.get().body is None
    # Sealed anew with the market's other secrets, and gone after a day.
    assert (IdempotencyRecord, "sealed_body") in list_sealed_columns()
    assert sweep_records(now=NOW + timedelta(hours=24)) == 0
    assert sweep_records(now=NOW + timedelta(hours=25)) == 1
    first = ask_token(api, zone, key="k")
    assert_problem(ask_token(api, zone, key="k", ask="0.06"), 409, "idempotency_key_reused")


@pytest.mark.parametrize(
    ("changed", "status", "code"),
    [
        ({"zone": "nowhere"}, 404, "unknown_zone"),
        ({"ask": "NaN"}, 400, "invalid_amount"),
        ({"ask": "2000"}, 400, "invalid_ask"),
        ({"nodes": 17}, 400, "invalid_request"),
        ({"nodes": 0}, 400, "invalid_request"),
        ({"tier": "mine"}, 400, "invalid_request"),
        ({"opens": "08:00"}, 400, "invalid_hours"),
        ({"is_shared": True}, 400, "invalid_hours"),
        ({"available_until": "2026-03-01T00:00:00Z"}, 400, "invalid_availability"),
        ({"available_until": "9999-12-31T23:59:59-12:00"}, 400, "invalid_moment"),
    ],
)
def test_terms_that_cannot_be_make_no_token_and_no_provider(zone, changed, status, code):
    api = Api(builders.organisation())
    providers = Provider.objects.count()
    assert_problem(ask_token(api, zone, key="k", **changed), status, code)
    assert (JoinToken.objects.count(), Provider.objects.count()) == (0, providers)
    assert not IdempotencyRecord.objects.exists()


def test_who_is_not_approved_or_suspended_makes_no_token_and_asks_for_nothing(zone, settings, node):
    settings.PROVIDERS_NEED_APPROVAL = True
    providers = Provider.objects.count()
    stranger = Api(builders.organisation())
    assert_problem(ask_token(stranger, zone), 403, "provider_not_approved")
    assert Provider.objects.count() == providers
    Provider.objects.filter(pk=node.provider_id).update(suspended_at=NOW)
    assert_problem(ask_token(Api(node.provider.organisation), zone), 403, "provider_suspended")
    assert not JoinToken.objects.exists()


def test_acts_have_a_limit_of_their_own(api, node, settings):
    settings.API_REQUESTS_PER_MINUTE = settings.API_REQUESTS_PER_MINUTE | {"acts": 2}
    answers = [api.post(f"/api/nodes/{node.pk}/drain") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert api.get("/api/nodes").status_code == 200


def test_a_node_speaks_for_nobody(zone):
    node, reply = build.joined(zone, now=NOW)
    program = Client(headers={"Authorization": f"Bearer {reply.api_token}"})
    assert program.get("/api/nodes").status_code == 401
    revoke_node_token(node=node, now=NOW)
    assert program.post(f"/api/nodes/{node.pk}/undrain").status_code == 401
