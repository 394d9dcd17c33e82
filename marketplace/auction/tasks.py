"""What Celery runs; each may run twice."""

from celery import shared_task

from marketplace.auction.alerts import watch_market
from marketplace.auction.bidding.card_bids import place_authorised_bids
from marketplace.auction.book import snapshot_store
from marketplace.auction.invoice_names import name_references
from marketplace.auction.lane import defragment
from marketplace.auction.lane import sweep as sweeps
from marketplace.auction.lane.release_unused import give_back_spare_cells
from marketplace.auction.preparations import conclude_preparations
from marketplace.auction.pricing import daily_rates, solve
from marketplace.auction.resold import settle_rents
from marketplace.auction.result_disputes import conclude_disputes, take_back_pay
from marketplace.auction.settlement import settle_finished
from marketplace.auction.silent_nodes import note_silent_nodes
from marketplace.auction.witnesses import heads
from marketplace.auction.witnesses.keys import SIGN_RELEASE, sign_release
from marketplace.common import clock
from marketplace.fleet.releases import find_release
from marketplace.payments.invoices import issue_due_invoices
from marketplace.payments.seals import seal_ledger


@shared_task(name="auction.decide_pending_bids")
def decide_pending_bids(*, zone_id: str) -> None:
    sweeps.decide_all_pending(zone_id=zone_id, clock=clock.now)


@shared_task(name="auction.sweep")
def sweep() -> None:
    sweeps.sweep_zones(clock=clock.now)


@shared_task(name="auction.card_bids_place")
def place_card_bids() -> None:
    place_authorised_bids(now=clock.now())


@shared_task(name="auction.jobs_replan")
def replan_broken_jobs() -> None:
    sweeps.replan_broken_jobs(now=clock.now())


@shared_task(name="auction.plans_sweep")
def sweep_plans() -> None:
    defragment.request_better_plans()


@shared_task(name="auction.plans_improve")
def improve_plans(*, zone_id: str) -> None:
    defragment.improve_plans(zone_id=zone_id, clock=clock.now)


@shared_task(name="auction.preparations_conclude")
def conclude_ended_preparations() -> None:
    conclude_preparations(now=clock.now())


@shared_task(name="auction.spare_cells_give_back")
def give_back_cells() -> None:
    give_back_spare_cells(now=clock.now())


@shared_task(name="auction.settle_finished")
def settle_finished_jobs() -> None:
    settle_finished(now=clock.now())
    settle_rents(now=clock.now())
    conclude_disputes(now=clock.now())
    take_back_pay(now=clock.now())


@shared_task(name="auction.rates_sweep")
def sweep_rates() -> None:
    daily_rates.request_due_rates(clock=clock.now)


@shared_task(name="auction.prices_solve")
def solve_zone_prices(*, zone_id: str) -> None:
    solve.solve_zone_prices(zone_id=zone_id, clock=clock.now)


@shared_task(name="auction.rates_post")
def post_zone_rates(*, zone_id: str) -> None:
    daily_rates.post_daily_rates(zone_id=zone_id, clock=clock.now)


@shared_task(name="auction.snapshots")
def take_snapshots() -> None:
    snapshot_store.snapshot_zones(clock=clock.now)


@shared_task(name="auction.publish_heads")
def publish_heads() -> None:
    seal_ledger(now=clock.now())
    heads.sign_heads(now=clock.now())
    heads.publish_heads(now=clock.now())
    sign_release(find_release(), now=clock.now())


@shared_task(name=SIGN_RELEASE)
def sign_present_release() -> None:
    sign_release(find_release(), now=clock.now())


@shared_task(name="auction.invoices_issue")
def issue_invoices() -> None:
    issue_due_invoices(now=clock.now(), name_references=name_references)


@shared_task(name="auction.alerts_watch")
def watch_for_alerts() -> None:
    watch_market(now=clock.now())
    note_silent_nodes(now=clock.now())
