"""The documentation's pages: every guide, every operation, and a search through them."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from marketplace.web.presenters.docs import SURFACES, load_guides, load_reference
from tests import builders

pytestmark = pytest.mark.django_db


def get(path):
    return Client().get(path)


def test_every_page_is_served_and_links_lead_to_pages_or_out():
    pages = ["/docs", *(f"/docs/{slug}" for slug in load_guides())]
    pages += [f"/docs/api/{surface}" for surface in SURFACES]
    for page in pages:
        answer = get(page)
        assert answer.status_code == 200, page
        article = answer.content.decode().partition("<article")[2].partition("</article>")[0]
        for target in re.findall(r'href="([^"]+)"', article):
            assert target.startswith("https://") or get(target).status_code == 200, (page, target)
    assert get("/docs/missing").status_code == 404
    assert get("/docs/api/internal").status_code == 404


def test_a_reference_lists_every_operation_with_what_it_takes():
    bids = {(one.method, one.path): one for one in load_reference("market")}
    placed = bids["POST", "/api/bids"]
    assert {"zone", "dataset_id", "deadline"} <= {
        one.name for one in placed.body if one.is_required
    }
    assert ("DELETE", "/api/bids/{bid_id}") not in bids
    assert "402" in dict(placed.answers)


def test_a_search_finds_sections_and_operations_and_shows_hostile_words_as_text():
    found = get("/docs?q=webhook-id").content.decode()
    assert "/docs/webhooks#" in found
    assert "/docs/api/market#keys_rotate" in get("/docs?q=overlap_s").content.decode()
    hostile = get("/docs?q=%3Cscript%3Ealert(1)%3C/script%3E").content.decode()
    assert "0 places" in hostile
    assert "<script>alert" not in hostile
    assert get("/docs?q=" + "x" * 5000).status_code == 200


def test_the_playground_is_for_members():
    assert get("/playground").status_code == 302
    client = Client()
    client.force_login(builders.owner_of(builders.organisation()))
    assert b'id="model-tuned"' in client.get("/playground").content
