"""Outside vendors: data by a signed link that ends, deliveries signed, checked and refused."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.test import Client

from marketplace.auction.preparations import conclude_preparations
from marketplace.common.errors import MarketFault, NotAllowed, UserError
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.selectors import get_earnings
from marketplace.vendors.handover import GRACE, make_link
from marketplace.vendors.kinds.outside import OutsideWork
from marketplace.vendors.models import DataAccess, Preparation, PreparationStatus, VendorKind
from marketplace.vendors.signatures import create_secret, sign_message
from tests import builders
from tests import market_builders as market
from tests import vendor_builders as build
from tests.builders import NOW
from tests.pages import read_download, read_page
from tests.vendor_builders import chat, clock, prepare_next, traced

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _at_now():
    with time_machine.travel(NOW, tick=False):
        yield


@pytest.fixture
def zone():
    made = build.zone()
    market.node(made)
    return made


@pytest.fixture
def owner():
    return builders.organisation(usd="10")


@pytest.fixture
def vendor(zone):
    return build.vendor(zone, "Far", kind=VendorKind.OUTSIDE)


def link_of(work: Preparation) -> Any:
    user = builders.owner_of(work.vendor.organisation)
    link = make_link(preparation=work, asked_by=user, now=NOW)
    return link.data_url, link.delivery_url


def path_of(url: str) -> str:
    return "/api/" + url.partition("/api/")[2]


def put(url: str, body: bytes, work: Preparation, secret: str | None = None) -> Any:
    headers = sign_message(secret or work.vendor.endpoint_secret, body, message_id=work.pk, now=NOW)
    return Client().put(path_of(url), body, content_type="application/jsonl", headers=dict(headers))


def write(*rows: tuple[int, str]) -> bytes:
    return "\n".join(traced(number, row) for number, row in rows).encode()


GOOD = write(*((n + 1, chat(n)) for n in range(4)))


def test_data_are_there_for_a_vendor_that_is_told_and_for_no_other(
    zone, owner, vendor, monkeypatch
):
    def break_off(*_, **__):
        raise MarketFault("The worker dies.")

    with monkeypatch.context() as broken:
        broken.setattr(OutsideWork, "announce", break_off)
        assert build.sell_few(owner, zone).handed_over_at is None
    assert prepare_next(clock=lambda: clock() + timedelta(seconds=10))
    assert Preparation.objects.get().handed_over_at is not None


def test_the_data_go_by_a_link_and_come_back_prepared_and_each_access_is_noted(zone, owner, vendor):
    work = build.sell_few(owner, zone)
    data_url, delivery_url = link_of(work)
    reply = Client().get(path_of(data_url))
    left = [json.loads(line) for line in read_download(reply).splitlines()]
    assert left[0] == {"row_id": 1} | json.loads(chat(0))
    assert left[4] == {"row_id": 5, "raw": "not a row"}
    assert put(delivery_url, GOOD, work).status_code == 202
    assert put(delivery_url, GOOD, work).status_code == 409
    assert prepare_next(clock=clock)
    work.refresh_from_db()
    assert (work.status, work.rows_out) == (PreparationStatus.ACCEPTED, 4)
    assert work.comparison["kept"] == 4
    with work.prepared.file.open() as rows:
        assert rows.read() == "".join(chat(n) + "\n" for n in range(4)).encode()
    with work.origins.open() as origins:
        assert [json.loads(line)["row_id"] for line in origins] == [1, 2, 3, 4]
    kinds = list(DataAccess.objects.order_by("pk").values_list("kind", "address"))
    assert kinds == [("link", ""), ("download", "127.0.0.1")]
    # The work is done: the link is dead.
    assert Client().get(path_of(data_url)).status_code == 404
    assert put(delivery_url, GOOD, work).status_code == 404
    assert conclude_preparations(now=clock()) == 1
    assert get_earnings(organisation=vendor.organisation).pending_micros == 20_000
    assert check_ledger().balanced


def test_only_the_vendor_gets_a_link_and_it_ends_with_the_time_for_the_work(zone, owner, vendor):
    work = build.sell_few(owner, zone)
    viewer = builders.user()
    vendor.organisation.memberships.create(user=viewer, role="viewer")
    for stranger in (builders.user(), builders.owner_of(owner), builders.operator(), viewer):
        with pytest.raises(NotAllowed):
            make_link(preparation=work, asked_by=stranger, now=NOW)
    data_url, _ = link_of(work)
    path = path_of(data_url)
    cut = path.split("/")
    token = cut[-2]
    forged = "/".join([*cut[:-2], token[:-1] + ("A" if token[-1] != "A" else "B"), cut[-1]])
    assert Client().get(forged).status_code == 404
    with time_machine.travel(work.due_at + GRACE, tick=False):
        assert Client().get(path).status_code == 404
    assert DataAccess.objects.filter(kind="download").count() == 0


def test_masked_data_leave_without_what_was_to_be_hidden(zone, owner, vendor):
    text = "\n".join(
        [
            chat(1, price="Write to jane@example.com, call 030 901820."),
            "jane@example.com: not a row",
        ]
    )
    wish = {"kinds": ["outside"], "mask_personal_data": True, "phone_regions": ["US"]}
    data = build.upload(owner, zone, text, faulty=1)
    build.sell(owner, zone, data=data, epochs=1, preparation=wish)
    assert prepare_next(clock=clock)
    work = Preparation.objects.select_related("vendor").get()
    left = read_download(Client().get(path_of(link_of(work)[0]))).decode()
    assert "jane" not in left
    assert left.count("[EMAIL_1]") == 2
    # A number as written in Germany, which was not asked for.
    assert left.count("030 901820") == 1
    assert DataAccess.objects.filter(is_masked=True).count() == 2


def test_a_delivery_that_is_not_signed_by_its_vendor_is_refused(zone, owner, vendor):
    work = build.sell_few(owner, zone)
    _, url = link_of(work)
    assert put(url, GOOD, work, create_secret()).status_code == 403
    headers = sign_message(vendor.endpoint_secret, b"else", message_id=work.pk, now=NOW)
    altered = Client().put(
        path_of(url), GOOD, content_type="application/jsonl", headers=dict(headers)
    )
    assert altered.status_code == 403
    assert Client().post(path_of(url), GOOD, content_type="text/plain").status_code == 405
    work.refresh_from_db()
    assert work.submitted_at is None


HOSTILE = {
    "an archive": (b"PK\x03\x04" + b"\x00" * 4000, "archive"),
    "a compressed bomb": (b"\x1f\x8b\x08" + b"\x00" * 4000, "compressed"),
    "another schema": (b'{"price": 3}\n', "no usable rows"),
    "one list": (f"[{chat(1)}]".encode(), "JSON list"),
    "more rows than were sold": ("\n".join(map(chat, range(6))).encode(), "5 were sold"),
    "more work than was sold": (
        write(*((n + 1, chat(n, price="word " * 400)) for n in range(4))),
        "work for at most",
    ),
    "rows of another kind": (
        b"\n".join(
            json.dumps({"prompt": f"{n}?", "chosen": "yes", "rejected": "no"}).encode()
            for n in range(4)
        ),
        "does not train on",
    ),
    "labels for a model that writes": (b'{"text": "one", "label": "a"}\n' * 3, "does not train on"),
    "a stranger's rows": (
        write((1, chat(90))),
        "1 of its 1 rows cannot be traced",
    ),
    "rows without ids": ("\n".join(map(chat, range(4))).encode(), "4 of its 4 rows cannot"),
    "one row twice": (write((1, chat(0)), (1, chat(0))), "1 of its 2 rows cannot be traced"),
    "other answers to the same questions": (
        write(*((n + 1, chat(n, price="Ask our bank.")) for n in range(4))),
        "say something else",
    ),
    "a row too few times": (write((2, chat(1))), "1 of the original's 4"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_delivery_comes_back_and_may_be_put_right(zone, owner, vendor, name):
    work = build.sell_few(owner, zone)
    content, reason = HOSTILE[name]
    _, url = link_of(work)
    assert put(url, content, work).status_code == 202
    assert prepare_next(clock=clock)
    answer = Client().get(path_of(url)).json()
    assert answer["is_being_checked"] is False
    assert reason in answer["refusals"][0]["reason"]
    work.refresh_from_db()
    assert work.status == PreparationStatus.WORKING
    assert put(url, GOOD, work).status_code == 202


def test_a_huge_delivery_is_cut_off_and_five_refusals_end_the_work(zone, owner, vendor):
    work = build.sell_few(owner, zone)
    _, url = link_of(work)
    assert put(url, b"x" * 2_000_000, work).status_code == 413
    assert put(url, b"", work).status_code == 400
    for _ in range(5):
        assert put(url, b'{"price": 3}\n', work).status_code == 202
        assert prepare_next(clock=clock)
    assert conclude_preparations(now=clock()) == 1
    work.refresh_from_db()
    assert work.status == PreparationStatus.FAILED
    assert "could not be used" in work.missed[0]["reason"]


def test_what_fails_the_rule_five_times_goes_to_the_owner(zone, owner, vendor):
    work = build.sell_few(owner, zone)
    _, url = link_of(work)
    for count in range(1, 6):
        assert put(url, write((2, chat(1))), work).status_code == 202
        assert prepare_next(clock=clock)
        work.refresh_from_db()
        assert len(work.refusals) == min(count, 4)
    assert (work.status, work.rows_out) == (PreparationStatus.DELIVERED, 1)
    assert "1 of the original's 4 different usable rows" in work.objection
    client = Client()
    client.force_login(builders.owner_of(owner))
    page = read_page(client.get(f"/jobs/{work.job_id}/data"))
    assert work.objection.replace("'", "&#x27;") in page
    client.post(f"/jobs/{work.job_id}/preparation/accept")
    work.refresh_from_db()
    assert work.status == PreparationStatus.ACCEPTED


def test_no_vendor_of_another_kind_sees_the_data(zone, owner, vendor):
    with pytest.raises(UserError, match="No vendor prepares such data"):
        build.sell(owner, zone, preparation={"kinds": ["automatic", "human"]})
    with pytest.raises(UserError, match="No vendor prepares such data"):
        build.sell(owner, zone, preparation={"kinds": ["outside"], "skills": ["translation"]})
