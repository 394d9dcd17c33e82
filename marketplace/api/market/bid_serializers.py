"""What the market's API answers with about quotes, bids and bundles."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.db.models import prefetch_related_objects
from drf_spectacular.utils import OpenApiResponse
from rest_framework import serializers as s

from marketplace.api.answers import GIVEN, Answer, AsStored, Constant, Moment, NullText, Usd, usd
from marketplace.api.market.schemas import PROBLEM, ProblemSerializer
from marketplace.auction.bidding.auto_settings import explain_choices
from marketplace.auction.bidding.quotes import BidQuote
from marketplace.auction.bidding.refusals import REFUSAL_CODES, describe_bid_refusal
from marketplace.auction.bidding.start_from import WARM
from marketplace.auction.book.decision_rows import serialize_parts
from marketplace.auction.book.reservations import read_first_cells
from marketplace.auction.models import Bid, BidStatus, Bundle
from marketplace.auction.selectors import annotate_refunds, find_bundle_status, find_job_ids
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import slot_ends_at, slot_starts_at
from marketplace.warm.offers import Outlook
from scheduler.types import Refusal
from workers.protocol.starts import Start, StartKind
from workers.protocol.wire import to_json


class PlannedCell(NamedTuple):
    zone: Zone
    slot: int
    node: str


class CellSerializer(Answer):
    slot = s.IntegerField()
    node = s.CharField()
    starts_at = Moment()
    ends_at = Moment()

    def get_starts_at(self, cell: PlannedCell) -> Any:
        return slot_starts_at(cell.zone, cell.slot)

    def get_ends_at(self, cell: PlannedCell) -> Any:
        return slot_ends_at(cell.zone, cell.slot)


class PricePartsSerializer(Answer):
    vendor = Usd()
    operational = Usd()
    compute = Usd()
    memory = Usd()
    rounding = Usd()
    fee = Usd()
    card = Usd()
    tax = Usd()

    def to_representation(self, instance: dict[str, float]) -> dict[str, str]:
        # Parts are not whole micro-dollars.
        return {name: f"{amount / 1e6:.9f}" for name, amount in instance.items()}


class WorkSerializer(Answer):
    # Of a bid or a measured job, which have the same names for it.
    samples = s.IntegerField(help_text="Training rows times epochs.")
    units = s.IntegerField(
        help_text="Work units of all epochs and evaluations; one is about a token."
    )
    memory_gb = s.FloatField(source="memory_demand_gb")

    def get_units(self, work: Any) -> int:
        return round(work.compute_demand)


class DecisionSerializer(Answer):
    admitted = s.BooleanField()
    decided_at = Moment()
    position = s.IntegerField(help_text="Position in the zone's log.")
    hash = s.CharField(source="decision_hash")
    payment = Usd(source="payment_micros", allow_null=True)
    price_parts = PricePartsSerializer(source="parts", allow_null=True)
    plan = CellSerializer(many=True)
    finish_planned_at = Moment(allow_null=True)
    reason = NullText(source="refusal")
    code = s.CharField(allow_null=True, help_text="That of a 402 for this reason.")
    reason_text = s.CharField(allow_null=True)
    posted_price = Usd(source="winning_price_micros", allow_null=True)
    earliest_deadline = Moment(source="winning_deadline_at", allow_null=True)
    earliest_deadline_price = Usd(source="winning_deadline_price_micros", allow_null=True)

    def get_admitted(self, bid: Bid) -> bool:
        return bid.status == BidStatus.ADMITTED

    def get_plan(self, bid: Bid) -> list[PlannedCell]:
        return [PlannedCell(bid.zone, slot, node) for slot, node in bid.cells or ()]

    def get_code(self, bid: Bid) -> str | None:
        return REFUSAL_CODES[Refusal(bid.refusal)] if bid.refusal else None

    def get_reason_text(self, bid: Bid) -> str | None:
        return None if self.get_admitted(bid) else describe_bid_refusal(bid)


class ReceiptSerializer(AsStored):
    format = s.CharField()
    zone = s.CharField()
    position = s.IntegerField(help_text="Of the entry that received the bid.")
    hash = s.CharField(help_text="Of that entry, and so of the log up to it.")
    signed_at = s.DateTimeField()
    public_key = s.CharField(help_text="Listed at /.well-known/finetender-keys.json.")
    bid_id = s.CharField()
    sealed = s.CharField(help_text="SHA-256 of the bid's published part.")
    signature = s.CharField(help_text="Ed25519, over the other members.")


class StartSerializer(Answer):
    kind = s.ChoiceField([str(kind) for kind in StartKind])
    model = s.CharField(allow_null=True, help_text="'ft:' and the id of one of your jobs.")

    def get_model(self, start: Start) -> str | None:
        # Of another organisation's adapter, an answer tells only that it is one.
        return None if start.kind is StartKind.DONOR else f"ft:{start.job_id}"


class TermsAnswer(Answer):
    """The terms of a bid or a job."""

    dataset_id = s.CharField(help_text="What it trains on; a job's, after a preparation.")
    validation_dataset_id = s.CharField(
        allow_null=True, help_text="Whose rows are held out; null: a share of the data set's."
    )
    verified_only = s.BooleanField(help_text="On nodes of verified providers only.")
    metadata = s.DictField(
        source="terms.metadata",
        child=s.CharField(),
        allow_null=True,
        help_text="As it was sent.",
    )


class BidSerializer(TermsAnswer):
    first = ("id", "object", "zone", "name", "status", "price", "deadline", "created_at")
    id = s.CharField()
    object = Constant("bid")
    zone = s.CharField(source="zone.name")
    name = s.CharField()
    status = s.ChoiceField(BidStatus.values)
    price = Usd(source="price_micros")
    deadline = Moment(source="deadline_at")
    created_at = Moment()
    adapter = s.DictField()
    training = s.DictField()
    resolved = s.ListField(child=s.CharField(), help_text="Settings that were 'auto' or left out.")
    choices = s.DictField(
        child=s.CharField(), help_text="What was chosen for each of them, and why."
    )
    start = StartSerializer(allow_null=True)
    work = WorkSerializer(source="*")
    receipt = ReceiptSerializer(allow_null=True)
    decision = DecisionSerializer(allow_null=True)
    job_id = s.CharField(source=GIVEN, allow_null=True)
    bundle_id = s.CharField(allow_null=True, help_text="The bundle it was placed with.")
    refunded = Usd(source="refund_micros")
    credit = Usd(source="credit_micros")

    def get_adapter(self, bid: Bid) -> Any:
        return {} if bid.terms is None else to_json(bid.terms.adapter)

    def get_training(self, bid: Bid) -> Any:
        return {} if bid.terms is None else to_json(bid.terms.training)

    def get_choices(self, bid: Bid) -> dict[str, str]:
        if bid.terms is None:
            return {}
        return explain_choices(
            bid.resolved,
            adapter=bid.terms.adapter,
            training=bid.terms.training,
            rows=0 if bid.dataset is None else bid.dataset.rows,
            sequence_length_limit=bid.zone.max_sequence_length,
        )

    def get_receipt(self, bid: Bid) -> Any:
        return json.loads(bid.receipt) if bid.receipt else None

    def get_decision(self, bid: Bid) -> Bid | None:
        return None if bid.position is None else bid


def serialize_bids(bids: Sequence[Bid]) -> list[dict[str, Any]]:
    """Show bids, what they need being read for all together."""
    jobs = find_job_ids(bids)
    prefetch_related_objects(bids, "dataset")
    read_first_cells(bids)
    return [BidSerializer.show(bid, job_id=jobs.get(bid.pk)) for bid in bids]


class RefusedBidSerializer(ProblemSerializer):
    reason = s.CharField(required=False)
    posted_price = Usd(required=False, allow_null=True)
    earliest_deadline = Moment(required=False, allow_null=True)
    earliest_deadline_price = Usd(required=False, allow_null=True)
    short_by = Usd("What the wallet lacks, with insufficient_funds.", required=False)
    bid = BidSerializer(required=False, help_text="Not with insufficient_funds: none was placed.")


BID_RESPONSES = {
    201: OpenApiResponse(BidSerializer, description="Admitted."),
    202: OpenApiResponse(BidSerializer, description="Not decided yet; look at Location."),
    400: PROBLEM,
    401: PROBLEM,
    402: OpenApiResponse(
        RefusedBidSerializer,
        description="Refused by the auction (bid_below_price, no_capacity, no_window, no_memory), "
        "or the wallet has less than the price (insufficient_funds).",
    ),
    409: PROBLEM,
}


class BidBatchItemSerializer(AsStored):
    status = s.IntegerField()
    body = s.DictField()


class BidBatchSerializer(AsStored):
    data = BidBatchItemSerializer(many=True)


class BundleSerializer(Answer):
    id = s.CharField()
    object = Constant("bundle")
    zone = s.CharField(source="zone.name")
    name = s.CharField()
    status = s.ChoiceField(
        BidStatus.values,
        source=GIVEN,
        help_text="pending while any bid is; admitted where any bid was.",
    )
    all_or_none = s.BooleanField()
    price = Usd(source="price_micros")
    deadline = Moment(source="deadline_at")
    created_at = Moment()
    sweep = s.DictField()
    payment = Usd(source=GIVEN)
    reason = NullText(source="refusal", help_text="Why all lost; as of a bid.")
    posted_price = Usd(source="winning_price_micros", allow_null=True)
    position = s.IntegerField(allow_null=True, help_text="Of its own entry in the log.")
    bids = BidSerializer(source=GIVEN, many=True)


def serialize_bundle(bundle: Bundle) -> dict[str, Any]:
    bids = list(annotate_refunds(bundle.bids.select_related("zone")).order_by("arrival"))
    return BundleSerializer.show(
        bundle,
        status=find_bundle_status(bids),
        payment=usd(sum(bid.payment_micros or 0 for bid in bids)),
        bids=serialize_bids(bids),
    )


class RefusedBundleSerializer(ProblemSerializer):
    bundle = BundleSerializer(
        required=False, help_text="Not with insufficient_funds: none was placed."
    )


REFUSED_BUNDLE = OpenApiResponse(
    RefusedBundleSerializer,
    description="Refused by the auction, or the wallet has less than the price.",
)


class CurvePointSerializer(Answer):
    deadline = Moment(source="deadline_at")
    price = Usd(source="price_micros")
    finish_at = Moment()


class QuotedJobSerializer(Answer):
    label = s.CharField()
    posted_price = Usd(source="price_micros", allow_null=True)
    finish_at = Moment(allow_null=True)
    work = WorkSerializer(source="measured.work")


class SweepQuoteSerializer(Answer):
    object = Constant("bundle_quote")
    zone = s.CharField(source="zone.name")
    deadline = Moment(source="deadline_at")
    posted_price = Usd(source="price_micros", allow_null=True)
    jobs = QuotedJobSerializer(many=True)
    finish_at = Moment(allow_null=True)
    reason = s.CharField(source="refusal", allow_null=True)
    reason_text = NullText(source="refusal_text")
    curve = CurvePointSerializer(many=True)
    expires_at = Moment()
    position = s.IntegerField()
    head_hash = s.CharField()


class WarmStartSerializer(Answer):
    outlook = s.ChoiceField([str(outlook) for outlook in Outlook])
    model = s.CharField(allow_null=True, help_text="What to bid with.")
    cold_price = Usd(source="cold_price_micros", allow_null=True)

    def get_model(self, quote: BidQuote) -> str | None:
        start = quote.measured.start
        return f"{WARM}{start.offer_id}" if start is not None and start.offer_id else None


class QuotedVendorSerializer(Answer):
    id = s.CharField(source="vendor_id")
    name = s.CharField()
    price = Usd(source="price_micros")
    ready_at = Moment()


class QuoteSerializer(Answer):
    object = Constant("quote")
    zone = s.CharField(source="zone.name")
    deadline = Moment(source="deadline_at")
    posted_price = Usd(source="price_micros", allow_null=True)
    price_parts = PricePartsSerializer(allow_null=True)
    plan = CellSerializer(many=True)
    finish_at = Moment(allow_null=True)
    reason = s.CharField(source="refusal", allow_null=True)
    reason_text = NullText(source="refusal_text")
    curve = CurvePointSerializer(many=True)
    verified_only = s.BooleanField(help_text="On nodes of verified providers only.")
    adapter = s.DictField()
    training = s.DictField()
    resolved = s.ListField(source="measured.resolved", child=s.CharField())
    choices = s.DictField(child=s.CharField())
    start = StartSerializer(source="measured.start", allow_null=True)
    warm_start = WarmStartSerializer(source="*")
    work = WorkSerializer(source="measured.work")
    expires_at = Moment()
    position = s.IntegerField()
    head_hash = s.CharField()
    vendor = QuotedVendorSerializer(allow_null=True)

    def get_price_parts(self, quote: BidQuote) -> dict[str, float] | None:
        return None if quote.parts is None else serialize_parts(quote.parts)

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
