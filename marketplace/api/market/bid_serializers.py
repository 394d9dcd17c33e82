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
from marketplace.auction.bidding.refusals import REFUSAL_CODES, describe_bid_refusal
from marketplace.auction.book.reservations import read_first_cells
from marketplace.auction.models import Bid, BidStatus, Bundle
from marketplace.auction.selectors import annotate_refunds, find_bundle_status, find_job_ids
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import slot_ends_at, slot_starts_at
from scheduler.types import Refusal
from workers.protocol.starts import Start, StartKind
from workers.protocol.wire import to_json


class PlannedCell(NamedTuple):
    zone: Zone
    slot: int
    node: str


class CellSerializer(Answer):
    slot = s.IntegerField(help_text="Number of the slot, counted from the zone's first.")
    node = s.CharField(help_text="Id of the node.")
    starts_at = Moment(help_text="When the slot begins.")
    ends_at = Moment(help_text="When the slot ends.")

    def get_starts_at(self, cell: PlannedCell) -> Any:
        return slot_starts_at(cell.zone, cell.slot)

    def get_ends_at(self, cell: PlannedCell) -> Any:
        return slot_ends_at(cell.zone, cell.slot)


class PricePartsSerializer(Answer):
    vendor = Usd(help_text="What the vendor of the data's preparation asks.")
    operational = Usd(help_text="What providers ask for the cells.")
    compute = Usd(help_text="What the work units cost in these cells.")
    memory = Usd(help_text="What the memory costs in these cells.")
    rounding = Usd(help_text="What rounding up adds.")
    fee = Usd(help_text="The house's fee.")
    card = Usd(help_text="What the payment by card costs at most.")
    tax = Usd(help_text="The tax in the price at most.")

    def to_representation(self, instance: dict[str, float]) -> dict[str, str]:
        # Parts are not whole micro-dollars.
        return {name: f"{amount / 1e6:.9f}" for name, amount in instance.items()}


class WorkSerializer(Answer):
    # Of a bid or a measured job, which have the same names for it.
    samples = s.IntegerField(help_text="Training rows times epochs.")
    units = s.IntegerField(
        help_text="Work units of all epochs and evaluations; one is about a token."
    )
    memory_gb = s.FloatField(
        source="memory_demand_gb", help_text="Memory that it takes on a node, in GB."
    )

    def get_units(self, work: Any) -> int:
        return round(work.compute_demand)


class DecisionSerializer(Answer):
    admitted = s.BooleanField(help_text="Whether the bid won.")
    decided_at = Moment(help_text="When it was decided.")
    position = s.IntegerField(help_text="Position in the zone's log.")
    hash = s.CharField(source="decision_hash", help_text="Hash of the decision's entry in the log.")
    payment = Usd(
        source="payment_micros", allow_null=True, help_text="What the job pays; null: the bid lost."
    )
    price_parts = PricePartsSerializer(
        source="parts", allow_null=True, help_text="What the payment is made up of."
    )
    plan = CellSerializer(many=True, help_text="Cells that the job won.")
    finish_planned_at = Moment(
        allow_null=True, help_text="When the plan ends; null: there is none."
    )
    reason = NullText(
        source="refusal", help_text="Why the bid lost, as a word for programs; null: it won."
    )
    code = s.CharField(allow_null=True, help_text="That of a 402 for this reason.")
    reason_text = s.CharField(allow_null=True, help_text="The same as a sentence, with what to do.")
    posted_price = Usd(
        source="winning_price_micros",
        allow_null=True,
        help_text="What would have won by the same deadline; null: nothing would.",
    )
    earliest_deadline = Moment(
        source="winning_deadline_at",
        allow_null=True,
        help_text="The earliest deadline that had a plan; null: none had.",
    )
    earliest_deadline_price = Usd(
        source="winning_deadline_price_micros",
        allow_null=True,
        help_text="What would have won by that deadline.",
    )

    def get_admitted(self, bid: Bid) -> bool:
        return bid.status == BidStatus.ADMITTED

    def get_plan(self, bid: Bid) -> list[PlannedCell]:
        return [PlannedCell(bid.zone, slot, node) for slot, node in bid.cells or ()]

    def get_code(self, bid: Bid) -> str | None:
        return REFUSAL_CODES[Refusal(bid.refusal)] if bid.refusal else None

    def get_reason_text(self, bid: Bid) -> str | None:
        return None if self.get_admitted(bid) else describe_bid_refusal(bid)


class ReceiptSerializer(AsStored):
    format = s.CharField(help_text="Version of this form of receipts.")
    zone = s.CharField()
    position = s.IntegerField(help_text="Of the entry that received the bid.")
    hash = s.CharField(help_text="Of that entry, and so of the log up to it.")
    signed_at = s.DateTimeField(help_text="When the market signed it.")
    public_key = s.CharField(help_text="Listed at /.well-known/finetender-keys.json.")
    bid_id = s.CharField()
    sealed = s.CharField(help_text="SHA-256 of the bid's published part.")
    signature = s.CharField(help_text="Ed25519, over the other members.")


class StartSerializer(Answer):
    kind = s.ChoiceField(
        [str(kind) for kind in StartKind],
        help_text="continued: you chose it; own, donor: the market offered yours, or another's.",
    )
    model = s.CharField(allow_null=True, help_text="'ft:' and the id of one of your jobs.")

    def get_model(self, start: Start) -> str | None:
        # Of another organisation's adapter, an answer tells only that it is one.
        return None if start.kind is StartKind.DONOR else f"ft:{start.job_id}"


