"""Bidding without script: the form, the quote, the decision."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils.html import escape

from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import Bid
from marketplace.common import clock
from marketplace.fleet.models import Provider
from marketplace.jobs.models import Dataset, Upload
from marketplace.jobs.services import intake
from marketplace.payments.selectors import get_wallet
from marketplace.web import latest_choice
from marketplace.web.presenters.curve import find_horizon_end
from marketplace.web.views import bid_form, payments, uploads, workspace
from tests import builders, market_builders
from tests.builders import NOW
from tests.pages import read_download, read_page
from tests.unit.marketplace.web.conftest import Site
from workers.protocol.wire import to_json

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def lane():
    """Bids are decided while the page waits, by the zone's lane as ever."""

    def decide(*, bid: Bid) -> Bid:
        decide_pending_bids(zone=bid.zone, now=clock.now(), limit=10)
        bid.refresh_from_db()
        return bid

    with patch.object(payments, "wait_for_bid", decide):
        yield


def test_a_new_form_quotes_a_chosen_data_set_at_once(site: Site) -> None:
    page = site.client.get(f"/bids/new?dataset={site.dataset.pk}")
    assert page.status_code == 200
    # Left to the house: 10 epochs of 90 rows, which are 9 cells.
    assert page.context["quote"].price_micros == 9 * market_builders.CELL_MICROS
    assert "$0.90" in read_page(page)


def test_a_form_offers_the_newest_data_sets_and_the_one_that_is_chosen(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latest_choice, "OFFERED", 1)
    made = [market_builders.dataset(site.organisation, site.zone) for _ in range(2)]
    for age, each in enumerate(made):
        Dataset.objects.filter(pk=each.pk).update(created_at=NOW + timedelta(hours=2 - age))
    strange = market_builders.dataset(builders.organisation(), site.zone)
    for chosen, offered in ((site.dataset.pk, [site.dataset.pk]), (strange.pk, []), ("", [])):
        form = site.client.get(f"/bids/new?dataset={chosen}").context["form"]
        keys = [key for key, _ in form.fields["dataset"].choices]
        assert keys == ["", made[0].pk, *offered]
    # What no form offers is reached by the pages of all of them.
    monkeypatch.setattr(workspace, "DATASETS_LISTED", 1)
    pages, older = [], ""
    while older is not None:
        page = site.client.get(f"/datasets?before={older}")
        pages.append([each.pk for each in page.context["datasets"]])
        older = page.context["older"]
    assert pages == [[made[0].pk], [made[1].pk], [site.dataset.pk]]


def test_a_bid_above_the_price_is_admitted_and_pays_the_price(site: Site) -> None:
    reply = site.client.post("/bids/new", site.bid_form())
    bid = Bid.objects.get()
    assert reply.headers["Location"] == f"/bids/{bid.pk}"
    page = site.client.get(f"/bids/{bid.pk}")
    text = read_page(page)
    assert bid.status == "admitted"
    assert "You pay $0.10" in text
    assert "It did not change the price." in text
    assert f"/jobs/{page.context['job_id']}" in text
    assert get_wallet(organisation=site.organisation).available_micros == 100_000_000 - 100_000


def test_every_setting_can_be_chosen_in_the_form_and_is_there_when_the_bid_is_made_again(
    site: Site,
) -> None:
    chosen = {
        "sequence_length": "64",
        "validation_share": "0.2",
        "schedule": "linear",
        "warmup_share": "0.1",
        "weight_decay": "0.01",
        "seed": "7",
        "neftune_alpha": "5",
        "preference_loss": "orpo",
        "dpo_beta": "0.3",
        "target_modules": "q_proj, v_proj",
        "rslora": "on",
    }
    site.client.post("/bids/new", site.bid_form(**chosen))
    bid = Bid.objects.get()
    training = to_json(bid.terms.training)
    training = {name: training[name] for name in training if name in chosen}
    assert training == {
        "sequence_length": 64,
        "validation_share": 0.2,
        "schedule": "linear",
        "warmup_share": 0.1,
        "weight_decay": 0.01,
        "seed": 7,
        "neftune_alpha": 5,
        "preference_loss": "orpo",
        "dpo_beta": 0.3,
    }
    adapter = bid.terms.adapter
    assert (adapter.target_modules, adapter.rslora, adapter.dora) == (
        ("q_proj", "v_proj"),
        True,
        False,
    )
    again = site.client.get(f"/bids/new?again={bid.pk}").context["form"]
    shown = {name: str(again[name].value()) for name in chosen}
    assert shown == chosen | {"rslora": "True"}
    assert again["dora"].value() in (None, False, "")


