"""README's lines over the API where the market sells nothing at first, or nothing at all."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from marketplace.api.market import bid_serializers
from marketplace.auction.bidding.refusals import describe_bid_refusal
from marketplace.auction.models import Bid
from marketplace.embedded.__main__ import build_readme_lines
from marketplace.fleet.models import Node, Zone
from marketplace.jobs.models import Job
from tests import builders
from tests.unit.marketplace.api.client import ROWS
from tests.unit.marketplace.api.web_server import serve

pytestmark = pytest.mark.django_db(transaction=True)

DATASET = Path("workers") / "models" / "datasets" / "support_tone.jsonl"
NOBODY = "No node of this zone is running at the moment. Ask again in a minute."


def paste(url: str, key: str, *, where: Path) -> str:
    """What the lines print, where waiting for half a minute takes no time."""
    (where / DATASET).parent.mkdir(parents=True)
    (where / DATASET).write_bytes(ROWS)
    lines = "\n".join(build_readme_lines(url, key)).replace("finetender-tiny", "tiny")
    # No node trains here: the job is looked at once.
    lines = lines.replace("25m", "5m").replace("seq 900", "seq 1")
    done = subprocess.run(
        ["bash", "-c", f'sleep() {{ [ "$1" != 30 ] || echo waited; }}\n{lines}'],
        cwd=where,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.stdout


@pytest.fixture
def sold_out_zone(tokenizer_zone: Zone) -> Zone:
    Zone.objects.update(name="tiny")
    Node.objects.update(status="offline")
    return tokenizer_zone


def test_a_bid_that_finds_no_room_is_placed_again_until_there_is_some(
    lane: None, sold_out_zone: Zone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def describe(bid: Bid) -> str:
        words = describe_bid_refusal(bid)
        if Bid.objects.count() == 3:
            Node.objects.update(status="online")
        return words

    monkeypatch.setattr(bid_serializers, "describe_bid_refusal", describe)
    _, secret = builders.api_key(builders.organisation(usd="10"))
    with serve() as url:
        said = paste(url, secret, where=tmp_path)
    assert said.splitlines()[:4] == [f'"reason_text":"{NOBODY}"', "waited"] * 2
    assert (said.count("reason_text"), said.count("waited")) == (3, 3)
    assert Bid.objects.count() == 4
    assert Job.objects.count() == 1


def test_where_nothing_is_sold_the_lines_end_and_ask_for_no_adapter(
    lane: None, sold_out_zone: Zone, tmp_path: Path
) -> None:
    _, secret = builders.api_key(builders.organisation(usd="10"))
    with serve() as url:
        said = paste(url, secret, where=tmp_path)
    assert said.splitlines() == [f'"reason_text":"{NOBODY}"', "waited"] * 20
    assert not Job.objects.exists()


def test_where_no_bid_is_taken_at_all_nothing_is_asked_again(
    lane: None, tokenizer_zone: Zone, tmp_path: Path
) -> None:
    Zone.objects.update(name="tiny")
    _, secret = builders.api_key(builders.organisation())
    with serve() as url:
        assert paste(url, secret, where=tmp_path) == ""
    assert not Bid.objects.exists()
