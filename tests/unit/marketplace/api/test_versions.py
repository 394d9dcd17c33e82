"""Versions, and answers that a caller has already."""

from __future__ import annotations

import pytest
from django.test import Client

from marketplace.api.versions import VERSIONS
from tests import builders
from tests.builders import NOW
from tests.unit.marketplace.api.web_server import run

pytestmark = pytest.mark.django_db


def get(path, **headers):
    return Client().get(path, headers=headers)


def test_an_answer_names_its_version_and_an_unknown_one_is_refused():
    newest = str(max(VERSIONS))
    for asked in (None, newest, "2999-01-01"):
        headers = {} if asked is None else {"Finetender-Version": asked}
        answer = get("/api/zones", **headers)
        assert (answer.status_code, answer["Finetender-Version"]) == (200, newest)
    for wrong in ("2020-01-01", "soon", "2026-13-01", ""):
        answer = get("/api/zones", **{"Finetender-Version": wrong})
        assert (answer.status_code, answer.json()["code"]) == (400, "unknown_version")


def test_an_answer_that_the_caller_has_is_not_sent_again():
    first = get("/api/zones")
    for known in (first["ETag"], f'"other", W/{first["ETag"]}', "*"):
        again = get("/api/zones", **{"If-None-Match": known})
        assert (again.status_code, again.content, again["ETag"]) == (304, b"", first["ETag"])
    assert get("/api/zones", **{"If-None-Match": '"other"'}).content == first.content
    assert get("/v1/models/none", **{"If-None-Match": "*"}).status_code == 401


def test_secrets_are_replaced_with_an_overlap_and_only_by_keys_that_may_as_much():
    owner = builders.organisation()
    key, secret = builders.api_key(owner, scopes=["jobs:read", "keys:read", "keys:write"])
    wider, _ = builders.api_key(owner, scopes=["bids:write", "jobs:read"])
    foreign, _ = builders.api_key(builders.organisation(), scopes=["jobs:read"])

    def send(method, path, body=None, *, by=secret):
        client = Client(headers={"Authorization": f"Bearer {by}"})
        given = {"data": body or {}, "content_type": "application/json"}
        return getattr(client, method)(f"/api/keys{path}", **({} if method == "get" else given))

    assert send("post", f"/{wider.pk}/rotate").json()["code"] == "missing_scope"
    assert send("delete", f"/{wider.pk}").json()["code"] == "missing_scope"
    assert send("post", f"/{foreign.pk}/rotate").status_code == 404
    assert send("delete", f"/{foreign.pk}").status_code == 404
    assert send("post", f"/{key.pk}/rotate", {"overlap_s": -1}).status_code == 400
    made = send("post", f"/{key.pk}/rotate", {"overlap_s": 60}).json()
    assert (made["id"], made["scopes"]) == (key.pk, key.scopes)
    key.refresh_from_db()
    for moment, is_good in ((NOW, True), (key.earlier_secret_until, False)):
        assert (builders.authenticate(secret=secret, now=moment) == key) is is_good
        assert builders.authenticate(secret=made["secret"], now=moment) == key
    listed = {each["id"]: each for each in send("get", "", by=made["secret"]).json()["data"]}
    assert set(listed) == {key.pk, wider.pk}
    assert not any("secret" in each for each in listed.values())
    assert send("delete", f"/{key.pk}", by=made["secret"]).status_code == 204
    assert builders.authenticate(secret=made["secret"], now=NOW) is None


@pytest.mark.django_db(transaction=True)
def test_larger_answers_are_compressed_for_programs_that_take_it():
    async def talk(client):
        async def ask(path, **headers):
            return await client.get(path, headers={"accept-encoding": "gzip"} | headers)

        return (
            await ask("/api/schema"),
            await ask("/api/schema", **{"accept-encoding": "identity"}),
            await ask("/api/schema", cookie="sessionid=one"),
            await ask("/api/zones"),
        )

    small, *plain, tiny = run(talk)
    assert (small.status_code, small.headers["content-encoding"]) == (200, "gzip")
    assert int(small.headers["content-length"]) < len(small.content) / 4
    assert [one.content for one in plain] == [small.content] * 2
    assert not any("content-encoding" in one.headers for one in (*plain, tiny))