def test_a_setting_that_cannot_be_is_said_beside_its_field_and_its_group_is_open(
    site: Site,
) -> None:
    page = site.client.post("/bids/new", site.bid_form(warmup_share="1.5", rslora="on"))
    form = page.context["form"]
    assert "warmup_share" in str(form.errors["warmup_share"])
    assert form.has_expert_settings
    assert not Bid.objects.exists()


def test_the_same_submission_twice_is_one_bid(site: Site) -> None:
    first = site.client.post("/bids/new", site.bid_form())
    second = site.client.post("/bids/new", site.bid_form())
    assert first.headers["Location"] == second.headers["Location"]
    assert Bid.objects.count() == 1


def test_a_refusal_says_why_and_what_would_win(site: Site) -> None:
    site.client.post("/bids/new", site.bid_form(price="0.01"))
    bid = Bid.objects.get()
    text = read_page(site.client.get(f"/bids/{bid.pk}"))
    assert bid.status == "refused"
    assert "The price was above your limit" in text
    assert "above $0.10" in text
    assert "Nothing was charged and the hold is released." in text
    again = read_page(site.client.get(f"/bids/new?again={bid.pk}"))
    assert 'value="support-tone"' in again
    assert 'value="0.01"' in again
    assert get_wallet(organisation=site.organisation).available_micros == 100_000_000


@pytest.mark.parametrize(
    ("changed", "field", "words"),
    [
        ({"price": ""}, "price", "is not an amount"),
        ({"price": "-1"}, "price", "cannot be negative"),
        ({"price": "0"}, "price", "must be above zero"),
        ({"price": "NaN"}, "price", "finite number"),
        ({"price": "1,000"}, "price", "is not an amount"),
        ({"price": "9" * 20}, "price", "billion"),
        ({"deadline": "2026-03-02T08:00:00"}, "deadline", "in the past"),
        ({"deadline": "2027-01-01T00:00:00"}, "deadline", "beyond what is on sale"),
        ({"deadline": "soon"}, "deadline", "Give a day and a time"),
        ({"epochs": "many"}, "epochs", "Give a number, or auto."),
        ({"epochs": "1000"}, "epochs", "from 1 to 50"),
        ({"rank": "0"}, "rank", "from 1 to 256"),
        ({"name": " "}, "name", "This field is required."),
        ({"dataset": ""}, "dataset", "Upload a file or choose a data set first."),
        ({"dataset": "ds_other"}, "dataset", "Select a valid choice."),
        ({"zone": "nowhere"}, "zone", "Select a valid choice."),
    ],
)
def test_a_mistake_is_told_beside_its_field_and_leaves_no_trace(
    site: Site, changed: dict[str, str], field: str, words: str
) -> None:
    reply = site.client.post("/bids/new", site.bid_form(**changed))
    assert reply.status_code == 400
    assert words in " ".join(reply.context["form"].errors[field])
    assert Bid.objects.count() == 0
    assert get_wallet(organisation=site.organisation).held_micros == 0


def test_a_bid_beyond_the_wallet_is_refused_and_keeps_the_form(site: Site) -> None:
    reply = site.client.post("/bids/new", site.bid_form(price="100.01"))
    assert reply.status_code == 402
    assert 'value="100.01"' in read_page(reply)
    assert Bid.objects.count() == 0


def test_a_faulty_file_is_refused_line_by_line_and_nothing_is_stored(site: Site) -> None:
    file = SimpleUploadedFile("bad.jsonl", b'{"prompt": "no end\n' * 3)
    form = site.bid_form(do="check", dataset="") | {"file": file}
    reply = site.client.post("/bids/new", form)
    text = read_page(reply)
    assert "This file cannot be used." in text
    assert re.search(r'class="ln">\s*1<', text)
    assert Dataset.objects.filter(name="bad.jsonl").count() == 0


