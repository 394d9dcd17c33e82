"""Clients generated from the OpenAPI documents upload, quote, bid, follow and fetch."""

from __future__ import annotations

import importlib
import io
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from marketplace.api.openapi import SURFACES
from marketplace.jobs.models import Job, JobStatus
from scheduler.types import Refusal
from tests import builders
from tests.conftest import ROOT
from tests.unit.marketplace.api.client import ROWS, finish
from tests.unit.marketplace.api.web_server import serve

pytestmark = pytest.mark.django_db(transaction=True)

DOCUMENTS = ROOT / "docs" / "api"
TYPESCRIPT = ROOT / "frontend" / "clients"


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The Python client of each document, as packages that can be imported."""
    where = tmp_path_factory.mktemp("generated")
    config = where / "config.json"
    config.write_text(json.dumps({"post_hooks": []}))
    for name in SURFACES.values():
        done = subprocess.run(
            [
                *(sys.executable, "-m", "openapi_python_client", "generate", "--fail-on-warning"),
                *("--path", str(DOCUMENTS / name), "--config", str(config), "--meta", "none"),
                *("--output-path", str(where / f"generated_{Path(name).stem}")),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    sys.path.insert(0, str(where))
    yield importlib.import_module
    sys.path.remove(str(where))


@pytest.fixture
def connect(generated: Any) -> Any:
    """Gives a generated client of a served market, of the package of a name."""
    _, secret = builders.api_key(builders.organisation(usd="10"))
    with serve() as url, ExitStack() as clients:

        def connect(package: str) -> Any:
            kind = generated(f"{package}.client").AuthenticatedClient
            return clients.enter_context(kind(base_url=url, token=secret))

        yield connect


def test_a_python_client_of_the_market_buys_a_job_and_reads_refusals(
    generated: Any, connect: Any, lane: None, tokenizer_zone: Any
) -> None:

    def calls(name: str) -> Any:
        return generated(f"generated_market.api.{name}")

    models, types = generated("generated_market.models"), generated("generated_market.types")
    client = connect("generated_market")
    [zone] = calls("zones.zones_list").sync(client=client).data
    file = types.File(io.BytesIO(ROWS), "rows.jsonl", "application/jsonl")
    body = models.DatasetUploadRequest(file=file, zone=zone.name)
    stored = calls("datasets.datasets_create").sync(client=client, body=body, idempotency_key="one")
    again = calls("datasets.datasets_create").sync(client=client, body=body, idempotency_key="one")
    assert (stored.id, stored.rows) == (again.id, 100)
    work = {
        "zone": zone.name,
        "dataset_id": stored.id,
        "training": models.TrainingSettings(epochs=1, batch_size=8),
    }
    quote = calls("quotes.quotes_create")
    found = quote.sync(client=client, body=models.QuoteRequest(**work, deadline="5m"))
    assert float(found.posted_price) == float(found.price_parts.compute) + float(
        found.price_parts.operational
    )
    bids = calls("bids.bids_create")
    lost = bids.sync_detailed(
        client=client, body=models.BidRequest(**work, deadline="5m", price="0.000001")
    )
    assert (lost.status_code, lost.parsed.code) == (402, "bid_below_price")
    poor = bids.sync_detailed(
        client=client, body=models.BidRequest(**work, deadline="5m", price="9999")
    )
    assert (poor.status_code, poor.parsed.code) == (402, "insufficient_funds")
    asked = models.BidRequest(**work, deadline="5m", price="5.00")
    won = bids.sync_detailed(client=client, body=asked, idempotency_key="two")
    assert won.status_code == 201
    assert bids.sync(client=client, body=asked, idempotency_key="two").id == won.parsed.id
    finish(won.parsed.job_id)
    assert calls("jobs.jobs_read").sync(won.parsed.job_id, client=client).status == "succeeded"
    events = calls("jobs.jobs_events_list").sync(won.parsed.job_id, client=client, limit=100)
    assert events.data[0].kind == "opened"
    adapter = calls("jobs.jobs_adapter_retrieve").sync(won.parsed.job_id, client=client)
    assert adapter.payload.read() == b"zip"


def test_a_python_client_of_openais_calls_buys_a_job_and_reads_refusals(
    generated: Any, connect: Any, lane: None, tokenizer_zone: Any
) -> None:

    def calls(name: str) -> Any:
        return generated(f"generated_openai.api.{name}")

    models, types = generated("generated_openai.models"), generated("generated_openai.types")
    client = connect("generated_openai")
    [base] = calls("models.list_models").sync(client=client).data
    file = types.File(io.BytesIO(ROWS), "rows.jsonl", "application/jsonl")
    purpose = models.TrainingPurposeEnum("fine-tune")
    body = models.FileRequest(file=file, purpose=purpose)
    stored = calls("files.create_file").sync(client=client, body=body)
    work = {"model": base.id, "training_file": stored.id}
    create = calls("fine_tuning.create_fine_tuning_job")

    def ask(price: str) -> Any:
        bid = models.BidTerms(max_price=price, deadline="5m")
        return create.sync_detailed(
            client=client, body=models.FineTuningJobRequest(**work, bid=bid)
        )

    lost = ask("0.000001")
    assert (lost.status_code, lost.parsed.error.code) == (402, "bid_below_price")
    won = ask("5.00").parsed
    finish(won.id)
    retrieve = calls("fine_tuning.retrieve_fine_tuning_job")
    assert retrieve.sync(won.id, client=client).status == "succeeded"
    assert calls("files.download_file").sync(stored.id, client=client).payload.read() == ROWS


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The TypeScript client of each document and the programs that use them, as JavaScript."""
    where = tmp_path_factory.mktemp("typescript")
    packages = TYPESCRIPT / "node_modules"
    assert packages.is_dir(), "Install what generates the client: make setup-dev"
    shutil.copytree(TYPESCRIPT, where, dirs_exist_ok=True, ignore=lambda *_: ["node_modules"])
    (where / "node_modules").symlink_to(packages)
    for document in SURFACES.values():
        types = where / "src" / "generated" / Path(document).with_suffix(".ts").name
        # A member with a default may be left out of a request.
        run_program(
            *(packages / ".bin" / "openapi-typescript", DOCUMENTS / document),
            *("--default-non-nullable=false", "--output", types),
        )
    run_program(packages / ".bin" / "tsc", "--project", where)
    return where / "built"


