"""The commands of ``finetender`` against the real market, through their own parser."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from decimal import Decimal
from pathlib import Path

import finetender
import pytest
from finetender.operations import file_parts
from finetender.resources import RESOURCES

from marketplace.common import clock
from marketplace.jobs.models import Artifact, Dataset, EventKind, Job, JobStatus, UploadPart
from marketplace.jobs.services import add_job_event
from tests import job_builders as build
from tests import market_builders
from tests.unit.marketplace.api.client import ROWS, finish
from tests.unit.marketplace.api.sdk_market import TRAINING, run

pytestmark = pytest.mark.django_db(transaction=True)


def test_webhooks_are_added_tried_and_deleted(access, capsys):
    url = "https://hooks.example/in"
    code, told = run(capsys, "webhooks", "add", url, "--event", "job.succeeded", "--json")
    added = json.loads(told)
    assert (code, added["url"], added["events"]) == (0, url, ["job.succeeded"])
    assert added["secret"].startswith("whsec_")
    code, told = run(capsys, "webhooks")
    assert (code, told.splitlines()[1].split()[:2]) == (0, [added["id"], url])
    assert "whsec_" not in told
    code, told = run(capsys, "webhooks", "rotate", added["id"], "--json")
    assert json.loads(told)["secret"] != added["secret"]
    assert run(capsys, "webhooks", "test", added["id"])[0] == 0
    code, told = run(capsys, "webhooks", "deliveries", added["id"], "--json")
    assert [each["status"] for each in json.loads(told)["data"]] == ["pending"]
    assert run(capsys, "webhooks", "delete", added["id"])[0] == 0
    code, told = run(capsys, "webhooks", "show", added["id"], "--json")
    assert (code, json.loads(told)["error"]["kind"]) == (4, "NotFoundError")
    code, told = run(capsys, "webhooks", "add", url, "--event", "job.eaten", "--json")
    assert (code, json.loads(told)["error"]["exit_code"]) == (5, 5)


@pytest.mark.parametrize("resource", RESOURCES)
def test_each_resource_is_shown_where_only_its_name_is_given(
    resource, access, tokenizer_zone, capsys
):
    code, told = run(capsys, resource, "--json")
    assert code == 0, told
    if resource == "zones":
        assert [zone["name"] for zone in json.loads(told)["data"]] == [tokenizer_zone.name]


def test_data_are_uploaded_listed_shown_and_deleted(access, tokenizer_zone, rows, capsys):
    code, told = run(capsys, "data", "upload", str(rows), "--name", "support", "--json")
    stored = json.loads(told)
    assert (code, stored["rows"], stored["name"]) == (0, 100, "support")
    assert run(capsys, "data")[1].splitlines()[1].split()[::3] == [stored["id"], "support"]
    assert json.loads(run(capsys, "data", "show", stored["id"], "--json")[1]) == stored
    assert run(capsys, "data", "delete", stored["id"]) == (0, "Done.\n")
    assert run(capsys, "data", "show", stored["id"])[0] == 4
    rows.write_bytes(ROWS + b"no row\n")
    code, told = run(capsys, "data", "upload", str(rows), "--json")
    assert (code, json.loads(told)["error"]["kind"]) == (5, "InvalidRequestError")
    code, told = run(capsys, "data", "upload", str(rows), "--faulty-lines", "leave_out", "--json")
    assert (code, json.loads(told)["rows"]) == (0, 100)


@pytest.fixture
def small_parts(monkeypatch, tmp_path):
    monkeypatch.setattr("finetender.operations.data.PARTS_FROM_BYTES", 1000)
    monkeypatch.setattr(file_parts, "PART_BYTES", 4000)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return -(-len(ROWS) // 4000)


def test_a_large_file_goes_in_parts_and_goes_on_where_it_was_broken_off(
    access, tokenizer_zone, rows, small_parts
):
    sent: list[tuple[int, int]] = []

    class Broken(Exception):
        pass

    def stop(done: int, total: int) -> None:
        sent.append((done, total))
        if len(sent) == 2:
            raise Broken

    with finetender.Client(on_sent=stop) as client, pytest.raises(Broken):
        client.upload(rows, zone=tokenizer_zone.name)
    [noted] = file_parts.settings.Path(rows.parent / "cache").rglob("*.json")
    assert len(json.loads(noted.read_text())["parts"]) == 1, "the second was not noted in time"
    with finetender.Client(on_sent=lambda *sizes: sent.append(sizes)) as client:
        stored = client.upload(rows, zone=tokenizer_zone.name)
    assert (stored.rows, stored.name) == (100, rows.name)
    # The first part was not sent again.
    assert [done for done, _ in sent[2:]] == [
        *(4000 * part for part in range(2, small_parts)),
        len(ROWS),
    ]
    assert Dataset.objects.get(pk=stored.id).sha256 == hashlib.sha256(ROWS).hexdigest()
    assert not noted.exists()
    sent.clear()
    with finetender.Client() as client:
        # Within a day the same file is the same data set, though nothing is noted of it here.
        assert client.upload(rows, zone=tokenizer_zone.name).id == stored.id
    assert Dataset.objects.count() == 1
    assert not UploadPart.objects.exists()


def test_parts_that_the_market_gave_up_are_sent_anew(access, tokenizer_zone, rows, small_parts):
    with finetender.Client() as client:
        stored = client.upload(rows, zone=tokenizer_zone.name)
        client.call("datasets_delete", dataset_id=stored.id)
        again = client.upload(rows, zone=tokenizer_zone.name, name="other")
        assert (again.id != stored.id, again.rows) == (True, 100)
        rows.write_bytes(ROWS + b"no row\n")
        with pytest.raises(finetender.InvalidRequestError) as refused:
            client.upload(rows, zone=tokenizer_zone.name)
        assert refused.value.exit_code == 5
        kept = client.upload(rows, zone=tokenizer_zone.name, faulty_lines="leave_out")
        assert kept.rows == 100


def test_a_file_that_changes_while_it_is_sent_is_not_stored(
    access, tokenizer_zone, rows, small_parts
):
    def cut(*_: int) -> None:
        rows.write_bytes(ROWS[:5000])

    changed = pytest.raises(finetender.UsageError, match="changed while it was sent")
    with finetender.Client(on_sent=cut) as client, changed:
        client.upload(rows, zone=tokenizer_zone.name)
    assert not Dataset.objects.exists()


def test_a_sweep_is_one_file_and_one_table(access, lane, tokenizer_zone, rows, capsys, monkeypatch):
    said = {"data": rows.name, "price": 1, "deadline": "5m", "training": TRAINING}
    file = rows.with_name("job.json")
    file.write_text(json.dumps(said))
    grid = ["--grid", "training.seed=1,2"]
    code, told = run(capsys, "sweep", str(file), *grid, "--no-wait", "--json")
    placed = json.loads(told)
    assert code == 0
    assert [job["settings"] for job in placed["jobs"]] == [
        {"training.seed": 1},
        {"training.seed": 2},
    ]
    assert {job["status"] for job in placed["jobs"]} == {"admitted"}
    looks = []

    def work(_: float) -> None:
        looks.append(_)
        for job in Job.objects.filter(status=JobStatus.QUEUED):
            finish(job.pk)

    monkeypatch.setattr("finetender.sweep_command.time.sleep", work)
    file.write_text(json.dumps(said | {"sweep": {"training.seed": [3, 4]}}))
    code, told = run(capsys, "sweep", str(file), "--json")
    ended = json.loads(told)["jobs"]
    assert (code, len(looks)) == (0, 1)
    assert [(job["status"], job["settings"]) for job in ended] == [
        ("succeeded", {"training.seed": 3}),
        ("succeeded", {"training.seed": 4}),
    ]
    code, told = run(capsys, "sweep", str(file), "--no-wait")
    lines = told.splitlines()
    assert lines[0].split() == ["training.seed", "status", "price", "loss", "validation", "job"]
    assert [line.split()[:2] for line in lines[1:]] == [["3", "admitted"], ["4", "admitted"]]
    count = Job.objects.count()
    code, told = run(
        capsys, "sweep", str(file), "--all-or-none", "--grid", "training.seed=x", "--json"
    )
    assert (code, json.loads(told)["error"]["exit_code"]) == (5, 5)
    file.write_text(json.dumps(said | {"price": "0.000001"}))
    code, told = run(capsys, "sweep", str(file), *grid, "--json")
    assert (code, json.loads(told)["error"]["kind"]) == (7, "BidRefusedError")
    assert run(capsys, "sweep", str(file))[0] == 2
    assert run(capsys, "sweep", str(file), "--grid", "seed=1,2")[0] == 2
    file.write_text(json.dumps(said | {"sweep": {"training.seed": [3, 4]}}))
    assert run(capsys, "run", str(file))[0] == 2
    assert Job.objects.count() == count


def test_logs_are_read_whole_and_followed_until_the_job_ends(access, owner, capsys):
    zone = market_builders.zone()
    job = build.job(zone, (0, market_builders.node(zone)), organisation=owner)
    for number in range(120):
        add_job_event(job=job, kind=EventKind.SETTLED, message=f"event {number}", now=clock.now())
    code, told = run(capsys, "logs", job.pk)
    assert code == 0
    assert [line.split("  ")[-1] for line in told.splitlines()][1:] == [
        f"event {number}" for number in range(120)
    ]
    code, told = run(capsys, "logs", job.pk, "--json")
    events = [json.loads(line) for line in told.splitlines()]
    code, told = run(capsys, "logs", job.pk, "--after", str(events[-2]["seq"]))
    assert told.split("  ")[-1] == "event 119\n"
    Job.objects.filter(pk=job.pk).update(status=JobStatus.SUCCEEDED, finished_at=clock.now())
    code, told = run(capsys, "logs", job.pk, "-f", "--after", str(events[-2]["seq"]), "--json")
    assert (code, [json.loads(line)["seq"] for line in told.splitlines()]) == (
        0,
        [events[-1]["seq"]],
    )
    Job.objects.filter(pk=job.pk).update(status=JobStatus.CANCELLED)
    assert run(capsys, "logs", job.pk, "--follow")[0] == 8
    assert run(capsys, "logs", "ftjob-other")[0] == 4


def test_a_receipt_is_checked_without_trust_in_the_market(
    access, lane, tokenizer_zone, rows, capfd, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with finetender.Client() as client:
        bid = client.place_bid(rows, price="5", deadline="5m", training=TRAINING)
        log = client.download_transcript(tokenizer_zone.name, tmp_path / "log.jsonl")
    # The market was not told what the job is worth: the bid is just above the price.
    limit = str(bid.payment + Decimal("0.000001"))
    code, told = run(capfd, "receipt", "verify", bid.id, "--limit", limit, "--transcript", str(log))
    proof = tmp_path / f"{bid.id}.proof.json"
    assert (code, proof.exists()) == (0, True), told
    assert "WRONG" not in told
    whole, _, cents = f"{bid.payment:.6f}".rstrip("0").partition(".")
    payment = f"{whole}.{cents:0<2}"
    assert f"It won: the price is ${payment}, the bid ${limit}." in told
    assert run(capfd, "receipt", "verify", str(proof), "--limit", "6")[0] == 1
    assert run(capfd, "receipt", "verify", str(proof), "--key", "00" * 32)[0] == 1
    key = json.loads(proof.read_text())["receipt"]["public_key"]
    code, told = run(capfd, "receipt", "verify", str(proof), "--key", key, "--json")
    assert (code, json.loads(told)["ok"], json.loads(told)["bid_id"]) == (0, True, bid.id)
    proof.write_text(proof.read_text().replace('"admitted":true', '"admitted":false', 1))
    assert run(capfd, "receipt", "verify", str(proof))[0] == 1
    code, told = run(capfd, "transcript", "verify", str(log), "--chain-only")
    assert (code, json.loads(told)["decided"]) == (0, 1)
    assert run(capfd, "receipt", "verify", "bid_other")[0] == 4


def test_an_adapter_comes_with_the_line_that_serves_it(
    access, lane, tokenizer_zone, rows, capsys, tmp_path
):
    with finetender.Client() as client:
        bid = client.place_bid(rows, price="5", deadline="5m", training=TRAINING)
    finish(bid.job_id)
    artifact = Artifact.objects.get(job=bid.job_id)
    with zipfile.ZipFile(tmp_path / "made.zip", "w") as made:
        serve = "vllm serve org/base --enable-lora --max-lora-rank 8 --lora-modules x=."
        made.writestr("README.md", f"# Card\n\n    {serve}\n")
    content = (tmp_path / "made.zip").read_bytes()
    artifact.file.storage.delete(artifact.file.name)
    with artifact.file.storage.open(artifact.file.name, "wb") as stored:
        stored.write(content)
    digest = hashlib.sha256(content).hexdigest()
    Artifact.objects.update(sha256=digest, bytes=len(content))
    where = tmp_path / "adapter.zip"
    code, told = run(capsys, "download", bid.job_id, "-o", str(where), "--json")
    line = (
        "vllm serve org/base --enable-lora --max-lora-rank 8 "
        f"--lora-modules {bid.job_id}={bid.job_id}"
    )
    assert (code, json.loads(told)) == (0, {"path": str(where), "vllm": line})
    code, told = run(capsys, "adapters")
    assert told.splitlines()[1].split()[0] == bid.job_id
    code, told = run(capsys, "adapters", "delete", bid.job_id)
    assert code == 0
    assert run(capsys, "download", bid.job_id, "-o", str(where))[0] == 4


def test_profiles_are_signed_in_to_and_used(access, capsys, monkeypatch):
    url, secret = access
    for name in ("FINETENDER_URL", "FINETENDER_API_KEY"):
        monkeypatch.delenv(name)
    assert run(capsys, "login", "--url", url, "--key", secret, "--profile", "work")[0] == 0
    code, told = run(capsys, "wallet", "--profile", "work", "--json")
    assert (code, Decimal(json.loads(told)["available"])) == (0, Decimal(10))
    code, told = run(capsys, "--json", "--profile", "home", "wallet")
    assert (code, json.loads(told)["error"]["kind"]) == (2, "UsageError")


def test_the_command_is_a_program_of_its_own(access, monkeypatch):
    """Also on a console whose letters are few, as Windows' older ones are."""
    sdk = Path(finetender.__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", str(sdk))
    monkeypatch.setenv("PYTHONIOENCODING", "cp1252")
    command = [sys.executable, "-m", "finetender", "wallet", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert Decimal(json.loads(done.stdout)["available"]) == 10
