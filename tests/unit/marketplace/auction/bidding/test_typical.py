"""What usual jobs would cost: round sizes, real prices, nothing where nothing is on sale."""

from __future__ import annotations

from datetime import timedelta

import pytest

from marketplace.auction.bidding.job_request import JobRequest
from marketplace.auction.bidding.quotes import make_quote
from marketplace.auction.bidding.typical import (
    EPOCHS,
    SizedJob,
    TypicalQuote,
    make_typical_quotes,
    quote_sized_job,
)
from marketplace.common.errors import UserError
from marketplace.fleet.models import Zone
from tests import builders, market_builders
from tests.builders import NOW

pytestmark = pytest.mark.django_db


def list_a_zone() -> Zone:
    zone = market_builders.zone()
    market_builders.node(zone)
    return zone


def test_sizes_are_round_and_rise() -> None:
    quotes = make_typical_quotes(zone=list_a_zone(), now=NOW)
    sizes = [quote.job.rows for quote in quotes]
    assert sizes == sorted(set(sizes))
    assert all(str(rows).rstrip("0") in ("1", "2", "5") for rows in sizes)
    assert all(quote.job.tokens % quote.job.rows == 0 for quote in quotes)


def test_prices_are_those_of_a_real_quote() -> None:
    zone = list_a_zone()
    owner = builders.organisation()
    for quote in make_typical_quotes(zone=zone, now=NOW):
        data = market_builders.dataset(owner, zone, rows=quote.job.rows)
        training = {"epochs": EPOCHS, "sequence_length": zone.reference_sequence_length}
        job = JobRequest(owner, zone, data, adapter={}, training=training)
        real = make_quote(job, deadline_at=quote.deadlines[-1], now=NOW)
        assert quote.prices[-1] == real.price_micros is not None


def test_a_later_deadline_never_costs_more_and_an_early_one_may_be_too_soon() -> None:
    quotes = make_typical_quotes(zone=list_a_zone(), now=NOW)
    for quote in quotes:
        assert quote.deadlines == tuple(sorted(quote.deadlines))
        known = [price for price in quote.prices if price is not None]
        assert known == sorted(known, reverse=True)
        assert quote.prices[len(quote.prices) - len(known) :] == tuple(known)
    assert quotes[-1].prices[0] is None


def test_one_answer_serves_everybody_for_a_moment() -> None:
    zone = list_a_zone()
    first = make_typical_quotes(zone=zone, now=NOW)
    assert make_typical_quotes(zone=zone, now=NOW + timedelta(seconds=9)) is first
    assert make_typical_quotes(zone=zone, now=NOW + timedelta(seconds=11)) is not first


def test_a_zone_without_nodes_has_no_typical_prices() -> None:
    none: tuple[TypicalQuote, ...] = ()
    assert make_typical_quotes(zone=market_builders.zone(), now=NOW) == none


def test_a_size_is_quoted_as_its_data_set_would_be() -> None:
    zone = list_a_zone()
    owner = builders.organisation()
    tokens = zone.reference_sequence_length
    sized = quote_sized_job(zone=zone, job=SizedJob(40, tokens, EPOCHS), now=NOW)
    data = market_builders.dataset(owner, zone, rows=40)
    training = {"epochs": EPOCHS, "sequence_length": tokens}
    job = JobRequest(owner, zone, data, adapter={}, training=training)
    real = make_quote(job, deadline_at=sized.ends_at, now=NOW)
    assert sized.curve == real.curve != ()
    assert sized.work.compute_demand == real.measured.work.compute_demand
    assert sized.refusal_text == ""


def test_epochs_that_are_left_out_are_the_markets_and_too_much_work_is_refused_in_words() -> None:
    zone = list_a_zone()
    sized = quote_sized_job(zone=zone, job=SizedJob(40, 16), now=NOW)
    assert sized.settings.training.epochs == 10
    much = quote_sized_job(zone=zone, job=SizedJob(1_000_000, 64, 50), now=NOW)
    assert much.curve == ()
    assert much.refusal_text.startswith("This is more work than the machines here do")
    with pytest.raises(UserError, match="give a value from 1 to 50"):
        quote_sized_job(zone=zone, job=SizedJob(40, 16, 0), now=NOW)
