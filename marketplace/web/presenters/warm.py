"""Warm starts in words: of a quote, and of a job."""

from __future__ import annotations

from dataclasses import dataclass

from marketplace.auction.bidding.quotes import BidQuote
from marketplace.auction.models import Bid
from marketplace.common.money import format_usd
from marketplace.jobs.models import Job
from marketplace.warm.models import Donor, Offer
from marketplace.warm.offers import Outlook
from marketplace.warm.selectors import find_donor, list_starts_from
from workers.protocol.starts import Drop, Start, StartKind


@dataclass(frozen=True, slots=True)
class WarmQuote:
    """What the quote card says of a warm start."""

    #: A node is being asked: the page looks again.
    is_asked: bool
    offer_id: str = ""
    lead: str = ""
    guarantee: str = ""


GUARANTEE = (
    "Never above the price without it, for an adapter at least as good. If training is not that "
    "far by then it goes on, and if need be begins again with the base model, at no cost to you."
)

#: Who allowed it.
OWN = "Adapters of your own are used without asking you, and no one else is shown them."
GIVEN = "Its owner gives it, and you allow it on the page of your data sets."


def present_warm_quote(quote: BidQuote) -> WarmQuote | None:
    """The warm start of a quote in words; ``None`` without one."""
    if quote.outlook is Outlook.ASKED:
        return WarmQuote(is_asked=True)
    start = quote.measured.start
    if start is None or not start.offer_id:
        return None
    is_own = start.kind == StartKind.OWN
    whose = "your own earlier adapter" if is_own else "a given adapter"
    return WarmQuote(
        is_asked=False,
        offer_id=start.offer_id,
        lead=_describe_saving(quote, whose),
        guarantee=f"{GUARANTEE} {OWN if is_own else GIVEN}",
    )


def _describe_saving(quote: BidQuote, whose: str) -> str:
    if quote.cold_price_micros is None:
        return f"Only a warm start from {whose} ends by this deadline."
    percent = round(100 * quote.saved_share)
    share = f"About {percent} % less" if percent else "Less than 1 % less"
    return f"{share} with a warm start from {whose}."


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where a job's weights come from, and what came of them."""

    #: Sentences.
    notes: tuple[str, ...]
    #: The owner's own job it began with.
    own_job: Job | None
    #: Jobs of the owner's that began with its adapter.
    followers: tuple[Job, ...]
    #: Whether its adapter may be given to others' jobs at all, and whether it is.
    can_be_given: bool
    #: Why not, where it is a donor; empty otherwise.
    why_withheld: str
    is_given: bool
    royalties_micros: int


def present_lineage(job: Job, bid: Bid) -> Lineage:
    """What a job's owner is shown of its lineage: of others' jobs only that there are such."""
    start, donor = job.start, find_donor(job)
    why_withheld = "" if donor is None else _explain_withheld(donor)
    offers = list_starts_from(job)
    own = [offer.job for offer in offers if offer.organisation_id == job.organisation_id]
    others = len(offers) - len(own)
    notes = [] if start is None else [_describe_start(start, has_begun=job.started_at is not None)]
    if start is not None and bid.cold_price_micros is not None:
        notes.append(
            f"The warm start saved {format_usd(_count_saving(bid))}: without it the price was "
            f"{format_usd(bid.cold_price_micros)}."
        )
    if others:
        notes.append(
            f"{others} job{'s' * (others != 1)} of others began with this adapter, which earned "
            f"you {format_usd(_sum_royalties(offers))}."
        )
    own_job = None
    if start is not None and start.kind != StartKind.DONOR:
        own_job = Job.objects.filter(pk=start.job_id, organisation=job.organisation_id).first()
    return Lineage(
        notes=tuple(notes),
        own_job=own_job,
        followers=tuple(follower for follower in own if follower is not None),
        can_be_given=donor is not None and not why_withheld,
        why_withheld=why_withheld,
        is_given=donor is not None and donor.given,  # type: ignore[attr-defined]
        royalties_micros=_sum_royalties(offers),
    )


def _explain_withheld(donor: Donor) -> str:
    """Why no job of others may begin with an adapter; empty where its owner may give it."""
    if donor.builds_on_others:
        return "It began with an adapter of somebody else, so it is not yours alone to give."
    if donor.has_memorised:
        return "It has learnt some of its rows by heart, so their text could be read out of it."
    if donor.did_harm:
        return "Jobs of several organisations did worse with it than without and began again."
    return ""


def _count_saving(bid: Bid) -> int:
    paid = (bid.payment_micros or 0) - bid.excess_micros
    return max(0, (bid.cold_price_micros or 0) - paid)


def _sum_royalties(offers: list[Offer]) -> int:
    return sum(offer.royalty_paid_micros for offer in offers)


def _describe_start(start: Start, *, has_begun: bool) -> str:
    if start.kind == StartKind.CONTINUED:
        return "Continues from an adapter of yours."
    whose = "an earlier adapter of yours" if start.kind == StartKind.OWN else "a given adapter"
    match start.dropped:
        case Drop.WITHDRAWN:
            return f"Was sold to begin with {whose}, which was withdrawn: it begins cold."
        case Drop.UNUSABLE:
            return f"Was sold to begin with {whose}, which nodes could not use: it begins cold."
        case Drop.FELL_BEHIND:
            return f"Began warm, with {whose}; above its target loss, it began again cold."
        case None:
            begins = "Began" if has_begun else "Begins"
            return f"{begins} warm, with {whose}, and was sold {start.steps:,} steps."
