"""Who works for an organisation, as its programs see it."""

from __future__ import annotations

import pytest

from tests import builders
from tests.unit.marketplace.api.client import Api

pytestmark = pytest.mark.django_db


def test_an_organisation_lists_its_own_members_and_no_others():
    owner = builders.organisation()
    builders.organisation()
    person = builders.owner_of(owner)
    [member] = Api(owner).get("/api/members").json()["data"]
    assert (member["user_id"], member["email"], member["role"]) == (
        person.pk,
        person.email,
        "owner",
    )
    refused = Api(owner, scopes=["keys:read"]).get("/api/members")
    assert (refused.status_code, refused.json()["code"]) == (403, "missing_scope")
