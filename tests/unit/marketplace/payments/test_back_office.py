"""An operator grants a balance from a form."""

import re

import pytest

from marketplace.payments.models import Entry
from marketplace.payments.selectors import get_wallet
from tests import builders

pytestmark = pytest.mark.django_db

PAGE = "/admin/payments/entry/add/"


def reference_in(page: bytes) -> str:
    found = re.search(rb'name="reference" value="(grant_[^"]+)"', page)
    assert found is not None
    return found.group(1).decode()


def test_a_form_sent_twice_grants_once(client) -> None:
    operator, organisation = builders.operator(), builders.organisation()
    client.force_login(operator)
    form = {
        "organisation": organisation.pk,
        "dollars": "12.50",
        "memo": "Welcome",
        "reference": reference_in(client.get(PAGE).content),
    }
    for _ in range(2):
        assert client.post(PAGE, form).status_code == 302
    assert get_wallet(organisation=organisation).available_micros == 12_500_000
    entry = Entry.objects.get()
    assert (entry.kind, entry.memo, entry.actor) == ("grant", "Welcome", operator)
    assert client.get(f"/admin/payments/entry/{entry.pk}/change/").status_code == 200


@pytest.mark.parametrize("dollars", ["", "0", "-3", "NaN", "1e99", "0.0000001"])
def test_an_amount_that_is_none_is_shown_again_and_grants_nothing(client, dollars: str) -> None:
    client.force_login(builders.operator())
    form = {"organisation": builders.organisation().pk, "dollars": dollars, "reference": "g"}
    answer = client.post(PAGE, form)
    assert answer.status_code == 200
    assert "dollars" in answer.context["adminform"].form.errors
    assert Entry.objects.count() == 0


def test_entries_are_neither_changed_nor_deleted_and_others_do_not_grant(client) -> None:
    operator = builders.operator()
    organisation = builders.organisation(usd="1")
    entry = Entry.objects.get()
    client.force_login(operator)
    assert client.post(f"/admin/payments/entry/{entry.pk}/delete/").status_code == 403
    assert client.post(f"/admin/payments/entry/{entry.pk}/change/", {}).status_code == 403
    client.force_login(builders.owner_of(organisation))
    assert client.get(PAGE).status_code == 302
    assert Entry.objects.count() == 1