def test_every_line_that_cannot_be_used_can_be_seen_and_is_left_out_by_choice(
    site: Site, client: Client
) -> None:
    rows = b'{"prompt": "a", "completion": "b"}\n' + b'{"prompt": "no end\n' * 60
    form = site.bid_form(do="check", dataset="")
    file = SimpleUploadedFile("mixed.jsonl", rows)
    text = read_page(site.client.post("/bids/new", form | {"file": file}))
    upload = Upload.objects.get()
    assert "60 lines cannot be used" in text
    assert "All 60 lines with what is wrong" in text
    assert f'name="upload" value="{upload.pk}"' in text
    assert not Dataset.objects.filter(name="mixed.jsonl").exists()
    faults = read_download(site.client.get(f"/datasets/uploads/{upload.pk}/faults"))
    lines = faults.decode().splitlines()
    assert [line.partition(":")[0] for line in lines] == [f"line {n}" for n in range(2, 62)]
    # A choice that is not made is asked for again.
    again = site.client.post("/bids/new", form | {"upload": upload.pk, "decided": "1"})
    assert "60 lines cannot be used" in read_page(again)
    chosen = {"upload": upload.pk, "decided": "1", "faulty_lines": "leave_out"}
    text = read_page(site.client.post("/bids/new", form | chosen))
    dataset = Dataset.objects.get(name="mixed.jsonl")
    assert f'name="dataset" value="{dataset.pk}"' in text
    kept = read_download(site.client.get(f"/datasets/{dataset.pk}/faults"))
    assert kept == faults
    client.force_login(builders.user())
    assert client.get(f"/datasets/{dataset.pk}/faults").status_code == 404
    assert client.get(f"/datasets/uploads/{upload.pk}/faults").status_code == 404
    assert client.get(f"/datasets/uploads/{upload.pk}").status_code == 404


def test_columns_with_other_names_are_chosen_on_the_page(site: Site) -> None:
    table = b"Question,Answer,Id\none,two,1\n"
    file = SimpleUploadedFile("faq.csv", table)
    reply = site.client.post("/datasets", {"file": file}, follow=True)
    [(address, _)] = reply.redirect_chain
    text = read_page(reply)
    assert "Which column is what?" in text
    assert '<option value="question" selected> question </option>' in text
    chosen = {"column_prompt": "question", "column_completion": "answer", "decided": "1"}
    reply = site.client.post(address, chosen)
    dataset = Dataset.objects.get(name="faq.csv")
    assert reply.headers["Location"] == f"/datasets/{dataset.pk}"
    assert (dataset.format, dataset.rows) == ("completion", 1)


def test_keys_that_no_program_knows_are_asked_about_and_lead_to_the_plan(site: Site) -> None:
    row = {"frage": "Was kostet es?", "answer": "3 Franken.", "<notiz>": "In aller Eile."}
    file = SimpleUploadedFile("faq.jsonl", json.dumps(row).encode())
    reply = site.client.post("/datasets", {"file": file}, follow=True)
    [(address, _)] = reply.redirect_chain
    text = read_page(reply)
    assert "Which key is what?" in text
    assert '<label class="label" for="role_2">&lt;notiz&gt;</label>' in text
    assert '<option value="completion" selected>' in text
    again = site.client.post(address, {"decided": "1"}, follow=True)
    assert "Which key is what?" in read_page(again)
    chosen = {"role_0": "prompt", "role_1": "completion", "role_2": "left_out", "decided": "1"}
    reply = site.client.post(address, chosen, follow=True)
    dataset = Dataset.objects.get(name="faq.jsonl")
    assert (dataset.needs_preparation, dataset.rows) == (True, 1)
    assert f'href="/datasets/{dataset.pk}/plan"' in read_page(reply)


def test_how_far_a_file_is_read_is_shown_until_it_is(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "enqueue_work", lambda _: None)
    monkeypatch.setattr(uploads, "WAIT_S", 0.0)
    file = SimpleUploadedFile("big.jsonl", b'{"prompt": "a", "completion": "b"}\n')
    reply = site.client.post("/datasets", {"file": file}, follow=True)
    text = read_page(reply)
    assert "Waits for a worker" in text
    assert '<noscript><meta http-equiv="refresh" content="2"></noscript>' in text
    Upload.objects.update(status="reading", rows_read=1200, share_read=0.25)
    [(address, _)] = reply.redirect_chain
    text = read_page(site.client.get(address))
    assert "Checking line by line, 1,200 rows so far" in text
    assert 'value="0.25"' in text
    assert "big.jsonl" in read_page(site.client.get("/datasets"))


def test_an_empty_file_gets_an_answer_on_both_pages(site: Site) -> None:
    for address, form in (("/datasets", {}), ("/bids/new", site.bid_form(do="check", dataset=""))):
        file = SimpleUploadedFile("empty.jsonl", b"")
        text = read_page(site.client.post(address, form | {"file": file}))
        assert "The data set is empty. Send a file with data." in text
    assert not Upload.objects.exists()


