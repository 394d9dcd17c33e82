"""Answers: a node takes questions and sends words; what was written is paid once, at the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from marketplace.common.errors import NotFound
from marketplace.fleet.models import Node, NodeStatus
from marketplace.fleet.selectors import build_base_model_ref
from marketplace.jobs.models import Artifact
from marketplace.payments.holds import HoldSettlement, settle_holds
from marketplace.payments.services import CostSplit, Share, charge_and_distribute
from marketplace.questions.asking import QuestionTerms, count_answer
from marketplace.questions.locks import lock_questions, lock_waiting
from marketplace.questions.models import AskedQuestion, QuestionStatus
from marketplace.questions.prices import compute_price
from marketplace.questions.wakeups import wake_owners
from workers.protocol.generation import (
    BAD_SCHEMA,
    QUESTIONS_MAX,
    TOO_LONG,
    TOP_TOKENS_MAX,
    Question,
    Written,
    WrittenToken,
)
from workers.protocol.job_spec import BlobRef
from workers.protocol.probes import ProbeAdapter
from workers.protocol.reports import Fault
from workers.protocol.wire import from_json, to_json

BLOB_PATH = "/internal/v1/questions/{token}/blobs/{name}"
#: Characters of an answer that are taken for each of its tokens.
TOKEN_CHARS_MAX = 200
#: Prompts and answers are deleted this long after the end.
KEPT_FOR = timedelta(minutes=30)
_REASON_CHARS = 1000


def list_zones_asked(zone_ids: Iterable[str], *, now: datetime) -> set[str]:
    """Those of the zones in which a question waits for a node."""
    waiting = AskedQuestion.objects.filter(
        zone__in=list(zone_ids), status=QuestionStatus.WAITING, expires_at__gt=now
    )
    return set(waiting.values_list("zone_id", flat=True).distinct())


def hand_out_questions(
    *, node: Node, room: int, takes_forms: bool, now: datetime
) -> tuple[Question, ...]:
    """Give a node the oldest questions of its zone that it can read, each to one node."""
    if node.status != NodeStatus.ONLINE:
        return ()
    with transaction.atomic():
        limit = max(0, min(room, QUESTIONS_MAX))
        taken = lock_waiting(node=node, limit=limit, takes_forms=takes_forms, now=now)
        for question in taken:
            question.status, question.node_id = QuestionStatus.WRITING, node.pk
            question.save(update_fields=["status", "node"])
    reference = build_base_model_ref(node.zone) if taken else None
    return tuple(_build_question(one, reference) for one in taken)


def _build_question(question: AskedQuestion, base_model: object) -> Question:
    return from_json(
        Question,
        question.terms
        | {
            "token": question.token,
            "expires_at": question.expires_at.timestamp(),
            "base_model": to_json(base_model),
            "adapter": None if question.artifact is None else to_json(_build_adapter(question)),
        },
    )


def _build_adapter(question: AskedQuestion) -> ProbeAdapter:
    artifact = question.artifact
    assert artifact is not None
    return ProbeAdapter(
        name=artifact.pk,
        blob=BlobRef(
            url=BLOB_PATH.format(token=question.token, name=artifact.pk),
            sha256=artifact.sha256,
            bytes=artifact.bytes,
        ),
        spec=artifact.job.terms.adapter,
    )


def find_question_blob(*, node: Node, token: str, name: str, now: datetime) -> Artifact:
    """The adapter of a question that a node answers now.

    Raises
    ------
    NotFound
        ``unknown_blob``.
    """
    held = AskedQuestion.objects.filter(
        token=token, node=node, status=QuestionStatus.WRITING, expires_at__gt=now
    )
    question = held.select_related("artifact").first()
    artifact = None if question is None else question.artifact
    if artifact is None or artifact.pk != name:
        raise NotFound("unknown_blob", f"This question has no file {name[:80]!r}.")
    return artifact


def record_written(*, node: Node, items: Sequence[Written], now: datetime) -> list[str]:
    """Take what a node wrote; the tokens of questions that need no more of it.

    Nothing is taken of a question that another node holds, or that is over.
    """
    by_token = {item.token: item for item in items}
    ids = dict(
        AskedQuestion.objects.filter(token__in=by_token, node=node).values_list("token", "pk")
    )
    ended = [token for token in by_token if token not in ids]
    with transaction.atomic():
        changed = lock_questions(ids.values())
        for question in changed:
            item = by_token[question.token]
            if question.status != QuestionStatus.WRITING or question.expires_at <= now:
                ended.append(question.token)
                continue
            _append(question, item)
            if item.finish:
                _finish_from_node(question, item, now)
            question.save()
        wake_owners([question.pk for question in changed])
    return ended


def record_forwarded(*, question_id: str, item: Written, now: datetime) -> bool:
    """Take what the operator's model server wrote; whether more of the answer is wanted."""
    with transaction.atomic():
        for question in lock_questions([question_id]):
            if question.status != QuestionStatus.WRITING or question.expires_at <= now:
                return False
            _append(question, item)
            if item.finish:
                _finish_from_node(question, item, now)
            question.save()
            wake_owners([question.pk])
    return not item.finish


