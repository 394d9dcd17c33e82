"""When the beat runs which Celery task, and on which queue tasks run that have one of their own."""

#: The queue of a task that is not on ``default``.
ROUTES = {
    "auction.decide_pending_bids": {"queue": "lane"},
    "auction.sweep": {"queue": "lane"},
    "auction.jobs_replan": {"queue": "lane"},
    "auction.spare_cells_give_back": {"queue": "lane"},
    "vendors.prepare": {"queue": "preparation"},
    "vendors.inspect": {"queue": "preparation"},
    "vendors.plan": {"queue": "preparation"},
    "exports.push": {"queue": "preparation"},
    "tracking.send": {"queue": "preparation"},
    "express.answer_requests": {"queue": "lane"},
}


def _every(task: str, seconds: float) -> dict[str, object]:
    """Build a beat entry; a run that waited longer than a few periods is dropped as stale."""
    return {"task": task, "schedule": seconds, "options": {"expires": max(5.0, 3 * seconds)}}


BEATS = {
    "durable_work": _every("durable.sweep", 5),
    "slots": _every("jobs.slots_dispatch", 1),
    "uploads": _every("jobs.uploads_sweep", 5),
    "retention": _every("jobs.delete_unretained", 3600),
    "leases": _every("jobs.leases_sweep", 2),
    "auction": _every("auction.sweep", 2),
    "rates": _every("auction.rates_sweep", 5),
    "plans": _every("auction.plans_sweep", 60),
    "snapshots": _every("auction.snapshots", 5),
    "heads": _every("auction.publish_heads", 60),
    "deliveries": _every("auction.preparations_conclude", 2),
    "settlement": _every("auction.settle_finished", 2),
    "earnings": _every("payments.earnings_mature", 3600),
    "books": _every("payments.books_check", 3600),
    "comparison": _every("payments.gateway_compare", 12 * 3600),
    "invoices": _every("auction.invoices_issue", 3600),
    "payouts": _every("payments.payouts_start", 600),
    "missed_events": _every("payments.events_fetch", 300),
    "old_webhook_messages": _every("webhooks.delete_old", 3600),
    "card_bids": _every("auction.card_bids_place", 5),
    "wallets": _every("payments.wallets_watch", 10),
    "alerts": _every("auction.alerts_watch", 30),
    "offline": _every("fleet.offline_sweep", 5),
    "idempotency": _every("api.idempotency_sweep", 3600),
    "express": _every("express.tick", 2),
    "lookups": _every("express.prepare_lookups", 1),
    "prompts": _every("express.record_finished_jobs", 5),
    "tiers": _every("tiers.tick", 2),
    "machines": _every("tiers.reconcile", 5),
    "profits": _every("tiers.profits_sum", 300),
    "checks": _every("checks.choose", 5),
    "errands": _every("jobs.errands_tick", 5),
    "old_exports": _every("exports.delete_old_files", 3600),
    "questions": _every("questions.sweep", 5),
    "donors": _every("warm.list_donors", 5),
    "offers": _every("warm.offers_sweep", 3600),
}
