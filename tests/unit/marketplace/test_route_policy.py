"""Every route of the site is walked in every role; one table says who may change something."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from asgiref.sync import async_to_sync
from asgiref.testing import ApplicationCommunicator
from channels.layers import channel_layers
from django.contrib.auth.models import AnonymousUser
from django.core.cache import cache
from django.test import Client

from marketplace.accounts.models import Membership, Role, Scope
from marketplace.accounts.policy import RIGHT_BY_SCOPE, ROLES_BY_RIGHT, Right
from marketplace.api.callers import ORGANISATION_HEADER
from marketplace.common.errors import NotAllowed
from marketplace.config.routes import list_routes, list_sockets, write_route_table
from marketplace.fleet.models import Node
from marketplace.fleet.tokens import revoke_node_token
from marketplace.live.routing import websocket_router
from marketplace.live.snapshots import find_job_for
from marketplace.web.current_organisation import CHOSEN
from tests import builders, vendor_builders
from tests import job_builders as build
from tests import market_builders as market
from tests.builders import NOW

ROOT = Path(__file__).parents[3]
TABLE = ROOT / "docs" / "guides" / "roles.md"
#: Codes by which the one policy refuses.
REFUSALS = {"role_not_enough", "owners_only", "second_factor_missing"}
RIGHTS = [route for route in list_routes() if route.audience in set(Right)]
API = [route for route in RIGHTS if route.scope]
PAGES = [route for route in RIGHTS if not route.scope and not route.path.startswith("live/")]
OPERATOR_PAGES = [
    route
    for route in list_routes()
    if route.audience == "operator" and not route.path.startswith("admin/")
]
LINKS = [route for route in list_routes() if route.audience == "link"]
NODE_ROUTES = [route for route in list_routes() if route.audience == "node"]

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def shop(settings):
    """An organisation with a member in each role."""
    cache.clear()
    settings.API_REQUESTS_PER_MINUTE = dict.fromkeys(settings.API_REQUESTS_PER_MINUTE, 10**6)
    made = builders.organisation()
    for role in set(Role.values) - {Role.OWNER}:
        Membership.objects.create(
            organisation=made, user=builders.user(), role=role, created_at=NOW
        )
    return made


def sign_in(organisation, user):
    client = Client(headers={ORGANISATION_HEADER: organisation.pk}, raise_request_exception=False)
    client.force_login(user)
    session = client.session
    session[CHOSEN] = organisation.pk
    session.save()
    return client


def find_member(organisation, role):
    return organisation.memberships.get(role=role).user


def send(client, route, **headers):
    address = "/" + re.sub(r"<int:\w+>", "1", route.path)
    address = re.sub(r"<(\w+:)?\w+>", "x", address)
    method = "POST" if route.method == "*" else route.method
    body = {} if method in ("GET", "HEAD") else {"data": "{}", "content_type": "application/json"}
    asked = {"Accept": "application/json", **headers}
    return getattr(client, method.lower())(address, headers=asked, **body)


def read_code(answer):
    if "json" not in answer.headers.get("Content-Type", ""):
        return ""
    value = answer.json()
    return value.get("error", value).get("code", "") if isinstance(value, dict) else ""


def test_every_route_says_for_whom_it_is():
    assert [route for route in list_routes() if not route.audience] == []
    assert len(API) > 60
    assert len(PAGES) > 80
    assert len(OPERATOR_PAGES) > 20
    assert set(RIGHT_BY_SCOPE) == set(Scope.values)
    assert set(ROLES_BY_RIGHT) == set(Right)


@pytest.mark.parametrize("role", Role.values)
def test_a_session_may_do_over_the_api_what_its_role_may(shop, role):
    client = sign_in(shop, find_member(shop, role))
    for route in API:
        answer = send(client, route)
        refused = read_code(answer) in REFUSALS
        allowed = role in ROLES_BY_RIGHT[Right(route.audience)]
        assert refused == (not allowed), (role, route, answer.status_code, read_code(answer))
        if refused:
            assert answer.status_code == 403


@pytest.mark.parametrize("role", [Role.VIEWER, Role.BILLING, Role.MEMBER])
def test_a_page_changes_nothing_for_a_role_that_may_not(shop, role):
    client = sign_in(shop, find_member(shop, role))
    refused = [route for route in PAGES if role not in ROLES_BY_RIGHT[Right(route.audience)]]
    assert refused
    for route in refused:
        answer = send(client, route)
        # 405: the page takes no POST at all.
        assert answer.status_code in (403, 405), (role, route, answer.status_code)
        if answer.status_code == 403:
            assert read_code(answer) in REFUSALS, (role, route)


def test_no_other_site_changes_anything_with_somebodys_session(shop):
    operator = builders.operator()
    Membership.objects.create(organisation=shop, user=operator, role=Role.OWNER, created_at=NOW)
    client = sign_in(shop, operator)
    client.handler.enforce_csrf_checks = True
    for route in [*RIGHTS, *OPERATOR_PAGES]:
        if route.method != "GET" and not route.path.startswith("live/"):
            answer = send(client, route)
            assert answer.status_code == 403, (route, answer.status_code)
            assert b"CSRF" in answer.content or not route.scope, route


def test_nobody_signed_in_may_do_nothing():
    client = Client(raise_request_exception=False)
    for route in API:
        answer = send(client, route)
        assert (answer.status_code, read_code(answer)) == (401, "not_signed_in"), route
    for route in [*PAGES, *OPERATOR_PAGES]:
        answer = send(client, route)
        assert answer.status_code in (302, 405), (route, answer.status_code)
        if answer.status_code == 302:
            assert "/accounts/login/" in answer["Location"], route


def test_operators_pages_are_for_operators(shop):
    for role in Role.values:
        client = sign_in(shop, find_member(shop, role))
        for route in OPERATOR_PAGES:
            assert send(client, route).status_code in (403, 405), (role, route)


def test_nodes_routes_are_for_nodes_alone(shop):
    _, secret = builders.api_key(shop)
    client = sign_in(shop, find_member(shop, Role.OWNER))
    for route in NODE_ROUTES:
        for headers in ({}, {"Authorization": f"Bearer {secret}"}, {"Authorization": "Bearer x"}):
            answer = send(client, route, **headers)
            # 400: the body is read before the token is looked up.
            assert answer.status_code in (400, 401, 405), (route, answer.status_code)


def test_an_operator_without_a_second_factor_gets_nothing_anywhere(shop, settings):
    settings.OPERATORS_NEED_MFA = True
    operator = builders.operator()
    Membership.objects.create(organisation=shop, user=operator, role=Role.OWNER, created_at=NOW)
    _, secret = builders.api_key(shop)
    shop.api_keys.update(created_by=operator)
    session = sign_in(shop, operator)
    program = Client(headers={"Authorization": f"Bearer {secret}"}, raise_request_exception=False)
    for route in API:
        for client in (session, program):
            answer = send(client, route)
            assert (answer.status_code, read_code(answer)) == (403, "second_factor_missing"), route
    for watcher in (operator, shop.api_keys.get()):
        with pytest.raises(NotAllowed, match="second factor"):
            find_job_for(watcher=watcher, job_id="x")
    for route in [*PAGES, *OPERATOR_PAGES]:
        answer = send(session, route)
        assert (answer.status_code, answer["Location"]) == (302, "/accounts/2fa/totp/activate/")


@pytest.mark.parametrize("role", Role.values)
def test_a_key_may_do_no_more_than_its_maker_may_now(shop, role):
    maker = find_member(shop, role)
    made, secret = builders.api_key(shop)
    shop.api_keys.filter(pk=made.pk).update(created_by=maker)
    client = Client(headers={"Authorization": f"Bearer {secret}"}, raise_request_exception=False)
    for route in API:
        answer = send(client, route)
        if role not in ROLES_BY_RIGHT[Right.WORK]:
            assert answer.status_code == 401, (role, route)
            continue
        allowed = role in ROLES_BY_RIGHT[Right(route.audience)]
        assert (read_code(answer) in REFUSALS) == (not allowed), (role, route, answer.status_code)


@pytest.mark.parametrize("scope", Scope.values)
def test_a_route_opens_to_its_scope_and_to_no_other(shop, scope):
    for scopes, lacks in (([scope], False), (sorted({*Scope.values} - {scope}), True)):
        _, secret = builders.api_key(shop, scopes=scopes)
        headers = {"Authorization": f"Bearer {secret}"}
        client = Client(headers=headers, raise_request_exception=False)
        for route in API:
            if route.scope == scope:
                found = read_code(send(client, route)) == "missing_scope"
                assert found == lacks, (scopes, route)
                if lacks and route.method == "GET":
                    assert send(client, replace(route, method="HEAD")).status_code == 403, route


@pytest.mark.parametrize("kind", ["vendor", "provider"])
def test_who_works_for_others_acts_for_no_organisation_but_their_own(shop, kind):
    zone = vendor_builders.zone()
    if kind == "vendor":
        of_stranger = vendor_builders.vendor(zone).organisation
    else:
        of_stranger = market.node(zone).provider.organisation
    user = builders.owner_of(of_stranger)
    session = sign_in(shop, user)
    for route in API:
        answer = send(session, route)
        assert (answer.status_code, read_code(answer)) == (403, "not_a_member"), route
    for route in OPERATOR_PAGES:
        assert send(session, route).status_code in (403, 405), route
    for route in [*NODE_ROUTES, *LINKS]:
        answer = send(session, route)
        assert answer.status_code in (400, 401, 404, 405), (route, answer.status_code)


def test_a_revoked_node_gets_nothing_and_changes_nothing(shop):
    zone = market.zone()
    node, reply = build.joined(zone)
    revoke_node_token(node=node, now=NOW)
    before = Node.objects.values().get()
    for route in NODE_ROUTES:
        answer = send(Client(), route, Authorization=f"Bearer {reply.api_token}")
        assert answer.status_code in (400, 401, 405), (route, answer.status_code)
    assert Node.objects.values().get() == before


def list_watchers(organisation):
    """Who may ask for a socket of the organisation's: name, what they show, whether they may."""
    for role in Role.values:
        yield role, signed_in(find_member(organisation, role)), True
    yield "operator", signed_in(builders.operator()), True
    yield "foreign owner", signed_in(builders.owner_of(builders.organisation())), False
    yield "anonymous", {"user": AnonymousUser()}, False
    for scope in Scope.values:
        _, secret = builders.api_key(organisation, scopes=[scope])
        yield f"key of {scope}", bearing(secret), scope == Scope.JOBS_READ
    _, secret = builders.api_key(organisation)
    yield "key", bearing(secret), True
    gone, secret = builders.api_key(organisation)
    organisation.api_keys.filter(pk=gone.pk).update(revoked_at=NOW)
    yield "revoked key", bearing(secret), False
    yield "foreign key", bearing(builders.api_key(builders.organisation())[1]), False
    _, reply = build.joined(market.zone())
    yield "node", bearing(reply.api_token), False