def test_a_data_set_can_be_deleted_and_one_with_a_bid_stays_until_it_is_not_needed(
    site: Site,
) -> None:
    spare = market_builders.dataset(site.organisation, site.zone)
    reply = site.client.post(f"/datasets/{spare.pk}/delete", follow=True)
    assert f"{spare.name} is deleted." in read_page(reply)
    site.client.post("/bids/new", site.bid_form())
    reply = site.client.post(f"/datasets/{site.dataset.pk}/delete", follow=True)
    assert f"{site.dataset.name} is deleted." in read_page(reply)
    assert not Dataset.objects.exists()
    assert Dataset.everything.get(pk=site.dataset.pk).file.name


def test_keys_that_are_not_trained_on_are_shown_before_a_bid(site: Site) -> None:
    rows = b'{"prompt": "a", "completion": "b", "weight": 0, "<i>": 1}\n' * 2
    form = site.bid_form(do="check", dataset="") | {"file": SimpleUploadedFile("extra.jsonl", rows)}
    site.client.post("/bids/new", form)
    dataset = Dataset.objects.get(name="extra.jsonl")
    for page in (f"/bids/new?dataset={dataset.pk}", f"/datasets/{dataset.pk}"):
        text = read_page(site.client.get(page))
        assert "Keys of the rows are not trained on" in text
        assert (
            '<span class="mono">weight</span>, in 2 rows. Rows cannot be weighted: leave out or '
            "repeat rows instead."
        ) in text
        assert '<span class="mono">&lt;i&gt;</span>, in 2 rows' in text


