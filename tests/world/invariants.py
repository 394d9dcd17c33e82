"""What holds after each step, whatever went wrong in it."""

from __future__ import annotations

import tempfile
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from django.core.management import call_command
from django.db.models import Count, Sum

from marketplace.accounts.models import Organisation
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.exposure import EXPOSURE
from marketplace.auction.models import Bid, BidStatus, Reservation, WorkShare
from marketplace.auction.selectors import annotate_refunds
from marketplace.common.locks import lock_number
from marketplace.exports.models import Export
from marketplace.fleet.models import Node, Zone
from marketplace.fleet.selectors import slot_at as zone_slot
from marketplace.jobs.models import Job, JobStatus, Slice, SliceStatus
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.selectors import get_wallet
from marketplace.webhooks.models import MessageStatus, WebhookMessage
from tests.audits import replay_transcript
from tests.world.owners import CardOwner

if TYPE_CHECKING:
    from tests.world.world import World

FUNDED_MICROS = 40_000_000


def check(world: World) -> None:
    """Books, cells, leases, answers and jobs."""
    found = check_ledger()
    assert found.balanced, found
    _check_cells(world)
    _check_leases()
    _check_answers(world)
    _check_messages(world)
    _check_money(world)
    for actor in world.actors:
        actor.check()


def _check_cells(world: World) -> None:
    """No cell is sold twice: neither its work nor its memory.

    What a node was sold for counts: one found slower keeps what is sold until the lane looks.
    """
    zone = world.zone
    nodes = {node.pk: node for node in Node.objects.filter(zone=zone)}
    for node in nodes.values():
        most = max(world.capacities.get(node.pk, 0.0), node.compute_capacity)
        world.capacities[node.pk] = most
    sold = (
        Reservation.objects.filter(zone=zone, released_at=None)
        .values("node", "slot")
        .annotate(units=Sum("samples"), memory=Sum("memory_gb"))
    )
    for cell in sold:
        node = nodes[cell["node"]]
        assert cell["units"] <= world.capacities[node.pk] * (1 + 1e-9), cell
        assert cell["memory"] <= node.memory_gb - zone.base_memory_gb + 1e-6, cell


def _check_leases() -> None:
    """A job is on one node at most, and on none once it has ended."""
    held = Slice.objects.filter(status=SliceStatus.OPEN)
    twice = held.values("job").annotate(nodes=Count("pk")).filter(nodes__gt=1)
    assert not twice.exists(), list(twice)
    left = [one.job for one in held.select_related("job") if not one.job.is_active]
    assert not left, [(job.pk, job.status) for job in left]


def _check_answers(world: World) -> None:
    """Every bid that was answered is there once, and every admitted one has one job."""
    for owner in world.owners:
        bids = Bid.objects.filter(organisation=owner.organisation)
        keys = list(bids.values_list("idempotency_key", flat=True))
        assert len(keys) == len(set(keys))
        assert set(owner.answers.values()) <= set(bids.values_list("pk", flat=True))
        asked_of = {one.idempotency_key: one for one in bids}
        for key, asked in owner.asked.items():
            if key in asked_of:
                wanted = asked["validation"] and asked["validation"].pk
                assert asked_of[key].validation_dataset_id == wanted, f"{key} lost its file"
    # The express lane's seats are bids without a job.
    won = Bid.objects.filter(status=BidStatus.ADMITTED, dataset__isnull=False)
    admitted = set(won.values_list("pk", flat=True))
    order = world.trouble.lock_order
    order.bids_of_jobs |= dict(Job.objects.values_list("pk", "bid_id"))
    order.exposures |= {
        lock_number(EXPOSURE, pk): pk for pk in Organisation.objects.values_list("pk", flat=True)
    }
    of_jobs = list(Job.objects.values_list("bid_id", flat=True))
    assert len(of_jobs) == len(set(of_jobs))
    assert admitted == set(of_jobs), admitted ^ set(of_jobs)


