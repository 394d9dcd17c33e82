"""People and organisations: sign-up, invitations, membership."""

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction

from marketplace.accounts import services
from marketplace.accounts.models import Invitation, Membership, Organisation, Role, User
from marketplace.accounts.selectors import get_current_organisation
from marketplace.accounts.services import (
    accept_invitation,
    create_invitation,
    create_organisation,
    end_membership,
    revoke_invitation,
)
from marketplace.common import clock
from marketplace.common.errors import Conflict, NotAllowed, NotFound, UserError
from tests import builders
from tests.builders import NOW, PASSWORD
from tests.unit.marketplace.common.threads import at_once

pytestmark = pytest.mark.django_db


def test_a_new_person_owns_a_personal_organisation() -> None:
    person = builders.user(email="Ada.L@Example.com", name="Ada")
    assert person.email == "ada.l@example.com"
    assert person.check_password(PASSWORD)
    assert not person.is_staff
    membership = Membership.objects.get(user=person)
    assert membership.role == Role.OWNER
    assert membership.organisation.personal_for == person
    assert membership.organisation.name == "Ada"
    assert get_current_organisation(user=person) == membership.organisation


def test_the_command_line_makes_people_with_organisations_too() -> None:
    root = User.objects.create_superuser("Root@Example.com", PASSWORD)
    assert (root.email, root.is_operator, root.is_staff, root.is_superuser) == (
        "root@example.com",
        True,
        True,
        True,
    )
    assert get_current_organisation(user=root).personal_for == root
    assert User.objects.get_by_natural_key("ROOT@example.com") == root
    with pytest.raises(ValueError, match="email"):
        User.objects.create_user("")


def test_an_email_address_is_one_person_in_any_case() -> None:
    builders.user(email="ada@example.com")
    with pytest.raises(IntegrityError), transaction.atomic():
        builders.user(email="ADA@example.com")
    with pytest.raises(IntegrityError, match="lower_case"), transaction.atomic():
        User.objects.create(email="Eve@example.com")
    assert User.objects.count() == 1
    assert Organisation.objects.count() == 1


def test_people_of_the_same_name_get_organisations_of_different_slugs() -> None:
    for host in ("a.example", "b.example"):
        builders.user(email=f"ada@{host}")
    slugs = list(Organisation.objects.values_list("slug", flat=True))
    assert len(set(slugs)) == 2
    assert all(slug.startswith("ada-") for slug in slugs)


def test_a_name_without_a_letter_of_the_alphabet_still_makes_a_slug() -> None:
    made = create_organisation(name="株式会社", created_by=builders.user(), now=NOW)
    assert made.slug
    assert "_" not in made.slug
    assert not made.slug.startswith("-")


@pytest.mark.parametrize("name", ["", "   ", "x" * 121])
def test_an_organisation_needs_a_name_of_a_sensible_length(name: str) -> None:
    person = builders.user()
    with pytest.raises(UserError) as refused:
        create_organisation(name=name, created_by=person, now=NOW)
    assert (refused.value.code, refused.value.param) == ("invalid_name", "name")
    assert Organisation.objects.count() == 1


def test_one_acts_for_ones_own_organisation_unless_one_names_another() -> None:
    person = builders.user()
    other = builders.organisation(owner=person)
    foreign = builders.organisation()
    assert get_current_organisation(user=person).personal_for == person
    assert get_current_organisation(user=person, organisation_id=other.pk) == other
    for named in (foreign.pk, "org_unknown", ""):
        with pytest.raises(NotAllowed) as refused:
            get_current_organisation(user=person, organisation_id=named)
        assert refused.value.code == "not_a_member"


def test_an_invitation_makes_a_member_once() -> None:
    owner = builders.user()
    organisation = builders.organisation(owner=owner)
    invited = builders.user(email="bo@example.com")
    invitation, secret = create_invitation(
        organisation=organisation, email="Bo@example.com", role="member", invited_by=owner, now=NOW
    )
    assert secret not in (invitation.token_hash, invitation.pk)
    first = accept_invitation(secret=secret, user=invited, now=NOW)
    again = accept_invitation(secret=secret, user=invited, now=NOW + timedelta(days=99))
    assert first == again
    assert (first.organisation, first.role) == (organisation, Role.MEMBER)
    invitation.refresh_from_db()
    assert (invitation.accepted_by, invitation.accepted_at) == (invited, NOW)


@pytest.mark.parametrize("spoiled", ["secret", "address", "time", "revoked"])
def test_an_invitation_that_is_not_good_lets_nobody_in(spoiled: str) -> None:
    owner = builders.user()
    organisation = builders.organisation(owner=owner)
    invited = builders.user(email="bo@example.com")
    invitation, secret = create_invitation(
        organisation=organisation,
        email="eve@example.com" if spoiled == "address" else "bo@example.com",
        role="member",
        invited_by=owner,
        now=NOW,
    )
    if spoiled == "revoked":
        revoke_invitation(
            organisation=organisation,
            invitation_id=invitation.pk,
            revoked_by=builders.owner_of(organisation),
            now=NOW,
        )
    with pytest.raises(NotFound) as refused:
        accept_invitation(
            secret=secret + "x" if spoiled == "secret" else secret,
            user=invited,
            now=NOW + timedelta(days=14 if spoiled == "time" else 13),
        )
    assert refused.value.code == "invitation_not_found"
    assert not organisation.memberships.filter(user=invited).exists()


