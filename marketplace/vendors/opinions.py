"""Second opinions: sampled rows of a delivery are done again by another person, unseen.

As spot checks do for nodes, they look at each vendor's first deliveries and at later ones by
chance. Of people's work another person of the same vendor may give them, or an operator; of an
outside vendor's an operator. The vendor's pay waits for them, but not for ever. Where too few
agree, an operator decides about it as about any dispute.
"""

from __future__ import annotations

import heapq
import json
import logging
from collections import defaultdict
from collections.abc import Container, Iterator
from datetime import datetime, timedelta
from fractions import Fraction
from pathlib import Path

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils.crypto import salted_hmac

from marketplace.accounts.models import WORKERS, Membership, User
from marketplace.common.errors import NotFound, UserError
from marketplace.jobs.models import EventKind
from marketplace.jobs.services import add_job_event
from marketplace.payments.services import release_vendor_pay, withhold_vendor_pay
from marketplace.vendors.access import note_first_look
from marketplace.vendors.agreement import Agreement, count_agreement, name_decision
from marketplace.vendors.handed_files import FoundRow
from marketplace.vendors.handover import clean_text
from marketplace.vendors.locks import lock_open_dispute, lock_opinion, lock_preparation
from marketplace.vendors.models import (
    Dispute,
    Preparation,
    PreparationStatus,
    RowEdit,
    RowOpinion,
    VendorKind,
)
from marketplace.vendors.people import read_row
from workers.protocol.likeness import say_the_same

log = logging.getLogger(__name__)

#: The first deliveries of a vendor are all sampled; of the later ones, one in this many.
FIRST_DELIVERIES = 3
SAMPLED_OF = 4
#: Rows of a sampled delivery.
ROWS = 5
#: Of the opinions, the share that agrees at least before the vendor is paid without a question.
AGREEING_SHARE_MIN = Fraction(3, 5)
#: An opinion's limit in letters: a multiple of the row's length, and a number beside.
LONGER_MAX = 2
LETTERS_MORE = 1000
#: After acceptance, how long pay waits for opinions.
WAITS_FOR = timedelta(days=7)
_SALT = "marketplace.vendors.opinions"


def draw_sample(
    preparation: Preparation, *, rows: Iterator[FoundRow], delivered: Path
) -> tuple[RowOpinion, ...]:
    """Choose rows of a delivery for a second opinion, not saved; none where it is not sampled.

    Which ones nobody outside the market can foresee. Call without a transaction.

    Parameters
    ----------
    rows
        All rows as their vendor found them.
    delivered
        The delivery, each row with its id.
    """
    if not _is_sampled(preparation):
        return ()
    found = {
        row.number: row
        for row in heapq.nsmallest(ROWS, rows, key=lambda row: _draw(preparation, str(row.number)))
    }
    values = dict(_iter_delivered(delivered, found))
    edits = RowEdit.objects.filter(row__preparation=preparation, row__number__in=found)
    persons: defaultdict[int, list[str]] = defaultdict(list)
    last: dict[int, str] = {}
    for edit in edits.order_by("pk").values("row__number", "edited_by_id", "undone_at"):
        persons[edit["row__number"]].append(edit["edited_by_id"])
        if edit["undone_at"] is None:
            last[edit["row__number"]] = edit["edited_by_id"]
    sample: list[RowOpinion] = []
    for number, row in sorted(found.items()):
        proposal, made = clean_text(row.proposal), clean_text(values.get(number, ""))
        sample.append(
            RowOpinion(
                preparation=preparation,
                number=number,
                raw=clean_text(row.raw),
                proposal=proposal,
                delivered=made,
                first_decision=name_decision(proposal, made),
                first_by_id=last.get(number),
                edited_by=sorted(set(persons[number])),
            )
        )
    return tuple(sample)


def _is_sampled(preparation: Preparation) -> bool:
    accepted = Preparation.objects.filter(
        vendor=preparation.vendor_id, status=PreparationStatus.ACCEPTED
    ).count()
    return accepted < FIRST_DELIVERIES or _draw(preparation, "") % SAMPLED_OF == 0


def _draw(preparation: Preparation, what: str) -> int:
    return int(salted_hmac(_SALT, f"{preparation.pk}:{what}").hexdigest(), 16)


