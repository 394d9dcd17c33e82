"""The plan of a preparation: seen before the sale, confirmed, and what is sold and done by it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import time_machine
from django.test import Client

from marketplace.auction.models import Bid
from marketplace.auction.preparations import conclude_preparations
from marketplace.common.durable.kinds import get_kinds
from marketplace.common.durable.run import run_due_work
from marketplace.common.errors import Conflict, UserError
from marketplace.vendors.acceptance import judge_by_rule
from marketplace.vendors.models import DataPlan, Preparation, PreparationStatus, VendorKind
from marketplace.vendors.plans import MAKE, confirm_plan, request_plan
from marketplace.vendors.wishes import parse_wish
from tests import builders
from tests import market_builders as market
from tests import vendor_builders as build
from tests.builders import NOW
from tests.vendor_builders import chat, clock, prepare_next, sell, upload
from workers.protocol.job_terms import PreparationWish

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _at_now():
    with time_machine.travel(NOW, tick=False):
        yield


@pytest.fixture
def zone():
    made = build.zone()
    market.node(made)
    build.vendor(made)
    return made


@pytest.fixture
def owner():
    return builders.organisation(usd="10")


def plan_for(data: Any, zone: Any, **wish: Any) -> DataPlan:
    plan = request_plan(dataset=data, zone=zone, wish=PreparationWish(**wish), now=NOW)
    run_due_work(get_kinds()[MAKE], clock=clock)
    plan.refresh_from_db()
    return plan


def confirm(plan: DataPlan, owner: Any) -> str:
    return confirm_plan(plan=plan, confirmed_by=builders.owner_of(owner), now=NOW).pk


def by(plan_id: str, **wish: Any) -> dict[str, Any]:
    return {"plan": plan_id, "validation_share": 0.0} | wish


#: Four rows of which the program reads one: three have a text that nothing explains.
ODD = "\n".join(
    [
        chat(0),
        *(
            json.dumps({"prompt": f"{n} francs?", "completion": "Yes, sir.", "notiz": "In haste."})
            for n in range(3)
        ),
    ]
)


def test_a_job_by_a_plan_costs_what_the_rows_that_stay_cost_and_is_done_as_planned(zone, owner):
    data = upload(owner, zone)
    plan = plan_for(data, zone)
    assert (plan.rows, plan.problem) == (50, "")
    assert [(s["rows_before"], s["rows_after"]) for s in plan.plan["steps"]] == [
        (100, 100),
        (100, 100),
        (100, 100),
        (100, 50),
        (50, 50),
    ]
    assert plan.plan["steps"][0]["tokens_before"] > plan.plan["steps"][-1]["tokens_after"] > 0
    bid, _ = sell(owner, zone, data=data, preparation=by(confirm(plan, owner)))
    # Without a plan it is three cells at $0.32, of which one goes back afterwards.
    assert (bid.payment_micros, len(bid.cells)) == (220_000, 2)
    made = Preparation.objects.get()
    assert made.rows_bound == 50
    assert prepare_next(clock=clock)
    assert conclude_preparations(now=clock()) == 1
    made.refresh_from_db()
    assert (made.status, made.rows_out, made.refund_micros) == (PreparationStatus.ACCEPTED, 50, 0)


def test_a_plan_is_made_once_for_the_same_settings_and_again_for_others(zone, owner):
    data = upload(owner, zone)
    first = plan_for(data, zone)
    assert plan_for(data, zone) == first
    roles = {"question": "prompt", "answer": "completion"}
    turned = dict(reversed(roles.items()))
    assert len({plan_for(data, zone, roles=r).pk for r in ({}, roles, turned)}) == 3


def test_a_bid_names_a_plan_of_its_data_that_is_confirmed_and_says_the_same(zone, owner):
    data = upload(owner, zone)
    plan = plan_for(data, zone, mask_personal_data=True)
    refusals = [
        (by("plan_x"), "unknown_plan"),
        (by(plan.pk), "plan_not_confirmed"),
    ]
    for wish, code in refusals:
        with pytest.raises(UserError) as refused:
            sell(owner, zone, data=data, preparation=wish)
        assert refused.value.code == code
    confirm(plan, owner)
    with pytest.raises(UserError) as refused:
        sell(owner, zone, data=data, preparation=by(plan.pk, languages=["de"]))
    assert (refused.value.code, refused.value.param) == ("plan_differs", "preparation.languages")
    with pytest.raises(UserError, match="no such plan"):
        sell(owner, zone, preparation=by(plan.pk))
    assert not Bid.objects.exists()
    bid, _ = sell(owner, zone, data=data, preparation=by(plan.pk))
    assert bid.terms.preparation.mask_personal_data


def test_more_rows_than_a_quarter_go_only_with_the_owners_word(zone, owner):
    data = upload(owner, zone, ODD, faulty=0)
    plan = plan_for(data, zone)
    assert plan.rows == 1
    with pytest.raises(Conflict, match="3 of 4 rows would be left out") as refused:
        sell(owner, zone, data=data)
    assert refused.value.code == "plan_not_confirmed"
    # Once the owner says what the column holds, every row stays.
    named = plan_for(data, zone, roles={"notiz": "context"})
    assert named.rows == 4
    sell(owner, zone, data=data, epochs=1, preparation=by(confirm(named, owner)))
    assert prepare_next(clock=clock)
    made = Preparation.objects.select_related("prepared").get()
    assert (made.status, made.rows_out) == (PreparationStatus.ACCEPTED, 4)
    with made.prepared.file.open() as rows:
        assert b"In haste.\\n\\n0 francs?" in rows.read()


def test_rows_that_repeat_themselves_go_only_with_the_owners_word(zone, owner):
    turns = [{"role": "user", "content": "Say it."}, {"role": "assistant", "content": "a b " * 40}]
    repetitive = [json.dumps({"messages": turns, "n": n}) for n in range(2)]
    data = upload(owner, zone, "\n".join([chat(0), chat(1), *repetitive]), faulty=0)
    assert plan_for(data, zone).rows == 2
    with pytest.raises(Conflict, match="2 of 4 rows would be left out"):
        sell(owner, zone, data=data)


def test_what_a_program_reads_from_the_columns_of_a_file_is_asked_before_it_is_sold(zone, owner):
    data = upload(owner, zone)
    data.needs_preparation = True
    data.save()
    with pytest.raises(Conflict, match="a guess of a program"):
        sell(owner, zone, data=data)
    _, job = sell(owner, zone, data=data, preparation=by(confirm(plan_for(data, zone), owner)))
    assert job is not None


def test_work_that_is_not_what_was_planned_is_not_trained_on(zone, owner):
    data = upload(owner, zone)
    plan = plan_for(data, zone)
    sell(owner, zone, data=data, preparation=by(confirm(plan, owner)))
    DataPlan.objects.update(plan=plan.plan | {"digest": "another"})
    assert prepare_next(clock=clock)
    made = Preparation.objects.get()
    assert made.status == PreparationStatus.DELIVERED
    assert made.objection == "The program did something else than the plan says."
    assert made.job.awaits_data


def test_people_deliver_the_rows_that_stay_by_the_plan(zone, owner):
    build.vendor(zone, "Far", kind=VendorKind.OUTSIDE)
    data = upload(owner, zone)
    plan = plan_for(data, zone)
    wish = by(confirm(plan, owner), kinds=["outside"])
    sell(owner, zone, data=data, preparation=wish)
    made = Preparation.objects.select_related("vendor", "source__zone", "job__zone").get()
    compared = {"added": 0, "kept": 47, "changed": 0, "covered": 47, "distinct": 50}
    compared |= {"gold": 0, "gold_right": 0}
    wish = parse_wish(made.wish)
    found = [judge_by_rule(compared | {"rows_out": n}, wish, plan=plan) for n in (47, 48)]
    assert found == ["It has 47 rows; by the plan 50 stay.", ""]


def test_a_plan_without_a_row_or_for_another_model_is_of_no_use(zone, owner):
    data = upload(owner, zone, "\n".join(['{"frage": "Why so?", "antwort": "So."}'] * 3), faulty=0)
    plan = plan_for(data, zone)
    with pytest.raises(Conflict, match="no row stays"):
        confirm(plan, owner)
    other = build.zone()
    other.tokenizer_source = "elsewhere"
    other.save()
    fine = upload(owner, zone)
    confirmed = confirm(plan_for(fine, zone), owner)
    build.vendor(other)
    with pytest.raises(Conflict) as refused:
        sell(owner, other, data=fine, preparation=by(confirmed))
    assert refused.value.code == "plan_of_other_model"


def test_a_file_that_cannot_be_prepared_says_so_in_its_plan(zone, owner):
    data = upload(owner, zone, "PK\x03\x04" + "\0" * 400, faulty=0)
    plan = plan_for(data, zone)
    assert plan.plan is None
    assert "archive" in plan.problem
    with pytest.raises(Conflict, match="archive"):
        confirm(plan, owner)


def test_the_page_asks_which_column_is_what_and_leads_to_the_bid(zone, owner):
    data = upload(owner, zone, ODD, faulty=0)
    client = Client()
    client.force_login(builders.owner_of(owner))
    assert b"There is no plan for these data yet" in client.get(f"/datasets/{data.pk}/plan").content
    where = client.post(f"/datasets/{data.pk}/plan").url
    assert b"The plan is being made" in client.get(where).content
    run_due_work(get_kinds()[MAKE], clock=clock)
    page = client.get(where).content.decode()
    assert "1 of 4 rows stay" in page
    assert "The program does not know what some columns hold." in page
    plan = DataPlan.objects.get()
    number = [column["name"] for column in plan.plan["columns"]].index("notiz")
    answer = {"plan": plan.pk, f"role_{number}": "left_out", "phone_regions": "de, us"}
    where = client.post(f"/datasets/{data.pk}/plan", answer).url
    run_due_work(get_kinds()[MAKE], clock=clock)
    changed = DataPlan.objects.exclude(pk=plan.pk).get()
    assert (changed.asked["roles"], changed.rows) == ({"notiz": "left_out"}, 4)
    assert changed.asked["phone_regions"] == ["DE", "US"]
    assert "<del" in client.get(where).content.decode()
    bid_page = client.post(f"{where}/confirm").url
    assert bid_page == (
        f"/bids/new?dataset={data.pk}&zone={zone.name}&prepare=on&plan={changed.pk}"
    )
    assert f"/datasets/{data.pk}/plans/{changed.pk}" in client.get(bid_page).content.decode()
    changed.refresh_from_db()
    assert changed.confirmed_by == builders.owner_of(owner)


def test_the_api_makes_shows_and_confirms_a_plan_for_its_owner_only(zone, owner):
    data = upload(owner, zone)
    key = {"Authorization": f"Bearer {builders.api_key(owner)[1]}"}
    where = f"/api/datasets/{data.pk}/plans"
    client = Client(headers=key)
    made = client.post(where, {"mask_personal_data": True}, content_type="application/json")
    assert (made.status_code, made.json()["status"]) == (202, "making")
    run_due_work(get_kinds()[MAKE], clock=clock)
    where = f"{where}/{made.json()['id']}"
    seen = client.get(where).json()
    assert (seen["status"], seen["rows"], seen["plan"]["summary"]["rows_in"]) == ("made", 50, 100)
    confirmed = client.post(f"{where}/confirm").json()
    assert (confirmed["status"], confirmed["mask_personal_data"]) == ("confirmed", True)
    wrong = client.post(
        where.rpartition("/")[0], {"roles": {"a": "answer"}}, content_type="application/json"
    )
    assert (wrong.status_code, wrong.json()["param"]) == (400, "preparation.roles")
    other = Client(
        headers={"Authorization": f"Bearer {builders.api_key(builders.organisation())[1]}"}
    )
    assert other.get(where).status_code == 404
    assert other.post(f"{where}/confirm").status_code == 404
