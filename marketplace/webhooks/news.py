"""News of an organisation, and the words in which people and chat rooms read them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.conf import settings

from marketplace.accounts.policy import Right
from marketplace.common.money import format_usd_exact, to_micros
from marketplace.webhooks.models import MessageForm

BID_REFUSED = "bid.refused"
#: That a job ended after its deadline; it comes with ``job.settled``.
JOB_LATE = "job.late"
NODE_SILENT = "node.silent"
CAP_NEAR = "cap.near"
_TITLE_CHARS, _TEXT_CHARS, _ABOUT_CHARS = 200, 1000, 120


class News(NamedTuple):
    """Something that happened to an organisation."""

    organisation_id: str
    #: One of ``outbox.EVENT_TYPES``, by our name.
    kind: str
    #: With the ``id`` of what it happened to.
    data: Mapping[str, Any]
    #: What it happened to, as its owner calls it.
    name: str = ""
    #: Who began it; empty: not known, or nobody in particular.
    person_id: str = ""
    #: What people get one notice of a kind about; empty: the ``id``.
    about: str = ""


@dataclass(frozen=True, slots=True)
class NoticeKind:
    """One kind of notices, as its settings name it."""

    label: str
    #: Whose business it is.
    right: Right
    is_mailed_at_first: bool = True
    #: What people read below the sentences; chat rooms are told each time.
    closing: str = ""


NOTICE_KINDS: Mapping[str, NoticeKind] = {
    "job.succeeded": NoticeKind("A job is done", Right.WORK),
    "job.failed": NoticeKind("A job failed", Right.WORK),
    JOB_LATE: NoticeKind("A job ended after its deadline", Right.WORK),
    # Programs bid in the night; who bids on a page sees the answer there.
    BID_REFUSED: NoticeKind(
        "A bid was refused",
        Right.WORK,
        is_mailed_at_first=False,
        closing="Further refusals for this reason bring no notice today.",
    ),
    NODE_SILENT: NoticeKind("A node is silent", Right.OWN),
    "payout.paid": NoticeKind("A payout arrived", Right.OWN),
    "payout.failed": NoticeKind("A payout failed", Right.OWN),
    CAP_NEAR: NoticeKind("A spending cap is nearly used up", Right.PAY),
}


@dataclass(frozen=True, slots=True)
class NoticeWords:
    """A notice in words."""

    kind: str
    #: A person gets one notice of a kind about it.
    about: str
    title: str
    text: str
    #: Of the page that says more.
    path: str


def find_notice_kind(news: News) -> str | None:
    """The kind of notice that news are; ``None``: people are told nothing."""
    kind = JOB_LATE if is_late(news) else news.kind
    return kind if kind in NOTICE_KINDS else None


def is_late(news: News) -> bool:
    """Whether a job's settlement says that it missed its deadline."""
    return news.kind == "job.settled" and "late_s" in news.data.get("data", {})


def write_words(news: News) -> NoticeWords | None:
    """Say in words what happened; ``None`` where people are told nothing."""
    kind = find_notice_kind(news)
    if kind is None:
        return None
    words = _WRITERS[kind](news)
    about = news.about or str(news.data["id"])
    return NoticeWords(
        kind,
        about[:_ABOUT_CHARS],
        # One line: it becomes the subject of a mail.
        " ".join(words[0].split())[:_TITLE_CHARS],
        words[1][:_TEXT_CHARS],
        words[2],
    )


#: Title, sentences, and the page that says more.
_Written = tuple[str, str, str]


def _write_of_job(what: str) -> Callable[[News], _Written]:
    def write(news: News) -> _Written:
        job_id = str(news.data["id"])
        return f"{news.name or job_id} {what}", str(news.data["message"]), f"/jobs/{job_id}"

    return write


_REFUSALS = {
    "price": "Its limit was not above the price.",
    "capacity": "What was on sale before its deadline was sold.",
    "window": "It could not be done by its deadline.",
    "memory": "No node has the memory that it needs.",
    "verified": "No node of a verified provider could do it.",
}


def _write_refusal(news: News) -> _Written:
    data = news.data
    text = _REFUSALS.get(str(data["reason"]), "Nothing was charged.")
    if data.get("posted_price") is not None:
        text += f" The price was {_say_usd(data['posted_price'])}."
    return f"{news.name or data['id']} was refused", text, f"/bids/{data['id']}"


def _write_node(news: News) -> _Written:
    return f"{news.name} is silent", str(news.data["message"]), "/nodes"


def _write_payout(news: News) -> _Written:
    data = news.data
    if news.kind == "payout.paid":
        text = f"{_say_usd(data['amount'])} is on your account."
        return "A payout arrived", text, "/nodes/payouts"
    text = f"{_say_usd(data['amount'])} did not arrive. {data.get('failure') or ''}".strip()
    return "A payout failed", text, "/nodes/payouts"


def _say_usd(amount: str) -> str:
    """Say an amount, which messages give with six decimals, as pages do."""
    return format_usd_exact(to_micros(amount))


def _write_cap(news: News) -> _Written:
    return f"{news.data['percent']} % of a cap is used", str(news.data["message"]), "/settings/caps"


_WRITERS: Mapping[str, Callable[[News], _Written]] = {
    "job.succeeded": _write_of_job("is done"),
    "job.failed": _write_of_job("failed"),
    JOB_LATE: _write_of_job("was late"),
    BID_REFUSED: _write_refusal,
    NODE_SILENT: _write_node,
    "payout.paid": _write_payout,
    "payout.failed": _write_payout,
    CAP_NEAR: _write_cap,
}


def write_chat_body(words: NoticeWords, form: MessageForm) -> str:
    """The body of a message to a chat room, as Slack's or Teams' incoming webhooks read it."""
    url = f"{settings.PUBLIC_URL}{words.path}"
    if form is MessageForm.SLACK:
        title, text = _escape_slack(words.title), _escape_slack(words.text)
        return json.dumps({"text": f"*{title}*\n{text}\n<{url}|Open>"}, ensure_ascii=False)
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [
            {"type": "TextBlock", "weight": "Bolder", "wrap": True, "text": _plain(words.title)},
            {"type": "TextBlock", "wrap": True, "text": _plain(words.text)},
        ],
        "actions": [{"type": "Action.OpenUrl", "title": "Open", "url": url}],
    }
    content = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
    return json.dumps({"type": "message", "attachments": [content]}, ensure_ascii=False)


def _escape_slack(text: str) -> str:
    """Keep names from being read as mentions and links (Slack's formatting reference)."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _plain(text: str) -> str:
    """Keep names from being read as links: a card's text is Markdown."""
    return text.translate(str.maketrans("[]<>", "()()"))
