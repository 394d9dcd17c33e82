"""When the beat runs which Celery task, and on which queue tasks run that have one of their own.

Periods are read from the environment as ``BEAT_<NAME>_S``.
"""

from marketplace.config.settings import environment

#: The queue of a task that is not on ``default``.
ROUTES = {
    "auction.decide_pending_bids": {"queue": "lane"},
    "auction.sweep": {"queue": "lane"},
    "auction.jobs_replan": {"queue": "lane"},
    "auction.spare_cells_give_back": {"queue": "lane"},
    "auction.prices_apply": {"queue": "lane"},
    "vendors.prepare": {"queue": "preparation"},
    "vendors.inspect": {"queue": "preparation"},
    "exports.push": {"queue": "preparation"},
    "tracking.send": {"queue": "preparation"},
    "express.answer_requests": {"queue": "lane"},
}


def _every(task: str, variable: str, default_s: float) -> dict[str, object]:
    """One beat entry; a run that waited longer than a few periods is dropped as stale."""
    seconds = environment.number(variable, default_s, at_least=0.1)
    return {"task": task, "schedule": seconds, "options": {"expires": max(5.0, 3 * seconds)}}


BEATS = {
    "slots": _every("jobs.slots_dispatch", "BEAT_SLOTS_S", 1),
    "uploads": _every("jobs.uploads_sweep", "BEAT_UPLOADS_S", 5),
    "leases": _every("jobs.leases_sweep", "BEAT_LEASES_S", 2),
    "auction": _every("auction.sweep", "BEAT_AUCTION_S", 2),
    "prices": _every("auction.prices_sweep", "BEAT_PRICES_S", 5),
    "plans": _every("auction.plans_sweep", "BEAT_PLANS_S", 60),
    "snapshots": _every("auction.snapshots", "BEAT_SNAPSHOTS_S", 5),
    "heads": _every("auction.publish_heads", "BEAT_HEADS_S", 60),
    "witnessed": _every("auction.fetch_witnessed_heads", "BEAT_WITNESSED_S", 60),
    "preparations": _every("vendors.prepare", "BEAT_PREPARATIONS_S", 5),
    "reports": _every("vendors.inspect", "BEAT_REPORTS_S", 5),
    "deliveries": _every("auction.preparations_conclude", "BEAT_DELIVERIES_S", 2),
    "settlement": _every("auction.settle_finished", "BEAT_SETTLEMENT_S", 2),
    "earnings": _every("payments.earnings_mature", "BEAT_EARNINGS_S", 3600),
    "books": _every("payments.books_check", "BEAT_BOOKS_S", 3600),
    "comparison": _every("payments.gateway_compare", "BEAT_COMPARISON_S", 12 * 3600),
    "invoices": _every("auction.invoices_issue", "BEAT_INVOICES_S", 3600),
    "payouts": _every("payments.payouts_start", "BEAT_PAYOUTS_S", 600),
    "gateway_calls": _every("payments.gateway_calls_run", "BEAT_GATEWAY_CALLS_S", 5),
    "webhooks": _every("payments.webhooks_process", "BEAT_WEBHOOKS_S", 5),
    "missed_events": _every("payments.events_fetch", "BEAT_MISSED_EVENTS_S", 300),
    "webhook_messages": _every("webhooks.deliver", "BEAT_WEBHOOK_MESSAGES_S", 5),
    "old_webhook_messages": _every("webhooks.delete_old", "BEAT_OLD_WEBHOOK_MESSAGES_S", 3600),
    "card_bids": _every("auction.card_bids_place", "BEAT_CARD_BIDS_S", 5),
    "wallets": _every("payments.wallets_watch", "BEAT_WALLETS_S", 10),
    "offline": _every("fleet.offline_sweep", "BEAT_OFFLINE_S", 5),
    "idempotency": _every("api.idempotency_sweep", "BEAT_IDEMPOTENCY_S", 3600),
    "express": _every("express.tick", "BEAT_EXPRESS_S", 2),
    "lookups": _every("express.prepare_lookups", "BEAT_LOOKUPS_S", 1),
    "prompts": _every("express.record_finished_jobs", "BEAT_PROMPTS_S", 5),
    "tiers": _every("tiers.tick", "BEAT_TIERS_S", 2),
    "machines": _every("tiers.reconcile", "BEAT_MACHINES_S", 10),
    "checks": _every("checks.tick", "BEAT_CHECKS_S", 5),
    "exports": _every("exports.tick", "BEAT_EXPORTS_S", 5),
    "pushes": _every("exports.push", "BEAT_PUSHES_S", 5),
    "tracking": _every("tracking.send", "BEAT_TRACKING_S", 10),
    "unused_runs": _every("tracking.delete_unused", "BEAT_UNUSED_RUNS_S", 24 * 3600),
    "questions": _every("questions.sweep", "BEAT_QUESTIONS_S", 5),
    "donors": _every("warm.list_donors", "BEAT_DONORS_S", 5),
    "offers": _every("warm.offers_sweep", "BEAT_OFFERS_S", 3600),
}