class ResumptionSerializer(Answer):
    job_id = s.CharField(help_text="The job that was paused.")
    step = s.IntegerField(help_text="Step of its checkpoint; only those after it are bought.")


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


class OfferSerializer(Answer):
    price = Usd(
        source="price_offer.price_micros",
        allow_null=True,
        help_text="What it was told: taken at once, it costs no more. Null: nothing was told yet.",
    )
    position = s.IntegerField(
        source="price_offer.position",
        allow_null=True,
        help_text="Of the price in the zone's log; null: it has none yet.",
    )
    answer_by = Moment(
        source="price_offer.answer_by", allow_null=True, help_text="When it lapses unanswered."
    )
    takes = s.BooleanField(
        source="price_offer.takes", allow_null=True, help_text="Your answer; null: none."
    )
    lapse = NullText(
        source="price_offer.lapse",
        help_text="Why it lapsed, as a word for programs; null: it did not.",
    )


class BidSerializer(TermsAnswer):
    first = ("id", "object", "zone", "name", "status", "price", "deadline", "created_at")
    id = s.CharField()
    object = Constant("bid")
    zone = s.CharField(source="zone.name")
    name = s.CharField(help_text="Name of the bid and of its job.")
    status = s.ChoiceField(
        BidStatus.values,
        help_text="pending until it is decided, then admitted or refused; priced while a bid "
        "without a price waits for your answer; cancelled if taken back, or if its price lapsed.",
    )
    price = Usd(
        source="price_micros",
        allow_null=True,
        help_text="The most that the job is worth to you; null: the market was not told.",
    )
    offer = OfferSerializer(
        allow_null=True, help_text="Of a bid without a price: what it may take or leave."
    )
    deadline = Moment(source="deadline_at")
    created_at = Moment()
    adapter = s.DictField()
    training = s.DictField()
    resolved = s.ListField(child=s.CharField(), help_text="Settings that were 'auto' or left out.")
    choices = s.DictField(
        child=s.CharField(), help_text="What was chosen for each of them, and why."
    )
    start = StartSerializer(
        allow_null=True, help_text="What training begins with; null: the base model alone."
    )
    work = WorkSerializer(source="*")
    receipt = ReceiptSerializer(
        allow_null=True,
        help_text="The market's signed word that it received the bid; null until it is logged.",
    )
    decision = DecisionSerializer(
        allow_null=True, help_text="What the auction decided; null until then."
    )
    job_id = s.CharField(source=GIVEN, allow_null=True)
    bundle_id = s.CharField(allow_null=True, help_text="The bundle it was placed with.")
    refunded = Usd(source="refund_micros", help_text="What came back of the payment.")
    credit = Usd(
        source="credit_micros", help_text="What was paid to you because the deadline was missed."
    )

    def get_price(self, bid: Bid) -> int | None:
        return None if bid.asks_price else bid.price_micros

    def get_offer(self, bid: Bid) -> Bid | None:
        return bid if bid.asks_price else None

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
    prefetch_related_objects([bid for bid in bids if bid.asks_price], "price_offer")
    read_first_cells(bids)
    return [BidSerializer.show(bid, job_id=jobs.get(bid.pk)) for bid in bids]


class RefusedBidSerializer(ProblemSerializer):
    reason = s.CharField(required=False, help_text="Why the bid lost, as a word for programs.")
    posted_price = Usd(
        required=False,
        allow_null=True,
        help_text="What would have won by the same deadline; null: nothing would.",
    )
    earliest_deadline = Moment(
        required=False,
        allow_null=True,
        help_text="The earliest deadline that had a plan; null: none had.",
    )
    earliest_deadline_price = Usd(
        required=False, allow_null=True, help_text="What would have won by that deadline."
    )
    short_by = Usd("What the wallet lacks, with insufficient_funds.", required=False)
    bid = BidSerializer(required=False, help_text="Not with insufficient_funds: none was placed.")


BID_RESPONSES = {
    200: OpenApiResponse(BidSerializer, description="It was told its price: take or leave it."),
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


ANSWER_RESPONSES = {
    **BID_RESPONSES,
    200: OpenApiResponse(BidSerializer, description="You left the price."),
}


class BidBatchItemSerializer(AsStored):
    status = s.IntegerField(help_text="The HTTP status that this bid would have had alone.")
    body = s.DictField(help_text="The body that it would have had: a bid, or a problem.")


class BidBatchSerializer(AsStored):
    data = BidBatchItemSerializer(
        many=True, help_text="An answer for each bid, in the order of the request."
    )


class BundleSerializer(Answer):
    id = s.CharField()
    object = Constant("bundle")
    zone = s.CharField(source="zone.name")
    name = s.CharField(help_text="Name of the bundle; its jobs are called after it.")
    status = s.ChoiceField(
        BidStatus.values,
        source=GIVEN,
        help_text="pending while any bid is; admitted where any bid was.",
    )
    all_or_none = s.BooleanField(help_text="Whether all of its jobs win or none does.")
    price = Usd(
        source="price_micros",
        help_text="The most that all jobs are worth together, or each of them.",
    )
    deadline = Moment(source="deadline_at")
    created_at = Moment()
    sweep = s.DictField(help_text="The values that were asked for, by setting.")
    payment = Usd(source=GIVEN, help_text="What its jobs pay together.")
    reason = NullText(source="refusal", help_text="Why all lost; as of a bid.")
    posted_price = Usd(
        source="winning_price_micros",
        allow_null=True,
        help_text="What would have won; null: it won, or nothing would have.",
    )
    position = s.IntegerField(allow_null=True, help_text="Of its own entry in the log.")
    bids = BidSerializer(source=GIVEN, many=True, help_text="Its bids, one for each job.")


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
