import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from marketplace.accounts.models import ApiKey, Organisation, User
from marketplace.accounts.selectors import get_current_organisation
from marketplace.embedded.seed_command import SeedDemo
from marketplace.fleet.models import JoinToken, Provider, Zone
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.selectors import get_wallet
from tests import builders
from tests.builders import NOW

pytestmark = pytest.mark.django_db


#: What the market reads of it lies beside it; of another model a process with PyTorch reads it.
BUNDLED = "bundled:finetender-tiny"


def seed(base_model: str = BUNDLED, **options: object) -> dict:
    out = StringIO()
    asked = {"password": "correct horse", "slot_s": 5, "json": True} | options
    call_command(SeedDemo(), base_model=base_model, stdout=out, **asked)
    return json.loads(out.getvalue())


def counts() -> list[int]:
    return [model.objects.count() for model in (User, Organisation, Provider, Zone)]


def test_the_demo_has_people_a_zone_a_provider_and_customers_with_full_wallets() -> None:
    seeded = seed(join_asks=["0.0015", "0.0027"])
    people = {role: User.objects.get(email=email) for role, email in seeded["people"].items()}
    assert all(person.check_password("correct horse") for person in people.values())
    assert [role for role, person in people.items() if person.is_operator] == ["operator"]
    northwind = get_current_organisation(
        user=people["owner"], organisation_id=seeded["organisation_id"]
    )
    assert northwind.name == "Northwind Labs"
    assert get_wallet(organisation=northwind).available_micros == 250_000_000
    assert seeded["available_micros"] == 250_000_000
    assert Provider.objects.get().organisation.members.get() == people["provider"]
    assert Provider.objects.get().organisation.is_provider
    zone = Zone.objects.get()
    assert (zone.name, zone.slot_s, seeded["slot_s"]) == ("finetender-tiny", 5, 5)
    assert builders.authenticate(secret=seeded["api_key"], now=NOW).organisation == northwind
    neighbour = builders.authenticate(secret=seeded["neighbour_api_key"], now=NOW).organisation
    assert neighbour.name == "Harbour Analytics"
    assert get_wallet(organisation=neighbour).available_micros == 250_000_000
    asks = JoinToken.objects.order_by("ask_micros").values_list("ask_micros", flat=True)
    assert list(asks) == [1500, 2700]
    assert len(set(seeded["join_tokens"])) == JoinToken.objects.count() == 2
    assert check_ledger().balanced


def test_seeding_again_makes_nothing_twice_and_replaces_the_secrets() -> None:
    first = seed()
    before = counts()
    again = seed(password="another password", slot_s=60)
    assert counts() == before
    assert again["organisation_id"] == first["organisation_id"]
    assert again["available_micros"] == 250_000_000
    assert again["slot_s"] == 5
    assert User.objects.get(email="owner@example.com").check_password("another password")
    assert builders.authenticate(secret=first["api_key"], now=NOW) is None
    assert builders.authenticate(secret=again["api_key"], now=NOW) is not None
    assert ApiKey.objects.filter(revoked_at=None).count() == 2
    assert again["join_tokens"] == []


def test_a_person_reads_what_a_program_would() -> None:
    out = StringIO()
    call_command(
        SeedDemo(),
        password="correct horse",
        base_model=BUNDLED,
        join_asks=["0.0015"],
        stdout=out,
    )
    text = out.getvalue()
    for said in ("owner@example.com", "correct horse", "$250.00", "10 s a slot", "ft_", "join"):
        assert said in text


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"password": None}, "password"),
        ({"grant": "-5"}, "negative"),
        ({"base_model": "bundled:nothing-of-the-kind"}, "bundled"),
    ],
)
def test_a_demo_that_cannot_be_made_says_why_and_leaves_no_trace(wrong, says) -> None:
    with pytest.raises(CommandError, match=says):
        seed(**wrong)
    assert counts() == [0, 0, 0, 0]
