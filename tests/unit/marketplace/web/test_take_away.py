"""A finished job's page offers its adapter in other forms, and has one made."""

from __future__ import annotations

import pytest
import time_machine

from marketplace.exports.models import Export, ExportForm, HubPush
from marketplace.exports.prices import compute_price
from marketplace.fleet.models import Node
from tests.pages import read_page
from tests.unit.marketplace.web.conftest import Site
from tests.warm_builders import LATER, data_of, finished

pytestmark = pytest.mark.django_db


def test_a_form_is_made_for_the_price_on_its_button_and_the_adapter_is_pushed(site: Site) -> None:
    job = finished(site.organisation, site.zone, data=data_of(site.organisation, site.zone))
    Node.objects.update(last_heartbeat_at=LATER)
    with time_machine.travel(LATER, tick=False):
        page = read_page(site.client.get(f"/jobs/{job.pk}"))
        assert page.count("Make it for") == 3
        site.client.post(f"/jobs/{job.pk}/exports", {"form": "gguf-q8_0"})
        export = Export.objects.get()
        assert export.price_micros == compute_price(site.zone, ExportForm.GGUF_Q8_0)
        page = read_page(site.client.get(f"/jobs/{job.pk}"))
        assert "Being made" in page
        assert page.count("Make it for") == 2
        assert site.client.get(f"/jobs/{job.pk}/exports/{export.pk}").status_code == 409
        asked = {"repository": "ada/tone", "token": "hf_secret"}
        site.client.post(f"/jobs/{job.pk}/pushes", asked)
        assert HubPush.objects.get().is_private
        page = site.client.get(f"/jobs/{job.pk}").content.decode()
        assert "ada/tone: Waiting" in page
        assert "hf_secret" not in page
