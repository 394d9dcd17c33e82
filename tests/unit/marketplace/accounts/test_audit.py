"""Changes of who may do what are on record, with who made them."""

import pytest
from django.apps import apps

from marketplace.accounts.api_keys import revoke_api_key
from marketplace.accounts.models import ApiKey, Membership, Role, User
from marketplace.accounts.services import change_password
from tests import builders
from tests.builders import NOW, PASSWORD

pytestmark = pytest.mark.django_db


def changes(name: str, row_id: str) -> list:
    model = apps.get_model("accounts", f"{name}Change")
    return list(model.objects.filter(pgh_obj_id=row_id).order_by("pgh_id"))


def test_making_someone_an_operator_is_on_record_with_who_did_it(client) -> None:
    root = User.objects.create_superuser("root@example.com", PASSWORD)
    person = builders.user(email="ada@example.com")
    client.force_login(root)
    form = {
        "email": "ada@example.com",
        "name": "",
        "is_active": "on",
        "is_operator": "on",
        "memberships-TOTAL_FORMS": "0",
        "memberships-INITIAL_FORMS": "0",
    }
    answer = client.post(f"/admin/accounts/user/{person.pk}/change/", form)
    assert answer.status_code == 302
    made, promoted = changes("User", person.pk)
    assert (made.pgh_label, made.is_operator, made.pgh_context) == ("insert", False, None)
    assert (promoted.pgh_label, promoted.is_operator) == ("update", True)
    assert promoted.pgh_context.metadata["user"] == root.pk


def test_a_key_is_on_record_when_made_and_revoked_and_not_when_used() -> None:
    organisation = builders.organisation()
    key, secret = builders.api_key(organisation)
    builders.authenticate(secret=secret, now=NOW)
    owner = builders.owner_of(organisation)
    revoke_api_key(organisation=organisation, key_id=key.pk, revoked_by=owner, now=NOW)
    assert [(c.pgh_label, c.revoked_at) for c in changes("ApiKey", key.pk)] == [
        ("insert", None),
        ("update", NOW),
    ]


def test_memberships_are_on_record_to_their_end() -> None:
    organisation = builders.organisation()
    membership = Membership.objects.create(
        organisation=organisation, user=builders.user(), role=Role.MEMBER
    )
    row_id = membership.pk
    Membership.objects.filter(pk=row_id).update(role=Role.OWNER)
    membership.delete()
    assert [(c.pgh_label, c.role) for c in changes("Membership", row_id)] == [
        ("insert", "member"),
        ("update", "owner"),
        ("delete", "owner"),
    ]


def test_no_record_holds_a_secret() -> None:
    person = builders.user()
    change_password(user=person, password="another secret")
    assert len(changes("User", person.pk)) == 1
    for model, secret in ((User, "password"), (ApiKey, "secret_hash")):
        record = apps.get_model("accounts", f"{model.__name__}Change")
        assert secret not in {field.name for field in record._meta.get_fields()}
