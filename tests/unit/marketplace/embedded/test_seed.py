import json
from io import StringIO
from pathlib import Path

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


@pytest.fixture
def base_model(tmp_path: Path) -> str:
    """A model's directory with all that the market reads of it."""
    config = {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 128,
        "max_position_embeddings": 512,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return str(tmp_path)


def seed(base_model: str, **options: object) -> dict:
    out = StringIO()
    asked = {"password": "correct horse", "slot_s": 5, "json": True} | options
    call_command(SeedDemo(), base_model=base_model, stdout=out, **asked)
    return json.loads(out.getvalue())


def counts() -> list[int]:
    return [model.objects.count() for model in (User, Organisation, Provider, Zone)]


def test_the_demo_has_people_a_zone_a_provider_and_customers_with_full_wallets(base_model) -> None:
    seeded = seed(base_model, join_asks=["0.0015", "0.0027"])
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


def test_seeding_again_makes_nothing_twice_and_replaces_the_secrets(base_model) -> None:
    first = seed(base_model)
    before = counts()
    again = seed(base_model, password="another password", slot_s=60)
    assert counts() == before
    assert again["organisation_id"] == first["organisation_id"]
    assert again["available_micros"] == 250_000_000
    assert again["slot_s"] == 5
    assert User.objects.get(email="owner@example.com").check_password("another password")
    assert builders.authenticate(secret=first["api_key"], now=NOW) is None
    assert builders.authenticate(secret=again["api_key"], now=NOW) is not None
    assert ApiKey.objects.filter(revoked_at=None).count() == 2
    assert again["join_tokens"] == []


def test_a_person_reads_what_a_program_would(base_model) -> None:
    out = StringIO()
    call_command(
        SeedDemo(),
        password="correct horse",
        base_model=base_model,
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
def test_a_demo_that_cannot_be_made_says_why_and_leaves_no_trace(base_model, wrong, says) -> None:
    with pytest.raises(CommandError, match=says):
        seed(**({"base_model": base_model} | wrong))
    assert counts() == [0, 0, 0, 0]