def bearing(secret):
    headers = [(b"authorization", f"Bearer {secret}".encode())]
    return {"user": AnonymousUser(), "headers": headers}


def signed_in(user):
    client = Client()
    client.force_login(user)
    return {"user": user, "session": client.session}


def test_every_socket_is_for_those_that_its_row_names(shop, settings):
    zone = market.zone()
    job = build.job(zone, (0, market.node(zone)), organisation=shop)
    settings.OPERATORS_NEED_MFA = False
    by_path = {
        "ws/jobs/(?P<job_id>[A-Za-z0-9-]{1,40})/": f"/ws/jobs/{job.pk}/",
        "ws/market/(?P<zone_name>[a-z0-9_-]{1,40})/": f"/ws/market/{zone.name}/",
    }
    assert {route.path for route in list_sockets()} == set(by_path)
    watchers = list(list_watchers(shop))
    for route in list_sockets():
        for name, shown, may in watchers:
            told = async_to_sync(hear_first)(by_path[route.path], shown)
            wanted = may or route.audience == "public"
            assert (told["type"] == "websocket.send") == wanted, (route.path, name, told)
    settings.OPERATORS_NEED_MFA = True
    told = async_to_sync(hear_first)(f"/ws/jobs/{job.pk}/", signed_in(builders.operator()))
    assert (told["type"], told["code"]) == ("websocket.close", 4403)


async def hear_first(path, shown):
    """What a socket says once it is accepted: a snapshot, or that it closes."""
    channel_layers.backends.clear()
    scope = {"type": "websocket", "path": path, "headers": []} | shown
    socket = ApplicationCommunicator(websocket_router, scope)
    await socket.send_input({"type": "websocket.connect"})
    assert (await socket.receive_output(timeout=10))["type"] == "websocket.accept"
    told = await socket.receive_output(timeout=10)
    await socket.send_input({"type": "websocket.disconnect", "code": 1000})
    await socket.wait(timeout=10)
    return told


def test_the_guide_has_the_table_of_routes():
    assert write_route_table() in TABLE.read_text(), "run: python manage.py print_routes --write"