def _iter_delivered(path: Path, numbers: Container[int]) -> Iterator[tuple[int, str]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            number = row.pop("row_id", None)
            if number in numbers:
                yield number, json.dumps(row, ensure_ascii=False)


def list_opinions_for(user: User) -> QuerySet[RowOpinion]:
    """Rows on which a person may give a second opinion now."""
    waiting = RowOpinion.objects.exclude(raw="").filter(
        given_at=None,
        preparation__status__in=[PreparationStatus.DELIVERED, PreparationStatus.ACCEPTED],
    )
    mine = Membership.objects.filter(user=user)
    works = mine.filter(
        role__in=WORKERS, organisation=OuterRef("preparation__vendor__organisation")
    )
    is_colleague = (
        Q(Exists(works), first_by__isnull=False, preparation__vendor__kind=VendorKind.HUMAN)
        & Q(preparation__vendor__approved_at__isnull=False, preparation__vendor__is_suspended=False)
        & ~Q(edited_by__contains=[user.pk])
    )
    allowed, own = is_colleague, mine.values("organisation")
    if user.is_operator:
        allowed |= ~Q(preparation__vendor__organisation__in=own)
    # Nobody is asked about their own money.
    found = waiting.filter(allowed).exclude(preparation__job__organisation__in=own)
    found = found.order_by("preparation__created_at", "pk")
    return found.select_related("preparation__vendor")


def find_opinion(*, opinion_id: int, user: User, now: datetime) -> RowOpinion:
    """The row that is a person's next to look at, which is noted for its owner.

    Nobody chooses: a colleague's easy rows would be the ones that are looked at.

    Raises
    ------
    NotFound
        ``unknown_opinion``: it is given, not for this person, or not their next.
    """
    found = list_opinions_for(user).first()
    if found is None or found.pk != opinion_id:
        raise NotFound("unknown_opinion", "This row needs no second opinion of yours.")
    note_first_look(found.preparation, user, now=now)
    return found


def give_opinion(*, opinion: RowOpinion, user: User, value: str, now: datetime) -> None:
    """Say what a person makes of a row, a JSON object; empty: they leave it out. Once.

    Raises
    ------
    UserError
        ``invalid_row``.
    NotFound
        ``unknown_opinion``.
    """
    longest = max(map(len, (opinion.raw, opinion.proposal, opinion.delivered)))
    if len(value) > LONGER_MAX * longest + LETTERS_MORE:
        raise UserError("invalid_row", "This is far longer than the row.", param="value")
    text = read_row(value) if value else ""
    # Before anything is locked; a delivered row stays as it is.
    agrees = _agree(opinion.delivered, text)
    decision = name_decision(opinion.proposal, text)
    with transaction.atomic():
        held = lock_preparation(opinion.preparation_id)
        find_opinion(opinion_id=opinion.pk, user=user, now=now)
        mine = lock_opinion(opinion.pk)
        mine.value, mine.agrees, mine.second_decision = text, agrees, decision
        mine.given_by, mine.given_at = user, now
        mine.save()
        _judge(held, now=now)


def _agree(one: str, other: str) -> bool:
    """Whether two rows, as JSON, say the same; both empty: both were left out."""
    if not one or not other:
        return one == other
    return say_the_same(json.loads(one), json.loads(other))


def wait_for_opinions(held: Preparation, *, now: datetime) -> None:
    """Let a vendor's pay wait for opinions on its work. Call while holding it, once it is paid."""
    if count_agreement(held).asked:
        if held.price_micros:
            withhold_vendor_pay(hold_reference=held.paid_from, now=now)
        _judge(held, now=now)


def _judge(held: Preparation, *, now: datetime) -> None:
    """Let pay that waited go, or have an operator decide about it, once all opinions are given."""
    found = count_agreement(held)
    if found.given < found.asked or not held.paid_from:
        return
    if lock_open_dispute(held) is not None:
        # An operator decides; that settles the pay.
        return
    decided = Dispute.objects.filter(preparation=held, vendor=held.vendor_id)
    is_doubtful = found.agreeing < AGREEING_SHARE_MIN * found.given
    if held.price_micros and is_doubtful and not decided.exists():
        _dispute(held, found, now=now)
        return
    if not decided.filter(is_for_owner=True).exists():
        release_vendor_pay(hold_reference=held.paid_from)
    forget_rows(held)


def forget_rows(held: Preparation) -> None:
    """Delete an owner's rows on which opinions were given. Call once nobody judges by them."""
    given = RowOpinion.objects.filter(preparation=held, given_at__isnull=False)
    given.update(**dict.fromkeys(RowOpinion.TEXTS, ""))


def _dispute(held: Preparation, found: Agreement, *, now: datetime) -> None:
    last = RowOpinion.objects.filter(preparation=held).order_by("-given_at", "-pk")[0]
    reason = (
        f"Second opinions agree with {found.agreeing} of {found.given} rows that "
        f"{held.vendor.name} delivered."
    )
    Dispute.objects.create(
        preparation=held,
        vendor=held.vendor,
        reason=reason,
        opened_by_id=last.given_by_id,
        opened_at=now,
    )
    add_job_event(
        job=held.job,
        kind=EventKind.DISPUTED,
        message=f"{reason} An operator decides whether it is worth its price.",
        now=now,
    )


def end_waiting_opinions(*, now: datetime) -> int:
    """Ask no more for opinions that nobody gave in time; how many deliveries waited for some."""
    late = RowOpinion.objects.filter(
        given_at=None, preparation__accepted_at__lte=now - WAITS_FOR
    ).values_list("preparation", flat=True)
    ids = sorted(set(late))
    for preparation_id in ids:
        try:
            with transaction.atomic():
                held = lock_preparation(preparation_id)
                RowOpinion.objects.filter(preparation=held, given_at=None).delete()
                _judge(held, now=now)
        except Exception:
            # One that cannot be judged must not keep the others waiting.
            log.exception("opinions on %s could not be ended", preparation_id)
    return len(ids)