def _append(question: AskedQuestion, item: Written) -> None:
    terms = from_json(QuestionTerms, question.terms)
    room = TOKEN_CHARS_MAX * terms.max_tokens - len(question.text)
    question.text += _clean(item.text)[:room]
    if terms.top_tokens is not None:
        left = terms.max_tokens - len(question.tokens)
        question.tokens = question.tokens + [_clean_token(token) for token in item.tokens[:left]]
    question.answer_tokens = max(0, min(item.answer_tokens, terms.max_tokens))


def _clean(text: str) -> str:
    """Text of a node that the database takes."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()


def _clean_token(token: WrittenToken) -> dict[str, Any]:
    likeliest = [
        {"text": _clean(other.text), "logprob": other.logprob}
        for other in token.likeliest[:TOP_TOKENS_MAX]
    ]
    return {
        "text": _clean(token.text),
        "logprob": token.logprob,
        "likeliest": likeliest,
    }


def _finish_from_node(question: AskedQuestion, item: Written, now: datetime) -> None:
    if item.finish in ("stop", "length"):
        question.finish = item.finish
        end_question(question, QuestionStatus.ANSWERED, now=now)
        return
    question.reason = _clean(item.reason)[:_REASON_CHARS]
    question.finish = item.finish if item.finish in (TOO_LONG, BAD_SCHEMA) else ""
    question.is_owners_fault = item.fault is Fault.USER
    end_question(question, QuestionStatus.FAILED, now=now)


def end_question(question: AskedQuestion, status: QuestionStatus, *, now: datetime) -> None:
    """Take an open question to its end, and pay for what was written. Call while holding it.

    The node's count is believed up to the market's own: an answer costs no more tokens than its
    text has, and one that ends a text. One that failed before its first word costs nothing.
    """
    question.status, question.finished_at = status, now
    written = min(question.answer_tokens, count_answer(question.zone, question.text) + 1)
    is_answered_by_none = question.node is None and not question.is_forwarded
    is_free = is_answered_by_none or (not question.text and status != QuestionStatus.ANSWERED)
    question.answer_tokens = 0 if is_free else written
    tokens = 0 if is_free else question.prompt_tokens + written
    price_micros = compute_price(tokens=tokens, rate_micros=question.rate_micros)
    reference = question.hold_reference
    if not price_micros:
        settle_holds(settlements=[HoldSettlement(reference, None)], now=now)
        return
    # What the operator's own server writes earns the market.
    split = CostSplit(asks_micros=0, asks_returned_micros=0, shares=())
    if question.node is not None:
        payee = question.node.provider.organisation_id  # type: ignore[attr-defined]
        share = Share(payee, price_micros)
        split = CostSplit(asks_micros=price_micros, asks_returned_micros=0, shares=(share,))
    charge_and_distribute(
        hold_reference=reference, charge_micros=price_micros, split=split, now=now
    )


def cancel_question(*, question_id: str, now: datetime) -> None:
    """End a question whose owner left; ending it twice is no error."""
    with transaction.atomic():
        for question in lock_questions([question_id]):
            if question.is_open:
                end_question(question, QuestionStatus.CANCELLED, now=now)
                question.save()


def _describe_lateness(question: AskedQuestion) -> str:
    has_form = question.terms["schema"] or question.terms["tools"]
    if has_form and question.status == QuestionStatus.WAITING:
        return "No node that follows schemas and tools was free in time. Ask again."
    return "No node answered in time. Ask again."


def sweep_questions(*, now: datetime) -> int:
    """End questions that are past their deadline, delete old ones; the number ended."""
    late = AskedQuestion.objects.filter(status__in=AskedQuestion.OPEN, expires_at__lte=now)
    ended = 0
    for question_id in late.values_list("pk", flat=True)[:1000]:
        with transaction.atomic():
            for question in lock_questions([question_id]):
                if question.is_open:
                    question.reason = _describe_lateness(question)
                    end_question(question, QuestionStatus.FAILED, now=now)
                    question.save()
                    wake_owners([question.pk])
                    ended += 1
    AskedQuestion.objects.filter(finished_at__lte=now - KEPT_FOR).delete()
    return ended