def test_an_accepted_invitation_cannot_be_taken_back_or_by_another() -> None:
    owner = builders.user()
    organisation = builders.organisation(owner=owner)
    invitation, secret = create_invitation(
        organisation=organisation, email="bo@example.com", role="owner", invited_by=owner, now=NOW
    )
    accept_invitation(secret=secret, user=builders.user(email="bo@example.com"), now=NOW)
    with pytest.raises(Conflict, match="Remove the member instead"):
        revoke_invitation(
            organisation=organisation,
            invitation_id=invitation.pk,
            revoked_by=builders.owner_of(organisation),
            now=NOW,
        )
    invitation.refresh_from_db()
    assert invitation.revoked_at is None
    with pytest.raises(NotFound):
        accept_invitation(secret=secret, user=builders.user(), now=NOW)


def test_who_was_taken_out_does_not_come_back_by_the_old_invitation() -> None:
    owner = builders.user()
    organisation = builders.organisation(owner=owner)
    bo = builders.user(email="bo@example.com")
    terms = {"organisation": organisation, "email": bo.email, "invited_by": owner, "now": NOW}
    _, secret = create_invitation(role="owner", **terms)
    accept_invitation(secret=secret, user=bo, now=NOW)
    end_membership(organisation=organisation, user=bo, ended_by=owner)
    with pytest.raises(NotFound):
        accept_invitation(secret=secret, user=bo, now=NOW)
    assert not organisation.memberships.filter(user=bo).exists()
    # Only another invitation lets them in again.
    _, another = create_invitation(role="viewer", **terms)
    assert accept_invitation(secret=another, user=bo, now=NOW).role == Role.VIEWER


@pytest.mark.parametrize(
    ("email", "role", "code"),
    [
        ("nonsense", "member", "invalid_email"),
        ("bo@example.com", "king", "invalid_role"),
        ("ada@example.com", "member", "already_a_member"),
    ],
)
def test_an_invitation_that_makes_no_sense_is_refused(email: str, role: str, code: str) -> None:
    owner = builders.user(email="ada@example.com")
    organisation = builders.organisation(owner=owner)
    with pytest.raises(UserError) as refused:
        create_invitation(
            organisation=organisation, email=email, role=role, invited_by=owner, now=NOW
        )
    assert refused.value.code == code
    assert Invitation.objects.count() == 0


def test_invitations_are_no_way_to_send_endless_mail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "INVITATIONS_MAX", 3)
    owner = builders.user()
    organisation = builders.organisation(owner=owner)
    for number in range(4):
        terms = {"organisation": organisation, "invited_by": owner, "now": clock.now()}
        if number == 3:
            with pytest.raises(Conflict, match="3 invitations a day") as refused:
                create_invitation(email="x@example.com", role="viewer", **terms)
            assert refused.value.code == "too_many_invitations"
            break
        made, _ = create_invitation(email=f"x{number}@example.com", role="viewer", **terms)
        revoke_invitation(
            organisation=organisation, invitation_id=made.pk, revoked_by=owner, now=clock.now()
        )
    create_invitation(
        organisation=organisation,
        email="x@example.com",
        role="viewer",
        invited_by=owner,
        now=clock.now() + timedelta(days=1),
    )


def test_only_owners_invite_and_send_others_away() -> None:
    owner, member = builders.user(), builders.user()
    organisation = builders.organisation(owner=owner)
    Membership.objects.create(organisation=organisation, user=member, role=Role.MEMBER)
    for attempt in (
        lambda: create_invitation(
            organisation=organisation,
            email="bo@example.com",
            role="owner",
            invited_by=member,
            now=NOW,
        ),
        lambda: end_membership(organisation=organisation, user=owner, ended_by=member),
    ):
        with pytest.raises(NotAllowed) as refused:
            attempt()
        assert refused.value.code == "owners_only"
    end_membership(organisation=organisation, user=member, ended_by=member)
    assert list(organisation.members.all()) == [owner]


def test_the_last_owner_stays() -> None:
    owner = builders.user()
    organisation = builders.organisation(owner=owner)
    with pytest.raises(Conflict) as refused:
        end_membership(organisation=organisation, user=owner, ended_by=owner)
    assert refused.value.code == "last_owner"
    assert list(organisation.members.all()) == [owner]


@pytest.mark.django_db(transaction=True)
def test_of_two_owners_leaving_at_once_one_stays() -> None:
    owners = [builders.user(), builders.user()]
    organisation = builders.organisation(owner=owners[0])
    Membership.objects.create(organisation=organisation, user=owners[1], role=Role.OWNER)
    results = at_once(
        [lambda o=o: end_membership(organisation=organisation, user=o, ended_by=o) for o in owners]
    )
    assert sorted(type(result).__name__ for result in results) == ["Conflict", "NoneType"]
    assert organisation.memberships.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_personal_organisation_asked_for_at_once_is_made_once() -> None:
    person = User(email="ada@example.com")
    person.save()
    results = at_once([lambda: Organisation.objects.get_or_create_personal(person)] * 6)
    assert len({organisation.pk for organisation in results}) == 1
    assert Organisation.objects.count() == Membership.objects.count() == 1
