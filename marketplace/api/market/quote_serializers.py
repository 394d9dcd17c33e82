"""What the market's API answers with about quotes."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers as s

from marketplace.api.answers import Answer, Constant, Moment, NullText, Usd
from marketplace.api.market.bid_serializers import (
    CellSerializer,
    PlannedCell,
    PricePartsSerializer,
    StartSerializer,
    WorkSerializer,
)
from marketplace.api.market.fields import write_beat
from marketplace.auction.bidding.auto_settings import explain_choices
from marketplace.auction.bidding.quotes import BidQuote
from marketplace.auction.bidding.start_from import WARM
from marketplace.auction.book.decision_rows import serialize_parts
from marketplace.warm.offers import Outlook
from workers.protocol.wire import to_json


class CurvePointSerializer(Answer):
    deadline = Moment(source="deadline_at")
    price = Usd(source="price_micros", help_text="Posted price for this deadline.")
    finish_at = Moment(help_text="When the plan for this deadline ends.")


class QuotedJobSerializer(Answer):
    label = s.CharField(
        help_text="What sets this job apart: its values of the settings that are swept."
    )
    posted_price = Usd(
        source="price_micros",
        allow_null=True,
        help_text="What the job costs by itself; null: it has no plan.",
    )
    finish_at = Moment(allow_null=True, help_text="When its plan ends; null: it has none.")
    work = WorkSerializer(source="measured.work")


class SweepQuoteSerializer(Answer):
    object = Constant("bundle_quote")
    zone = s.CharField(source="zone.name")
    deadline = Moment(source="deadline_at")
    posted_price = Usd(
        source="price_micros",
        allow_null=True,
        help_text="What all jobs cost together; null: they have no plan.",
    )
    jobs = QuotedJobSerializer(
        many=True, help_text="Each job by itself, in the order of the sweep."
    )
    finish_at = Moment(allow_null=True, help_text="When the last plan ends; null: there is none.")
    reason = s.CharField(
        source="refusal",
        allow_null=True,
        help_text="Why there is no plan, as a word for programs; null: there is one.",
    )
    reason_text = NullText(source="refusal_text")
    curve = CurvePointSerializer(many=True)
    expires_at = Moment(help_text="Until then it is worth asking with; prices may move before.")
    position = s.IntegerField()
    head_hash = s.CharField()


class WarmStartSerializer(Answer):
    outlook = s.ChoiceField(
        [str(outlook) for outlook in Outlook],
        help_text="offered: bid with the model; asked: ask again in a moment; none: there is none.",
    )
    model = s.CharField(allow_null=True, help_text="What to bid with.")
    cold_price = Usd(
        source="cold_price_micros", allow_null=True, help_text="What the job costs without it."
    )

    def get_model(self, quote: BidQuote) -> str | None:
        start = quote.measured.start
        return f"{WARM}{start.offer_id}" if start is not None and start.offer_id else None


class QuotedVendorSerializer(Answer):
    id = s.CharField(source="vendor_id")
    name = s.CharField(help_text="Name of the vendor.")
    price = Usd(
        source="price_micros", help_text="What the vendor asks; it is a part of the posted price."
    )
    ready_at = Moment(help_text="When the prepared data are to be there.")


class QuoteSerializer(Answer):
    object = Constant("quote")
    zone = s.CharField(source="zone.name")
    deadline = Moment(source="deadline_at")
    posted_price = Usd(
        source="price_micros",
        allow_null=True,
        help_text="A bid of at least this wins now and pays this; null: there is no plan.",
    )
    price_parts = PricePartsSerializer(
        allow_null=True, help_text="What the price is made up of; null: there is no plan."
    )
    plan = CellSerializer(many=True)
    finish_at = Moment(allow_null=True, help_text="When the plan ends; null: there is none.")
    reason = s.CharField(
        source="refusal",
        allow_null=True,
        help_text="Why there is no plan, as a word for programs; null: there is one.",
    )
    reason_text = NullText(source="refusal_text")
    curve = CurvePointSerializer(many=True)
    verified_only = s.BooleanField(help_text="On nodes of verified providers only.")
    adapter = s.DictField()
    training = s.DictField()
    resolved = s.ListField(
        source="measured.resolved",
        child=s.CharField(),
        help_text="Settings that were 'auto' or left out.",
    )
    choices = s.DictField(
        child=s.CharField(), help_text="What was chosen for each of them, and why."
    )
    start = StartSerializer(
        source="measured.start",
        allow_null=True,
        help_text="What training begins with; null: the base model alone.",
    )
    beat = s.CharField(
        help_text="What a bid without a price names, so that it is told this price or the next "
        "beat's, and may take or leave it.",
    )
    warm_start = WarmStartSerializer(
        source="*", help_text="Whether weights of another job would make it cheaper."
    )
    work = WorkSerializer(source="measured.work")
    expires_at = Moment(help_text="Until then it is worth bidding by; prices may move before.")
    position = s.IntegerField()
    head_hash = s.CharField()
    vendor = QuotedVendorSerializer(
        allow_null=True,
        help_text="Who would prepare the data; null: they are trained on as they are.",
    )

    def get_price_parts(self, quote: BidQuote) -> dict[str, float] | None:
        return None if quote.parts is None else serialize_parts(quote.parts)

    def get_beat(self, quote: BidQuote) -> str:
        return write_beat(quote.beat)

    def get_plan(self, quote: BidQuote) -> list[PlannedCell]:
        return [PlannedCell(quote.zone, cell.slot, cell.node) for cell in quote.cells]

    def get_adapter(self, quote: BidQuote) -> Any:
        return to_json(quote.measured.terms.adapter)

    def get_training(self, quote: BidQuote) -> Any:
        return to_json(quote.measured.terms.training)

    def get_choices(self, quote: BidQuote) -> dict[str, str]:
        return explain_choices(
            quote.measured.resolved,
            adapter=quote.measured.terms.adapter,
            training=quote.measured.terms.training,
            rows=quote.measured.rows,
            sequence_length_limit=quote.zone.max_sequence_length,
        )
