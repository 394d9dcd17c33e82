"""Keys: shown once, stored as a hash, refused in every way they can be wrong."""

from datetime import timedelta

import pytest

from marketplace.accounts import api_keys
from marketplace.accounts.api_keys import create_api_key, revoke_api_key
from marketplace.accounts.models import ApiKey, Membership, Role, Scope, User
from marketplace.common.errors import NotAllowed, UserError
from tests import builders
from tests.builders import NOW

pytestmark = pytest.mark.django_db


@pytest.fixture
def organisation():
    return builders.organisation()


def test_a_key_opens_its_organisation_and_only_its_hash_is_kept(organisation) -> None:
    key, secret = builders.api_key(organisation, scopes=["bids:write", "bids:read"])
    assert secret.startswith(f"{key.prefix}_")
    assert key.prefix.startswith("ft_")
    assert len(secret) > 50
    stored = ApiKey.objects.filter(pk=key.pk).values().get()
    assert not any(secret in str(value) for value in stored.values())
    found = builders.authenticate(secret=secret, now=NOW)
    assert found is not None
    assert found == key
    assert found.organisation == organisation
    assert found.scopes == ["bids:read", "bids:write"]


def test_a_secret_that_is_almost_right_opens_nothing(organisation) -> None:
    key, secret = builders.api_key(organisation)
    _, other = builders.api_key(organisation)
    hidden_of_other = other.split("_", 2)[2]
    wrong = [
        "",
        "_",
        "ft_",
        key.prefix,
        f"{key.prefix}_",
        secret[:-1],
        secret + "x",
        secret.upper(),
        f"{key.prefix}_{hidden_of_other}",
        key.secret_hash,
        f"{key.prefix}_\x00",
        "ft_é_é",
        "x" * 100_000,
    ]
    assert [builders.authenticate(secret=attempt, now=NOW) for attempt in wrong] == [None] * 13
    key.refresh_from_db()
    assert key.last_used_at is None


def test_a_key_ends_when_it_expires_is_revoked_or_its_maker_is_locked_out(organisation) -> None:
    owner = builders.owner_of(organisation)
    expiring, secret = create_api_key(
        organisation=organisation,
        created_by=owner,
        name="nightly",
        scopes=Scope.values,
        now=NOW,
        expires_at=NOW + timedelta(days=1),
    )
    before = NOW + timedelta(days=1, microseconds=-1)
    assert builders.authenticate(secret=secret, now=before) == expiring
    assert builders.authenticate(secret=secret, now=NOW + timedelta(days=1)) is None

    key, secret = builders.api_key(organisation)
    other = builders.organisation()
    revoke_api_key(organisation=other, key_id=key.pk, revoked_by=builders.owner_of(other), now=NOW)
    assert builders.authenticate(secret=secret, now=NOW) == key
    for at in (NOW, NOW + timedelta(days=1)):
        revoke_api_key(organisation=organisation, key_id=key.pk, revoked_by=owner, now=at)
    assert builders.authenticate(secret=secret, now=NOW) is None
    key.refresh_from_db()
    assert key.revoked_at == NOW

    _, secret = builders.api_key(organisation, created_by=owner)
    owner.is_active = False
    owner.save()
    assert builders.authenticate(secret=secret, now=NOW) is None


def test_a_key_whose_maker_left_the_organisation_opens_nothing(organisation) -> None:
    _, secret = builders.api_key(organisation)
    organisation.memberships.all().delete()
    assert builders.authenticate(secret=secret, now=NOW) is None


def test_a_member_ends_own_keys_and_only_owners_end_those_of_others(organisation) -> None:
    member = builders.user()
    Membership.objects.create(organisation=organisation, user=member, role=Role.MEMBER)
    of_owner, of_member = (
        builders.api_key(organisation, created_by=maker)[0]
        for maker in (builders.owner_of(organisation), member)
    )

    def revoke(key: ApiKey, revoked_by: User) -> None:
        revoke_api_key(organisation=organisation, key_id=key.pk, revoked_by=revoked_by, now=NOW)

    with pytest.raises(NotAllowed) as refused:
        revoke(of_owner, member)
    assert refused.value.code == "owners_only"
    assert not ApiKey.objects.exclude(revoked_at=None).exists()
    revoke(of_member, member)
    assert ApiKey.objects.get(revoked_at=None) == of_owner
    revoke(of_owner, builders.owner_of(organisation))
    assert not ApiKey.objects.filter(revoked_at=None).exists()


def test_a_stranger_makes_no_key(organisation) -> None:
    with pytest.raises(NotAllowed) as refused:
        builders.api_key(organisation, created_by=builders.user())
    assert refused.value.code == "not_a_member"
    assert ApiKey.objects.count() == 0


def test_a_busy_key_writes_its_last_use_once_a_minute(
    organisation, django_assert_num_queries
) -> None:
    key, secret = builders.api_key(organisation)
    with django_assert_num_queries(2):
        builders.authenticate(secret=secret, now=NOW)
    with django_assert_num_queries(1):
        builders.authenticate(secret=secret, now=NOW + timedelta(seconds=59))
    with django_assert_num_queries(2):
        builders.authenticate(secret=secret, now=NOW + timedelta(seconds=60))
    key.refresh_from_db()
    assert key.last_used_at == NOW + timedelta(seconds=60)


@pytest.mark.parametrize(
    ("terms", "code"),
    [
        ({"name": " "}, "invalid_name"),
        ({"scopes": []}, "invalid_scopes"),
        ({"scopes": ["bids:write", "world:rule"]}, "invalid_scopes"),
        ({"expires_at": NOW}, "invalid_expiry"),
    ],
)
def test_a_key_that_makes_no_sense_is_refused(organisation, terms, code: str) -> None:
    asked = {"name": "ci", "scopes": ["bids:read"], "expires_at": None} | terms
    with pytest.raises(UserError) as refused:
        create_api_key(
            organisation=organisation,
            created_by=builders.owner_of(organisation),
            now=NOW,
            **asked,
        )
    assert refused.value.code == code
    assert refused.value.param == code.removeprefix("invalid_").replace("expiry", "expires_at")
    assert ApiKey.objects.count() == 0


def test_an_organisation_has_so_many_live_keys_and_no_more(monkeypatch):
    monkeypatch.setattr(api_keys, "API_KEYS_MAX", 2)
    made = builders.organisation()
    first, _ = builders.api_key(made)
    builders.api_key(made)
    with pytest.raises(UserError) as refused:
        builders.api_key(made)
    assert refused.value.code == "too_many_api_keys"
    revoke_api_key(organisation=made, key_id=first.pk, revoked_by=builders.owner_of(made), now=NOW)
    builders.api_key(made)
    assert ApiKey.objects.filter(organisation=made, revoked_at=None).count() == 2
