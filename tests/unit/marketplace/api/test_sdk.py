"""The SDK and its command line against the real market: pages of it are not imitated anywhere."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import threading
from decimal import Decimal

import finetender
import pytest
from finetender.settings import find_config_path

from marketplace.api.market import job_stream
from marketplace.common import clock
from marketplace.jobs.models import Artifact, EventKind, Job, JobStatus
from marketplace.jobs.services import (
    add_job_event,
    dispatch_slots,
    record_progress,
    store_checkpoint,
)
from tests import job_builders as build
from tests import market_builders
from tests.builders import NOW
from tests.unit.marketplace.api.client import finish
from tests.unit.marketplace.api.sdk_market import TRAINING, run

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_file_is_stored_once_quoted_bid_for_and_lost_below_the_price(
    access, lane, tokenizer_zone, rows
):
    with finetender.Client() as client:
        quote = client.get_quote(rows, deadline="5m", training=TRAINING)
        assert quote.posted_price is not None
        terms = {"deadline": "5m", "training": TRAINING}
        with pytest.raises(finetender.BidRefusedError) as lost:
            client.place_bid(rows, price="0.000001", **terms)
        assert (lost.value.code, lost.value.exit_code) == ("bid_below_price", 7)
        assert lost.value.posted_price == quote.posted_price
        bid = client.place_bid(quote.dataset_id, price="5", idempotency_key="one", **terms)
        again = client.place_bid(quote.dataset_id, price="5", idempotency_key="one", **terms)
        assert (bid.status, bid.payment) == ("admitted", quote.posted_price)
        assert again.id == bid.id
        [job] = client.list_jobs()
        assert (job.id, job.price) == (bid.job_id, bid.payment)
        paused = client.pause_job(job.id, refund_at_least="0")
        assert (paused.status, paused.has_ended) == ("paused", True)
        rest = client.resume_job(job.id, price="5", deadline="5m", idempotency_key="two")
        assert client.resume_job(job.id, price="5", deadline="5m", idempotency_key="two") == rest
        goes_on = client.get_job(rest.job_id)
        assert goes_on.raw["resumes"] == {"job_id": job.id, "step": 0}
        assert client.cancel_job(goes_on.id).status == "cancelled"


def test_a_job_is_followed_until_it_ends_and_from_the_middle(access, owner):
    zone = market_builders.zone()
    job = build.job(zone, (0, market_builders.node(zone)), organisation=owner)
    note(job, "one")
    heard: list[finetender.JobEvent] = []
    connected = threading.Event()

    def follow():
        with finetender.Client() as client:
            for event in client.watch(job.pk):
                heard.append(event)
                connected.set()

    thread = threading.Thread(target=follow)
    thread.start()
    assert connected.wait(10)
    note(job, "two")
    Job.objects.filter(pk=job.pk).update(status=JobStatus.SUCCEEDED, finished_at=clock.now())
    note(job, "three")
    thread.join(10)
    assert not thread.is_alive()
    messages = [event.message for event in heard if event.kind == EventKind.SETTLED]
    assert messages == ["one", "two", "three"]
    assert heard[-1].status == "succeeded"

    async def later():
        async with finetender.AsyncClient() as client:
            return [event.seq async for event in client.watch(job.pk, after=heard[0].seq)]

    assert asyncio.run(later()) == [event.seq for event in heard[1:]]
    assert not job_stream._open_streams


def note(job, text):
    add_job_event(job=job, kind=EventKind.SETTLED, message=text, now=clock.now())


def test_a_broken_download_continues_and_a_wrong_beginning_is_found(access, owner, tmp_path):
    zone = market_builders.zone()
    node = market_builders.node(zone)
    job = build.job(zone, (0, node), organisation=owner)
    content = build.safetensors(numbers=250_000)
    dispatch_slots(now=NOW)
    held = build.lease(job)
    report = build.report(held, build.event(1, step=3, train_loss=2.0))
    record_progress(node=node, report=report, now=build.at(1))
    store_checkpoint(
        node=node,
        lease_token=held.lease_token,
        step=3,
        content=io.BytesIO(content),
        now=build.at(2),
    )
    with finetender.Client() as client:
        [checkpoint] = client.list_checkpoints(job.pk)
        target = tmp_path / "checkpoint"
        part = tmp_path / "checkpoint.part"
        part.write_bytes(content[:1000])
        seen: list[tuple[int, int]] = []
        where = client.download_checkpoint(
            job.pk, checkpoint["id"], target, on_bytes=lambda *sizes: seen.append(sizes)
        )
        assert where.read_bytes() == content
        assert (seen[-1], not part.exists()) == ((len(content), len(content)), True)
        part.write_bytes(b"x" * 1000)
        with pytest.raises(finetender.FinetenderError, match="damaged"):
            client.download_checkpoint(job.pk, checkpoint["id"], target)
        part.write_bytes(content + b"more")
        assert client.download_checkpoint(job.pk, checkpoint["id"], target).read_bytes() == content
        with pytest.raises(finetender.NotFoundError):
            client.download_checkpoint(job.pk, "ckpt_other", target)
        with pytest.raises(finetender.UsageError):
            client.download_checkpoint("../../files", "x", target)


def test_commands_print_results_and_end_with_their_codes(
    access, lane, tokenizer_zone, rows, capsys, monkeypatch
):
    url, secret = access
    monkeypatch.delenv("FINETENDER_URL")
    monkeypatch.delenv("FINETENDER_API_KEY")
    assert run(capsys, "jobs") == (2, "")
    assert run(capsys, "login", "--url", url, "--key", f"{secret}x") == (3, "")
    assert not find_config_path().exists()
    code, told = run(capsys, "login", "--url", url, "--key", secret)
    assert (code, told) == (0, f"Signed in to {url}. The key is in {find_config_path()}.\n")
    assert find_config_path().stat().st_mode & 0o777 == 0o600
    code, told = run(capsys, "quote", str(rows), "--by", "5m", "--epochs", "1", "--json")
    price = json.loads(told)["posted_price"]
    work = [str(rows), "--by", "5m", "--epochs", "1"]
    assert run(capsys, "bid", *work, "--price", "0.000001")[0] == 7
    code, told = run(capsys, "bid", *work, "--price", "0.000001", "--json")
    lost = json.loads(told)["error"]
    assert (code, lost["exit_code"], lost["code"]) == (7, 7, "bid_below_price")
    assert lost["posted_price"] == price
    code, told = run(capsys, "bid", *work, "--price", "1000", "--tell-price", "--json")
    poor = json.loads(told)["error"]
    assert (code, poor["kind"], poor["short_by"]) == (9, "NoFundsError", "990.000000")
    code, told = run(capsys, "bid", *work, "--price", "much", "--json")
    assert (code, json.loads(told)["error"]["kind"]) == (2, "UsageError")
    assert run(capsys, "bid", *work, "--price", "much")[0] == 2
    assert run(capsys, "bid", *work, "--price", "1", "--set", "training.epoch=1")[0] == 5
    assert run(capsys, "bid", str(rows), "--by", "soon", "--price", "1")[0] == 5
    assert run(capsys, "bid", "missing.jsonl", "--by", "5m", "--price", "1")[0] == 2
    code, told = run(capsys, "bid", *work, "--price", "5")
    assert (code, told.startswith(f"Won for ${Decimal(price):f}. Job ftjob-")) == (0, True)
    job_id = told.split()[4].rstrip(",")
    code, told = run(capsys, "jobs")
    assert (code, told.split()[:2]) == (0, [job_id, "queued"])
    code, told = run(capsys, "pause", job_id)
    assert (code, told) == (0, f"{job_id} is paused. 'finetender resume {job_id}' goes on.\n")
    code, told = run(capsys, "resume", job_id, "--price", "5", "--deadline", "5m")
    assert (code, f" goes on with {job_id}, for $" in told) == (0, True)
    job_id = told.split()[0]
    code, told = run(capsys, "cancel", job_id, "--json")
    assert (code, json.loads(told)["status"]) == (0, "cancelled")
    assert run(capsys, "watch", job_id)[0] == 8
    assert run(capsys, "watch", "ftjob-other")[0] == 4
    assert run(capsys, "download", job_id)[0] == 4
    assert run(capsys, "chat", job_id, "hello")[0] == 4
    monkeypatch.setenv("FINETENDER_URL", "http://127.0.0.1:9")
    assert run(capsys, "jobs")[0] == 2, "a stored key is sent to no other market"
    monkeypatch.setattr("finetender.calls._FIRST_WAIT_S", 0.0)
    monkeypatch.setenv("FINETENDER_API_KEY", secret)
    assert run(capsys, "jobs")[0] == 6


def test_every_operation_is_reached_by_its_name(access, lane, tokenizer_zone, rows, capsys):
    with finetender.Client() as client:
        stored = client.call("datasets_create", body={"zone": tokenizer_zone.name}, file=rows)
        terms = {"zone": tokenizer_zone.name, "dataset_id": stored["id"], "deadline": "5m"}
        bid = {**terms, "training": TRAINING, "price": "5"}
        placed = [client.call("bids_create", body=bid, idempotency_key="one") for _ in range(2)]
        assert placed[0]["id"] == placed[1]["id"]
        job_id = placed[0]["job_id"]
        [event] = client.call("jobs_events_list", job_id=job_id, limit=1)["data"]
        assert event["kind"] == "opened"
        with pytest.raises(finetender.UsageError, match="needs job_id"):
            client.call("jobs_read")
        with pytest.raises(finetender.UsageError, match="the nearest are "):
            client.call("jobs_reed")
        with pytest.raises(finetender.UsageError, match="download_file"):
            client.call("archive_read")
        with pytest.raises(finetender.UsageError, match="dots"):
            client.call("jobs_read", job_id="..")
    code, told = run(capsys, "show", job_id, "--json")
    assert (code, json.loads(told)["id"]) == (0, job_id)
    assert run(capsys, "data")[1].splitlines()[1].split()[:2] == [stored["id"], "100"]
    held = placed[0]["decision"]["payment"]
    assert run(capsys, "wallet")[1].splitlines()[1:2] == [
        f"available: {Decimal(10) - Decimal(held):f}"
    ]
    code, told = run(capsys, "api", "jobs_cancel", f"job_id={job_id}")
    assert (code, json.loads(told)["status"]) == (0, "cancelled")
    assert run(capsys, "api", "jobs_cancel", "job_id")[0] == 2
    assert run(capsys, "api", "retention_set", "--body", '{"retain_days": 30}')[0] == 0
    assert json.loads(run(capsys, "api", "retention_read")[1])["retain_days"] == 30


def test_a_job_file_is_bid_for_followed_and_its_adapter_fetched(
    access, lane, tokenizer_zone, rows, capsys, monkeypatch
):
    followed = []

    def follow(client, job_id, *, as_json):
        followed.append(job_id)
        finish(job_id)
        # The SDK compares what it fetched.
        Artifact.objects.update(sha256=hashlib.sha256(b"zip").hexdigest())

    monkeypatch.setattr("finetender.commands._follow", follow)
    said = {"data": rows.name, "price": 5, "deadline": "5m", "training": TRAINING}
    file = rows.with_name("job.json")
    file.write_text(json.dumps(said | {"output": "adapter.zip"}))
    code, told = run(capsys, "run", str(file))
    [job] = Job.objects.all()
    assert (code, followed) == (0, [job.pk])
    assert told.splitlines()[-1] == str(rows.with_name("adapter.zip"))
    assert rows.with_name("adapter.zip").read_bytes() == b"zip"
    file.write_text(json.dumps(said | {"price": "0.000001"}))
    assert run(capsys, "run", str(file))[0] == 7
    file.write_text(json.dumps(said | {"training": {"epochs": 1, "lr": "high"}}))
    assert run(capsys, "run", str(file))[0] == 5
    assert Job.objects.count() == 1