def _check_messages(world: World) -> None:
    """What was delivered is noted as delivered once, and nothing is noted after it."""
    for message in WebhookMessage.objects.exclude(log=[]):
        arrived = [entry for entry in message.log if entry["status"] == 200]
        assert len(arrived) <= 1, f"{message.pk} was delivered twice: {message.log}"
        assert bool(arrived) == (message.status == MessageStatus.DELIVERED), message.log
        if arrived:
            last = message.log[-1]
            assert arrived[0] is last, f"{message.pk} was delivered before: {message.log}"
            noted = world.delivered.setdefault(message.pk, message.log)
            assert noted == message.log, f"{message.pk} was delivered already: {message.log}"


def _check_money(world: World) -> None:
    """What owners have, what is held, and what they paid less refunds is what they were given."""
    for owner in world.owners:
        if isinstance(owner, CardOwner):
            continue
        bids = annotate_refunds(Bid.objects.filter(organisation=owner.organisation))
        paid = bids.filter(status=BidStatus.ADMITTED).aggregate(
            payment=Sum("payment_micros"), back=Sum("refund_micros"), credit=Sum("credit_micros")
        )
        spent = (paid["payment"] or 0) - (paid["back"] or 0) - (paid["credit"] or 0)
        exports = Export.objects.filter(organisation=owner.organisation)
        spent += exports.aggregate(paid=Sum("paid_micros"))["paid"] or 0
        wallet = get_wallet(organisation=owner.organisation)
        has = wallet.available_micros + wallet.held_micros
        assert has == FUNDED_MICROS - spent, (owner.organisation.name, has, spent)


def _check_ends(world: World) -> None:
    """Who was shown an amount got it, and cells of jobs that ended are on sale again."""
    cancelled = Job.objects.filter(status=JobStatus.CANCELLED).values("bid_id")
    for owner in world.owners:
        bids = Bid.objects.filter(organisation=owner.organisation, pk__in=cancelled)
        for bid in annotate_refunds(bids):
            shown = owner.shown.get(bid.pk, 0)
            assert bid.refund_micros >= shown, (bid.pk, bid.refund_micros, shown)
    slot = zone_slot(world.zone, world.now)
    ended = Job.objects.exclude(settled_at=None).values("bid_id")
    held = Reservation.objects.filter(bid__in=ended, released_at=None, slot__gt=slot)
    assert not held.exists(), list(held)


def check_log(zone: Zone) -> None:
    """Rows and log agree, as the market's own audit sees them."""
    verify_zone(zone)


def is_at_rest(world: World) -> bool:
    """Whether every bid is decided and every job over and settled."""
    return (
        all(actor.is_at_rest() for actor in world.actors)
        and not Bid.objects.filter(status=BidStatus.PENDING).exists()
        and not Job.objects.filter(settled_at=None).exists()
    )


def check_rest(world: World) -> None:
    """Nothing is left over, and a stranger's verifier accepts the log."""
    open_bids = Bid.objects.filter(status=BidStatus.PENDING).count()
    open_jobs = Job.objects.filter(settled_at=None).values_list("status", flat=True)
    restless = [type(actor).__name__ for actor in world.actors if not actor.is_at_rest()]
    left = f"{open_bids} bids wait, jobs are left: {list(open_jobs)}, and {restless}"
    assert is_at_rest(world), left
    assert not Slice.objects.filter(status=SliceStatus.OPEN).exists()
    for bid in Bid.objects.filter(status=BidStatus.ADMITTED):
        earned = sum(share.earned_micros for share in WorkShare.objects.filter(bid=bid))
        assert earned <= (bid.payment_micros or 0), bid.pk
    _check_ends(world)
    check_log(world.zone)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "zone.jsonl"
        call_command("auction_transcript", zone=world.zone.name, out=path, stdout=StringIO())
        verified = replay_transcript(path)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    for actor in world.actors:
        actor.check_rest()
