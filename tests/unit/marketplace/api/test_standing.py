"""A stream ends where a new request like it would be refused."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from marketplace.accounts.models import ApiKey, Membership, Role, Scope
from marketplace.accounts.oversight import freeze_key
from marketplace.api.callers import Caller, Standing
from marketplace.api.market.job_stream import _News
from marketplace.common.errors import UserError
from tests import builders
from tests.builders import NOW

pytestmark = pytest.mark.django_db
#: A process may have let a key in just before.
LATER = NOW + timedelta(seconds=5)


@pytest.fixture
def member():
    person = builders.user()
    Membership.objects.create(organisation=builders.organisation(), user=person, role=Role.MEMBER)
    return Membership.objects.get(user=person, role=Role.MEMBER)


def find_refusal(standing: Standing) -> str | None:
    try:
        standing.check(now=LATER)
    except UserError as refusal:
        return refusal.code
    return None


def freeze(member: Membership) -> None:
    key = ApiKey.objects.get()
    freeze_key(key_id=key.pk, reason="Why.", frozen_by=builders.operator(), now=NOW)


ENDS_OF_KEYS: dict[str, Any] = {
    "frozen": ("key_frozen", freeze),
    "narrowed": ("missing_scope", lambda _: ApiKey.objects.update(scopes=[Scope.JOBS_READ])),
    "revoked": ("invalid_api_key", lambda _: ApiKey.objects.update(revoked_at=NOW)),
    "account closed": ("invalid_api_key", lambda member: _set(member.user, is_active=False)),
    "viewer now": ("invalid_api_key", lambda member: _set(member, role=Role.VIEWER)),
}


@pytest.mark.parametrize("how", [None, *ENDS_OF_KEYS])
def test_a_stream_of_a_key_ends_with_it(member, how):
    key, secret = builders.api_key(member.organisation, created_by=member.user)
    caller = Caller(member.user, member.organisation, key)
    standing = Standing(caller, Scope.MODELS_USE, secret, None)
    standing.check(now=NOW)
    code = None
    if how is not None:
        code, end = ENDS_OF_KEYS[how]
        end(member)
    assert find_refusal(standing) == code


ENDS_OF_SESSIONS: dict[str, Any] = {
    "signed out": ("not_signed_in", lambda member, client: client.logout()),
    "account closed": ("not_signed_in", lambda member, client: _set(member.user, is_active=False)),
    "other password": ("not_signed_in", lambda member, client: _set_password(member.user)),
    "viewer now": ("role_not_enough", lambda member, client: _set(member, role=Role.VIEWER)),
    "left": ("not_a_member", lambda member, client: member.delete()),
    "operator": (
        "second_factor_missing",
        lambda member, client: _set(member.user, is_operator=True),
    ),
}


def _set(row: Any, **columns: Any) -> None:
    type(row).objects.filter(pk=row.pk).update(**columns)


def _set_password(user: Any) -> None:
    user.set_password("another secret")
    user.save()


@pytest.mark.parametrize("how", [None, *ENDS_OF_SESSIONS])
def test_a_stream_of_a_session_ends_with_it(member, how, settings):
    settings.OPERATORS_NEED_MFA = True
    client = Client()
    client.force_login(member.user)
    caller = Caller(member.user, member.organisation, None)
    standing = Standing(caller, Scope.MODELS_USE, None, client.session.session_key)
    standing.check(now=NOW)
    code = None
    if how is not None:
        code, end = ENDS_OF_SESSIONS[how]
        end(member, client)
    assert find_refusal(standing) == code


def test_events_that_wait_do_not_keep_a_stream_from_being_checked():
    async def wait_too_late() -> Any:
        news = _News("job.j")
        news._channel = "c"
        news._next = asyncio.get_running_loop().create_future()
        news._next.set_result({"event": {"seq": 1}})
        loop, unless = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
        in_time = await news.wait(until=loop.time() + 60, unless=unless)
        news._next = asyncio.get_running_loop().create_future()
        news._next.set_result({"event": {"seq": 2}})
        return in_time, await news.wait(until=loop.time() - 1, unless=unless)

    assert asyncio.run(wait_too_late()) == ({"seq": 1}, None)
