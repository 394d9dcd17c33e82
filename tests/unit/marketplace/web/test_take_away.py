"""An adapter's page: its forms, how it is served, and where it comes from."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from typing import Any

import pytest
import time_machine
from django.conf import settings
from django.db import connection
from django.test.utils import CaptureQueriesContext

from marketplace.common.ids import new_id
from marketplace.exports.models import Export, ExportForm, HubPush
from marketplace.exports.prices import compute_price
from marketplace.fleet.models import Node
from marketplace.jobs.models import Artifact, Job
from marketplace.jobs.models.job import job_id
from marketplace.jobs.serving_lines import build_vllm_line, list_serving_lines
from marketplace.web.views.adapters import ROWS_PER_PAGE
from tests import builders
from tests.builders import NOW
from tests.pages import read_page
from tests.unit.marketplace.web.conftest import Site
from tests.warm_builders import LATER, data_of, finished

pytestmark = pytest.mark.django_db


def test_a_form_is_made_for_the_price_on_its_button_and_the_adapter_is_pushed(site: Site) -> None:
    job = finished(site.organisation, site.zone, data=data_of(site.organisation, site.zone))
    Node.objects.update(last_heartbeat_at=LATER)
    with time_machine.travel(LATER, tick=False):
        page = read_page(site.client.get(f"/adapters/{job.pk}"))
        assert page.count("Make it for") == 3
        answer = site.client.post(f"/jobs/{job.pk}/exports", {"form": "gguf-q8_0"})
        assert answer["Location"] == f"/adapters/{job.pk}"
        export = Export.objects.get()
        assert export.price_micros == compute_price(site.zone, ExportForm.GGUF_Q8_0)
        page = read_page(site.client.get(f"/adapters/{job.pk}"))
        assert "Being made" in page
        assert "data-being-made" in site.client.get(f"/adapters/{job.pk}").content.decode()
        assert page.count("Make it for") == 2
        assert site.client.get(f"/jobs/{job.pk}/exports/{export.pk}").status_code == 409
        asked = {"repository": "ada/tone", "token": "hf_secret"}
        site.client.post(f"/jobs/{job.pk}/pushes", asked)
        assert HubPush.objects.get().is_private
        page = site.client.get(f"/adapters/{job.pk}").content.decode()
        assert "ada/tone: Waiting" in page
        assert "hf_secret" not in page


def finish_job(site: Site, **terms: Any) -> Job:
    return finished(
        site.organisation, site.zone, data=data_of(site.organisation, site.zone), **terms
    )


def test_the_page_of_an_adapter_has_the_lines_that_serve_it(site: Site) -> None:
    job = finish_job(site)
    page = site.client.get(f"/adapters/{job.pk}").content.decode()
    served = re.findall(r'<pre[^>]*id="serve-\d"[^>]*>(.*?)</pre>', page, re.DOTALL)
    here, vllm, ollama = map(unescape, served)
    assert f'model="ft:{job.pk}"' in here
    assert f'base_url="{settings.PUBLIC_URL}/v1"' in here
    assert job.terms.adapter.rank == 8
    assert vllm.endswith(f"--enable-lora --max-lora-rank 8 --lora-modules {job.pk}=./{job.pk}")
    assert ollama.splitlines()[-1] == f"ollama create {job.pk} -f Modelfile"
    assert f"/playground?job={job.pk}" in page
    assert f"/bids/new?model={job.pk}&amp;zone={site.zone.name}" in page
    assert Artifact.objects.get().sha256 in page


@pytest.mark.parametrize(("rank", "room"), [(1, 1), (2, 8), (9, 16), (33, 64), (256, 256)])
def test_vllm_is_told_the_least_rank_that_it_takes(site: Site, rank: int, room: int) -> None:
    job = finish_job(site)
    job.terms = replace(job.terms, adapter=replace(job.terms.adapter, rank=rank))
    line = build_vllm_line(job, folder=".")
    assert line is not None
    assert f" --max-lora-rank {room} " in line


def test_vllm_serves_what_it_cannot_load_as_merged_weights(site: Site) -> None:
    job = finish_job(site)
    job.terms = replace(job.terms, adapter=replace(job.terms.adapter, dora=True))
    assert build_vllm_line(job, folder=".") is None
    [vllm, _] = list_serving_lines(job, is_mergeable=True)
    assert vllm.text == f"vllm serve ./{job.pk}-merged"
    assert list_serving_lines(job, is_mergeable=False) == []


def test_adapters_are_listed_newest_first_in_constant_queries(site: Site) -> None:
    data = data_of(site.organisation, site.zone)
    first = finished(site.organisation, site.zone, data=data)
    site.client.get("/adapters")
    with CaptureQueriesContext(connection) as one:
        page = site.client.get("/adapters").content.decode()
    assert page.count("/adapters/ftjob") == 1
    [made] = Artifact.objects.all()
    for number in range(ROWS_PER_PAGE):
        copied = copy_finished(first, name=f"copy-{number}")
        Artifact.objects.create(
            job=copied, slice=made.slice, sha256="0" * 64, bytes=3, created_at=NOW
        )
    with CaptureQueriesContext(connection) as many:
        page = site.client.get("/adapters").content.decode()
    assert len(many) == len(one)
    listed = re.findall(r"/adapters/(ftjob-\w+)", page)
    assert listed == sorted(listed, reverse=True)
    assert len(listed) == ROWS_PER_PAGE
    older = re.search(r"before=(ftjob-\w+)", page)
    assert older is not None
    rest = site.client.get(f"/adapters?before={older[1]}").content.decode()
    assert re.findall(r"/adapters/(ftjob-\w+)", rest) == [first.pk]
    found = site.client.get("/adapters?find=copy-7").content.decode()
    assert found.count("/adapters/ftjob") == 1
    assert "No adapter here has such a name." in read_page(site.client.get("/adapters?find=zzz"))


def copy_finished(job: Job, *, name: str) -> Job:
    copied = Job.objects.get(pk=job.pk)
    copied.pk, copied.bid_id, copied.name = job_id(), new_id("bid"), name
    copied.save(force_insert=True)
    return copied


def test_what_has_no_adapter_or_is_a_strangers_has_no_page(site: Site) -> None:
    job = finish_job(site)
    assert site.client.get(f"/adapters/{job.pk}").status_code == 200
    site.client.force_login(builders.owner_of(builders.organisation()))
    assert site.client.get(f"/adapters/{job.pk}").status_code == 404
    assert "No adapters yet" in read_page(site.client.get("/adapters"))
    site.client.force_login(builders.owner_of(site.organisation))
    Artifact.objects.update(deleted_at=NOW)
    assert site.client.get(f"/adapters/{job.pk}").status_code == 404
    assert "No adapters yet" in read_page(site.client.get("/adapters"))
