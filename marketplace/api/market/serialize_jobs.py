"""What the market's API answers with about data sets, preparations, jobs and what comes of them."""

from __future__ import annotations

from typing import Any

from marketplace.api.market.fields import moment, usd
from marketplace.api.market.serialize import serialize_cell, serialize_start
from marketplace.api.market.term_values import serialize_terms
from marketplace.auction.endings import CancelQuote
from marketplace.auction.models import Bid
from marketplace.jobs.journal import serialize_progress
from marketplace.jobs.models import Checkpoint, Dataset, Job, JobEvent, Upload
from marketplace.vendors.models import Preparation
from marketplace.vendors.selectors import list_accesses
from workers.protocol.reports import TextSample

#: Faulty lines of a data set in one answer; its page has all of them.
ERRORS_SHOWN = 50


def serialize_dataset(dataset: Dataset) -> dict[str, Any]:
    return {
        "id": dataset.pk,
        "object": "dataset",
        "name": dataset.name,
        "bytes": dataset.bytes,
        "sha256": dataset.sha256,
        "format": dataset.format,
        "rows": dataset.rows,
        "tokens": dataset.tokens,
        "longest_row_tokens": dataset.longest_row_tokens,
        "needs_preparation": dataset.needs_preparation,
        "faulty": dataset.faulty,
        "errors": dataset.errors[:ERRORS_SHOWN],
        "long_rows": dataset.long_rows,
        "long_lines": dataset.long_lines,
        "left_out_long": dataset.left_out_long,
        "ignored_keys": dataset.ignored_keys,
        "created_at": moment(dataset.created_at),
    }


def serialize_upload(upload: Upload) -> dict[str, Any]:
    error = upload.error or {}
    return {
        "id": upload.pk,
        "object": "upload",
        "name": upload.name,
        "bytes": upload.bytes,
        "sha256": upload.sha256,
        "status": upload.status,
        "rows_read": upload.rows_read,
        "share_read": upload.share_read,
        "dataset_id": upload.dataset_id,
        "error": {"code": error["code"], "detail": error["message"]} if error else None,
        "created_at": moment(upload.created_at),
    }


def serialize_job(job: Job) -> dict[str, Any]:
    return {
        "id": job.pk,
        "object": "job",
        "bid_id": job.bid_id,
        "zone": job.zone.name,
        "name": job.name,
        **serialize_terms(job),
        "status": job.status,
        "price": usd(job.price_micros),
        "deadline": moment(job.deadline_at),
        "finish_planned_at": moment(job.finish_planned_at),
        "created_at": moment(job.created_at),
        "started_at": moment(job.started_at),
        "finished_at": moment(job.finished_at),
        "plan": [serialize_cell(job.zone, slot, node) for slot, node in job.cells],
        "progress": serialize_progress(job),
        "fault": job.fault or None,
        "failure_reason": job.failure_reason or None,
        "start": serialize_start(job.start),
        "stopped_early": job.stopped_early,
        "best_step": job.best_step,
        "seq": job.seq,
    }


def serialize_preparation(preparation: Preparation) -> dict[str, Any]:
    return {
        "id": preparation.pk,
        "status": preparation.status,
        "vendor": preparation.vendor.name,
        "vendor_price": usd(preparation.sold_micros),
        "due_at": moment(preparation.due_at),
        "delivered_at": moment(preparation.delivered_at),
        "accept_by": moment(preparation.accept_by),
        "accepted_at": moment(preparation.accepted_at),
        "concluded_at": moment(preparation.concluded_at),
        "rows_in": preparation.rows_in,
        "rows_out": preparation.rows_out,
        "rows_held_out": preparation.rows_held_out,
        "source_dataset_id": preparation.source_id,
        "prepared_dataset_id": preparation.prepared_id,
        "held_out_dataset_id": preparation.held_out_id,
        "refund": usd(preparation.refund_micros),
        "missed": preparation.missed,
        "report": preparation.report,
        "comparison": preparation.comparison,
        "accesses": [
            {
                "at": moment(access.at),
                "kind": access.kind,
                "vendor": access.vendor.name,
                "person": access.person.get_short_name() if access.person else None,
                "is_masked": access.is_masked,
            }
            for access in list_accesses(preparation)
        ],
    }


def serialize_job_event(event: JobEvent) -> dict[str, Any]:
    return {
        "seq": event.seq,
        "at": moment(event.at),
        "kind": event.kind,
        "actor": event.actor,
        "message": event.message,
        "data": event.data,
    }


def serialize_sample(sample: TextSample) -> dict[str, Any]:
    return {"prompt": sample.prompt, "before": sample.before, "after": sample.after}


def serialize_checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "id": checkpoint.pk,
        "step": checkpoint.step,
        "bytes": checkpoint.bytes,
        "sha256": checkpoint.sha256,
        "train_loss": checkpoint.train_loss,
        "valid_loss": checkpoint.valid_loss,
        "created_at": moment(checkpoint.created_at),
    }


def serialize_cancel_preview(job: Job, bid: Bid, due: CancelQuote) -> dict[str, Any]:
    return {
        "job_id": job.pk,
        "can_cancel": job.is_active,
        "payment": usd(bid.payment_micros),
        "refund": usd(due.refund_micros),
        "reservation_fee": usd(due.fee_micros),
    }
