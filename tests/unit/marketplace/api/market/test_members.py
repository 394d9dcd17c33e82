"""Who works for an organisation, as its programs see it."""

from __future__ import annotations

import re

import pytest

from marketplace.accounts.models import Invitation, Membership, Role, Scope
from marketplace.accounts.services import accept_invitation
from marketplace.common import clock
from marketplace.web.forms import DEFAULT_SCOPES
from tests import builders
from tests.unit.marketplace.api.client import Api, assert_problem

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


def test_an_owners_key_invites_gives_roles_and_removes(
    mailoutbox, django_capture_on_commit_callbacks
):
    owner = builders.organisation()
    api = Api(owner)
    with django_capture_on_commit_callbacks(execute=True):
        made = api.post("/api/invitations", {"email": "Bo@example.com", "role": "member"})
    assert made.status_code == 201
    invitation = made.json()
    assert (invitation["email"], invitation["role"]) == ("bo@example.com", "member")
    [mail] = mailoutbox
    assert mail.to == ["bo@example.com"]
    secret = re.search(r"/invitations/(\S+)", mail.body)[1]
    # Only the mail has the secret.
    assert secret not in made.content.decode()
    assert [each["id"] for each in api.get("/api/invitations").json()["data"]] == [invitation["id"]]
    bo = builders.user(email="bo@example.com")
    accept_invitation(secret=secret, user=bo, now=clock.now())
    assert api.get("/api/invitations").json()["data"] == []
    member = next(
        each for each in api.get("/api/members").json()["data"] if each["user_id"] == bo.pk
    )
    address = f"/api/members/{member['id']}"
    changed = api.patch(address, {"role": "viewer"})
    assert (changed.status_code, changed.json()) == (200, member | {"role": "viewer"})
    assert api.patch(address, {"role": "king"}).status_code == 400
    assert_problem(api.delete(f"/api/invitations/{invitation['id']}"), 409, "invitation_accepted")
    assert api.delete(address).status_code == 204
    assert_problem(api.delete(address), 404, "unknown_member")
    assert [each.user_id for each in owner.memberships.all()] == [builders.owner_of(owner).pk]


def test_an_invitation_is_withdrawn_once_for_all():
    api = Api(builders.organisation())
    made = api.post("/api/invitations", {"email": "bo@example.com", "role": "member"}).json()
    for _ in range(2):
        assert api.delete(f"/api/invitations/{made['id']}").status_code == 204
    assert api.get("/api/invitations").json()["data"] == []
    assert_problem(api.delete("/api/invitations/inv_x"), 404, "unknown_invitation")
    for body in ({"email": "bo", "role": "member"}, {"email": "bo@example.com"}, {"role": "owner"}):
        assert api.post("/api/invitations", body).status_code == 400
    assert Invitation.objects.count() == 1


def test_the_last_owner_stays_and_only_owners_change_members():
    owner = builders.organisation()
    [alone] = Api(owner).get("/api/members").json()["data"]
    address = f"/api/members/{alone['id']}"
    assert_problem(Api(owner).patch(address, {"role": "member"}), 409, "last_owner")
    assert_problem(Api(owner).delete(address), 409, "last_owner")
    worker = builders.user()
    Membership.objects.create(organisation=owner, user=worker, role=Role.MEMBER)
    _, secret = builders.api_key(owner, created_by=worker)
    theirs = Api(owner)
    theirs.headers = {"Authorization": f"Bearer {secret}"}
    assert_problem(theirs.patch(address, {"role": "viewer"}), 403, "owners_only")
    assert_problem(theirs.delete(address), 403, "owners_only")
    invited = {"email": "bo@example.com", "role": "owner"}
    assert_problem(theirs.post("/api/invitations", invited), 403, "owners_only")
    # A key that may only read does not change them either, whoever made it.
    reading = Api(owner, scopes=["members:read"])
    assert_problem(reading.post("/api/invitations", invited), 403, "missing_scope")
    assert owner.memberships.get(pk=alone["id"]).role == Role.OWNER


def test_a_new_key_changes_members_only_where_its_maker_says_so():
    assert Scope.MEMBERS_WRITE not in DEFAULT_SCOPES
    assert Scope.MEMBERS_READ in DEFAULT_SCOPES