def test_new_data_brings_its_own_deadline_unless_one_was_chosen(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No tokenizer here can count a file: the data set it becomes is there already.
    read = Upload(dataset=site.dataset, status="stored")
    monkeypatch.setattr(bid_form, "receive_page_upload", lambda *_, **__: read)
    # Three slots on: a deadline one may name, and too near for all the work.
    too_soon = f"{NOW + timedelta(seconds=3 * site.zone.slot_s):%Y-%m-%dT%H:%M:%S}"

    def checked(**more: str) -> Any:
        file = SimpleUploadedFile("new.jsonl", b"{}")
        form = site.bid_form(do="check", deadline=too_soon, epochs="20", file=file, **more)
        del form["dataset"]
        return site.client.post("/bids/new", form).context

    chosen = checked()
    assert chosen["quote"].price_micros is None
    assert chosen["form"]["deadline"].value() == too_soon
    left = checked(offered_deadline=too_soon)
    assert left["quote"].price_micros is not None
    curve = [tread.deadline_at for tread in left["quote"].curve]
    slot = timedelta(seconds=site.zone.slot_s)
    minutes = -(-timedelta(minutes=5) // slot) * slot
    ends = find_horizon_end(site.zone, NOW)
    offered = max(curve[len(curve) // 2], min(curve[0] + minutes, ends))
    assert left["quote"].deadline_at == offered
    assert curve[0] < offered
    assert left["form"]["deadline"].value() == f"{offered:%Y-%m-%dT%H:%M:%S}"
    assert left["offered_deadline"] == f"{offered:%Y-%m-%dT%H:%M:%S}"
    assert chosen["offered_deadline"] == ""


def test_the_form_never_opens_on_a_deadline_that_cannot_be_met(site: Site) -> None:
    soon = f"{NOW + timedelta(seconds=3 * site.zone.slot_s):%Y-%m-%dT%H:%M:%S}"
    for named in ("", f"&deadline={soon}", "&deadline=2026-03-02T08:00:00"):
        page = site.client.get(f"/bids/new?dataset={site.dataset.pk}{named}").context
        assert page["quote"].price_micros is not None, named
        assert page["form"].errors == {}, named
    met = site.client.get(f"/bids/new?dataset={site.dataset.pk}&deadline=2026-03-02T09:06:00")
    assert met.context["form"]["deadline"].value() == "2026-03-02T09:06:00"


def test_a_wrong_setting_is_said_once_at_its_field(site: Site) -> None:
    reply = site.client.post("/bids/new", site.bid_form(do="check", rank="9999"))
    text = read_page(reply)
    [message] = reply.context["form"].errors["rank"]
    assert text.count("9999") - text.count('value="9999"') == 1
    assert escape(message) in text
    assert '<details class="adv" open id="advanced">' in text
    assert "Correct what is marked to see prices." in text


def test_the_wallet_stands_beside_the_limit(site: Site, client: Client) -> None:
    text = read_page(site.client.get(f"/bids/new?dataset={site.dataset.pk}"))
    assert 'data-available="100000000"> $100.00 in your wallet' in text
    assert 'id="short" hidden' in text
    client.force_login(builders.user())
    text = read_page(client.get("/bids/new"))
    assert 'data-available="0"> $0.00 in your wallet' in text
    assert 'id="short" >' in text


def test_somebody_elses_bid_is_not_found(site: Site) -> None:
    site.client.post("/bids/new", site.bid_form())
    bid = Bid.objects.get()
    site.client.force_login(builders.user())
    assert site.client.get(f"/bids/{bid.pk}").status_code == 404
    assert site.client.post(f"/bids/{bid.pk}/withdraw").status_code == 404


def test_verified_providers_only_is_asked_for_in_the_form_and_shown_on_bid_and_job(
    site: Site,
) -> None:
    site.client.post("/bids/new", site.bid_form(verified_only="on"))
    refused = Bid.objects.get()
    text = read_page(site.client.get(f"/bids/{refused.pk}"))
    assert (refused.status, refused.refusal) == ("refused", "verified")
    assert "No verified node can run it" in text
    assert "No verified provider has a node here that can run this job" in text
    assert "No verified node can run it." in read_page(site.client.get("/jobs"))

    Provider.objects.update(verified_at=NOW)
    site.client.post("/bids/new", site.bid_form(verified_only="on", key="again"))
    bid = Bid.objects.exclude(pk=refused.pk).get()
    page = site.client.get(f"/bids/{bid.pk}")
    assert "<dt>Providers</dt><dd>verified only</dd>" in read_page(page)
    job = site.client.get(f"/jobs/{page.context['job_id']}")
    assert "Verified providers only" in read_page(job)
    assert "verified_only" in str(site.client.get(f"/bids/new?again={bid.pk}").context["form"].data)


def test_an_owner_sets_whose_machines_get_the_data_where_a_bid_says_nothing(site: Site) -> None:
    assert not site.client.get("/bids/new").context["form"].data["verified_only"]
    text = read_page(site.client.post("/datasets/providers", {"verified_only": "on"}, follow=True))
    assert "Whose machines get your data is stored." in text
    site.organisation.refresh_from_db()
    assert site.organisation.verified_only
    assert site.client.get("/bids/new").context["form"].data["verified_only"]
    viewer = builders.user()
    site.organisation.memberships.create(user=viewer, role="member")
    other = Client()
    other.force_login(viewer)
    other.post("/datasets/providers", {})
    site.organisation.refresh_from_db()
    assert site.organisation.verified_only


def test_rows_of_another_file_are_held_out_where_the_form_says_so(site: Site) -> None:
    held_out = market_builders.dataset(site.organisation, site.zone, texts=["one", "two"])
    page = read_page(site.client.get(f"/bids/new?dataset={site.dataset.pk}"))
    assert "A share of these rows" in page
    site.client.post("/bids/new", site.bid_form(validation=held_out.pk))
    bid = Bid.objects.get()
    assert bid.validation_dataset == held_out
    assert bid.terms.training.validation_share == 0.0
    again = site.client.get(f"/bids/new?again={bid.pk}")
    assert again.context["form"]["validation"].value() == held_out.pk
    # The 0 was not chosen: without the file, a share is held out once more.
    assert again.context["form"]["validation_share"].value() == "auto"
    job = site.client.get(f"/bids/{bid.pk}").context["job_id"]
    shown = read_page(site.client.get(f"/jobs/{job}/data"))
    assert f"/datasets/{held_out.pk}" in shown


def test_a_validation_file_that_leaks_or_is_anothers_is_refused_at_its_field(site: Site) -> None:
    texts = [f"cat {number}" for number in range(40)]
    data = market_builders.dataset(site.organisation, site.zone, texts=texts)
    leaking = market_builders.dataset(site.organisation, site.zone, texts=["dog", "cat 7"])
    form = site.bid_form(dataset=data.pk, validation=leaking.pk)
    reply = site.client.post("/bids/new", form)
    assert reply.status_code == 400
    [error] = reply.context["form"].errors["validation"]
    assert "1 row stands both in the training data and in the validation data" in error
    assert "line 2 of the" in error
    theirs = market_builders.dataset(builders.organisation(), site.zone)
    reply = site.client.post("/bids/new", site.bid_form(validation=theirs.pk))
    assert reply.status_code == 400
    assert list(reply.context["form"].errors) == ["validation"]
    assert not Bid.objects.exists()