def run_program(*command: Any) -> str:
    done = subprocess.run(
        [str(each) for each in command], capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_typescript_client_of_the_market_buys_a_job_and_reads_refusals(
    built: Path, lane: None, tokenizer_zone: Any, tmp_path: Path
) -> None:
    (tmp_path / "rows.jsonl").write_bytes(ROWS)
    _, secret = builders.api_key(builders.organisation(usd="10"))
    with serve() as url, work_on_jobs():
        said = run_program("node", built / "market.js", url, secret, tmp_path / "rows.jsonl")
    told = json.loads(said)
    job = Job.objects.get()
    assert told == {
        "rows": 100,
        "quoted": True,
        "refused_quote": [400, "invalid_deadline"],
        "no_plan": [None, None, told["no_plan"][2]],
        "lost": [402, "bid_below_price"],
        "again": True,
        "job": job.pk,
        "status": "succeeded",
        "first_event": "opened",
        "adapter": "zip",
    }
    assert told["no_plan"][2] in {str(each) for each in Refusal}


@contextmanager
def work_on_jobs() -> Iterator[None]:
    """Have a node do each job that is opened, while a program follows it."""
    is_over = threading.Event()

    def work() -> None:
        try:
            while not is_over.wait(0.1):
                for job in Job.objects.filter(status=JobStatus.QUEUED):
                    finish(job.pk)
        finally:
            connections.close_all()

    node = threading.Thread(target=work, name="node")
    node.start()
    try:
        yield
    finally:
        is_over.set()
        node.join(60)
