"""Asking: a question is counted, its price held in the wallet, and it waits for a node."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction

from marketplace.accounts.models import Organisation, User
from marketplace.common.errors import UserError
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import find_zone_tokenizer, list_trusted_nodes
from marketplace.fleet.text_encoder import load_text_encoder
from marketplace.jobs.models import Artifact
from marketplace.jobs.services import note_adapter_use
from marketplace.payments.holds import HoldRequest, place_holds
from marketplace.questions.models import AskedQuestion, QuestionStatus
from marketplace.questions.prices import compute_price, find_rate
from marketplace.questions.wakeups import wake_nodes
from workers.protocol.generation import BAD_SCHEMA, ChatTurn, TokenBias
from workers.protocol.prompts import encode_prompt
from workers.protocol.token_layout import TemplateError
from workers.protocol.wire import to_json

#: Most tokens of an answer, and characters of a prompt.
ANSWER_TOKENS_MAX = 4096
PROMPT_CHARS_MAX = 200_000
#: An answer is whole by then, or ends.
ANSWERED_WITHIN = timedelta(seconds=120)
#: Questions of one organisation that are open at a time.
OPEN_MAX = 16
#: Questions of one organisation whose schema a node refuses, within a time.
REFUSED_MAX, REFUSED_WITHIN = 16, timedelta(minutes=10)
#: What tools that shorten their prompts look for.
CONTEXT_EXCEEDED = "context_length_exceeded"
INVALID_SCHEMA = "invalid_schema"
_TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class QuestionTerms:
    """What is asked, and how it is to be answered; as in ``workers.protocol.generation``."""

    turns: tuple[ChatTurn, ...] = ()
    prompt: str = ""
    tools: str = ""
    opening: str = ""
    max_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[TokenBias, ...] = ()
    seed: int = 0
    stop: tuple[str, ...] = ()
    schema: str = ""
    top_tokens: int | None = None


class NoNodeOnline(UserError):
    """No node of the zone could answer now."""

    default_status = 503


def ask_questions(
    *, terms: Sequence[QuestionTerms], now: datetime, **asked: Any
) -> list[AskedQuestion]:
    """Ask all or none, each as ``ask_question`` does."""
    with transaction.atomic():
        return [ask_question(terms=each, now=now, **asked) for each in terms]


def check_questions(*, terms: Sequence[QuestionTerms], now: datetime, **asked: Any) -> None:
    """Refuse what ``ask_questions`` would refuse of a base model now; nothing is asked or held.

    Raises
    ------
    UserError
        Those of ``ask_question``.
    """
    with transaction.atomic():
        ask_questions(terms=terms, now=now, artifact=None, **asked)
        transaction.set_rollback(True)


def ask_question(
    *,
    organisation: Organisation,
    asked_by: User | None,
    zone: Zone,
    artifact: Artifact | None,
    terms: QuestionTerms,
    now: datetime,
    api_key_id: str | None = None,
    is_forwarded: bool = False,
) -> AskedQuestion:
    """Hold the price of the longest answer, and have a node of the zone write it.

    Parameters
    ----------
    artifact
        The adapter that answers; ``None``: the base model.
    api_key_id
        The API key whose caps it counts for.
    is_forwarded
        The operator's model server answers: no node is woken, and none need be there where the
        operator posts a rate.

    Raises
    ------
    NoNodeOnline
        ``no_node``.
    UserError
        ``context_length_exceeded``, ``invalid_prompt``, ``too_many_questions``,
        ``too_many_refused_schemas`` or ``unsupported_parameter``.
    PaymentRequired
        ``insufficient_funds``.
    """
    only = organisation.verified_only or (artifact is not None and artifact.job.verified_only)
    rate_micros = _find_rate_now(zone, verified_only=only, is_forwarded=is_forwarded)
    prompt_tokens = count_prompt(zone, terms)
    question = AskedQuestion(
        organisation=organisation,
        asked_by=asked_by,
        zone=zone,
        artifact=artifact,
        token=secrets.token_urlsafe(_TOKEN_BYTES),
        terms=to_json(terms),
        is_forwarded=is_forwarded,
        verified_only=only,
        status=QuestionStatus.WRITING if is_forwarded else QuestionStatus.WAITING,
        prompt_tokens=prompt_tokens,
        rate_micros=rate_micros,
        created_at=now,
        expires_at=now + ANSWERED_WITHIN,
    )
    _check_open_questions(organisation)
    _check_schema(organisation, terms, is_forwarded=is_forwarded, now=now)
    most_micros = compute_price(tokens=prompt_tokens + terms.max_tokens, rate_micros=rate_micros)
    with transaction.atomic():
        wanted = [
            HoldRequest(
                organisation.pk,
                max(1, most_micros),
                question.hold_reference,
                placed_by_id=question.asked_by_id,
                api_key_id=api_key_id,
            )
        ]
        [hold] = place_holds(wanted=wanted, now=now)
        if isinstance(hold, UserError):
            raise hold
        question.save(force_insert=True)
        if artifact is not None:
            note_adapter_use(job_ids=[artifact.job_id], now=now)
        if not is_forwarded:
            wake_nodes(zone.pk)
    return question


def _find_rate_now(zone: Zone, *, verified_only: bool, is_forwarded: bool) -> int:
    """Micro-dollars for a million tokens, if there is a node or a server to answer."""
    rate_micros = find_rate(zone)
    whose = "of"
    if is_forwarded:
        rate_micros = settings.SERVING_RATE_MICROS if rate_micros is None else rate_micros
    elif verified_only and not list_trusted_nodes(zone, verified_only=True).exists():
        rate_micros, whose = None, "of a verified provider in"
    if rate_micros is None:
        raise NoNodeOnline(
            "no_node",
            f"No node {whose} zone {zone.name} is online to answer. Try again later.",
            extra={"retry": True},
        )
    return rate_micros


def _check_open_questions(organisation: Organisation) -> None:
    """Two at once may both find the last place: harmless, the wallet bounds them."""
    held = AskedQuestion.objects.filter(organisation=organisation, status__in=AskedQuestion.OPEN)
    if held.count() >= OPEN_MAX:
        raise UserError(
            "too_many_questions",
            f"{OPEN_MAX} answers are being written for you. Wait for one of them.",
            status=429,
            extra={"retry": True},
        )


def _check_schema(
    organisation: Organisation, terms: QuestionTerms, *, is_forwarded: bool, now: datetime
) -> None:
    """A schema costs the machine that compiles it, and nothing where it is refused there."""
    if not terms.schema:
        return
    if is_forwarded and not settings.SERVING_SCHEMAS:
        raise UserError(
            "unsupported_parameter",
            "The server that answers for this model takes no schemas. Leave the schema out.",
            param="tools" if terms.tools else "response_format",
        )
    refused = AskedQuestion.objects.filter(
        organisation=organisation, finish=BAD_SCHEMA, finished_at__gt=now - REFUSED_WITHIN
    )
    if refused.count() >= REFUSED_MAX:
        minutes = REFUSED_WITHIN // timedelta(minutes=1)
        raise UserError(
            "too_many_refused_schemas",
            f"{REFUSED_MAX} of your schemas could not be followed within {minutes} minutes. "
            "Make them simpler, and ask again later.",
            status=429,
        )


def count_prompt(zone: Zone, terms: QuestionTerms) -> int:
    """Number of a prompt's tokens; raises as ``encode_question``."""
    return len(encode_question(zone, terms))


def encode_question(zone: Zone, terms: QuestionTerms) -> list[int]:
    """A prompt with the zone's tokenizer and chat template, as nodes read it.

    Raises
    ------
    UserError
        ``context_length_exceeded`` or ``invalid_prompt``.
    """
    turns = [
        text for turn in terms.turns for text in (turn.content, turn.calls, turn.call_id, turn.name)
    ]
    characters = sum(map(len, [terms.prompt, terms.tools, *turns]))
    if characters > PROMPT_CHARS_MAX:
        raise UserError(
            CONTEXT_EXCEEDED,
            f"The prompt has {characters:,} characters; at most {PROMPT_CHARS_MAX:,} are read.",
            param="messages",
        )
    encoder = load_text_encoder(find_zone_tokenizer(zone))
    try:
        return list(encode_prompt(encoder, terms))
    except TemplateError as error:
        raise UserError("invalid_prompt", str(error), param="messages") from None


def count_answer(zone: Zone, text: str) -> int:
    """Tokens of an answer as the market counts them."""
    return len(load_text_encoder(find_zone_tokenizer(zone)).encode([text])[0])
