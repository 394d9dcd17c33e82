"""Notices: what people are to know of their organisation's work, in the app and by mail.

They are made of the same news as webhook messages, in the transaction of the event. Of each thing a
person gets one notice of a kind, however often the news comes. A mail is never sent twice: where
its worker died while it was sending, the notice in the app has to do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from smtplib import SMTPException, SMTPRecipientsRefused, SMTPResponseException

from django.conf import settings
from django.core.mail import EmailMessage
from django.urls import reverse

from marketplace.accounts.models import Membership, Organisation, User
from marketplace.accounts.policy import ROLES_BY_RIGHT
from marketplace.common.durable.kinds import HeldWork, WorkFailed
from marketplace.common.durable.services import NewWork, enqueue_work
from marketplace.common.errors import UserError
from marketplace.webhooks.models import Notice, NoticeChoice
from marketplace.webhooks.news import NOTICE_KINDS, News, NoticeWords, write_words

#: The kind of work that mailing a notice is.
MAIL = "webhooks.mail"
#: The server's own word that it took nothing. After another end of a connection it may have.
_REFUSALS = (SMTPResponseException, SMTPRecipientsRefused)
_TEXT_CHARS = 1000
#: How long notices are kept.
KEPT_FOR = timedelta(days=90)
#: More than these are not counted: the number stands in a small circle.
COUNTED_MAX = 99


@dataclass(frozen=True, slots=True)
class _Addressee:
    user_id: str
    role: str


def add_notices(*, news: Sequence[News], now: datetime) -> None:
    """Store a notice for each person whom news concern. Call in the transaction of the event."""
    told = [(each, words) for each in news if (words := write_words(each)) is not None]
    if not told:
        return
    organisations = {each.organisation_id for each, _ in told}
    people = _list_people(organisations)
    rows = [
        Notice(
            user_id=user_id,
            organisation_id=each.organisation_id,
            kind=words.kind,
            about=words.about,
            title=words.title,
            text=f"{words.text} {NOTICE_KINDS[words.kind].closing}".strip()[:_TEXT_CHARS],
            path=words.path,
            created_at=now,
        )
        for each, words in told
        for user_id in _choose(people[each.organisation_id], each, words)
    ]
    # In one order, so that no two transactions wait for each other.
    rows.sort(key=lambda row: (row.user_id, row.organisation_id, row.kind, row.about))
    Notice.objects.bulk_create(rows, ignore_conflicts=True)
    # Those that were there before keep their ids, and so are not mailed again.
    mailed = _list_mailed(organisations)
    wanted = [row for row in rows if row.kind in mailed(row.user_id, row.organisation_id)]
    stored = Notice.objects.filter(pk__in=[row.pk for row in wanted]).values_list("pk", flat=True)
    enqueue_work(*(NewWork(MAIL, notice_id, due_at=now) for notice_id in sorted(stored)))


def _list_people(organisation_ids: Iterable[str]) -> Mapping[str, list[_Addressee]]:
    members = Membership.objects.filter(organisation__in=organisation_ids, user__is_active=True)
    people: defaultdict[str, list[_Addressee]] = defaultdict(list)
    for member in members.order_by("pk"):
        people[member.organisation_id].append(_Addressee(member.user_id, member.role))
    return people


def _choose(people: Sequence[_Addressee], news: News, words: NoticeWords) -> list[str]:
    """Who began it, where that is known and they may still; otherwise all who may."""
    roles = ROLES_BY_RIGHT[NOTICE_KINDS[words.kind].right]
    may = [person.user_id for person in people if person.role in roles]
    return [news.person_id] if news.person_id in may else may


class _Mailed:
    """Which kinds people have mailed to them."""

    def __init__(self, choices: Iterable[NoticeChoice]) -> None:
        self._chosen = {(each.user_id, each.organisation_id): each.mailed for each in choices}

    def __call__(self, user_id: str, organisation_id: str) -> Sequence[str]:
        return self._chosen.get((user_id, organisation_id), MAILED_AT_FIRST)


#: Kinds that are mailed to those who have not chosen.
MAILED_AT_FIRST = tuple(name for name, kind in NOTICE_KINDS.items() if kind.is_mailed_at_first)


def _list_mailed(organisation_ids: Iterable[str]) -> _Mailed:
    return _Mailed(NoticeChoice.objects.filter(organisation__in=organisation_ids))


def get_mailed_kinds(*, user: User, organisation: Organisation) -> Sequence[str]:
    """Which kinds a person has mailed of an organisation's notices."""
    choices = NoticeChoice.objects.filter(user=user, organisation=organisation)
    return _Mailed(choices)(user.pk, organisation.pk)


def set_mailed_kinds(*, user: User, organisation: Organisation, kinds: Iterable[str]) -> None:
    """Choose which kinds are mailed; all of them stand in the app.

    Raises
    ------
    UserError
        ``invalid_kinds``.
    """
    chosen = sorted(set(kinds))
    if unknown := [kind for kind in chosen if kind not in NOTICE_KINDS]:
        raise UserError("invalid_kinds", f"There are no notices of {', '.join(unknown)[:200]}.")
    NoticeChoice.objects.update_or_create(
        user=user, organisation=organisation, defaults={"mailed": chosen}
    )


def count_unread(*, user: User, organisation: Organisation) -> int:
    """How many notices a person has not read; ``COUNTED_MAX`` stands for all above."""
    unread = Notice.objects.filter(user=user, organisation=organisation, read_at=None)
    return unread[:COUNTED_MAX].count()


def mark_read(
    *, user: User, organisation: Organisation, now: datetime, notice_id: str | None = None
) -> None:
    """Mark one of a person's notices as read, or all of them."""
    unread = Notice.objects.filter(user=user, organisation=organisation, read_at=None)
    if notice_id is not None:
        unread = unread.filter(pk=notice_id.replace("\0", ""))
    unread.update(read_at=now)


def load_notice(work: HeldWork) -> Notice | None:
    """The notice to mail, unless it is gone, or its person has left."""
    waiting = Notice.objects.filter(pk=work.key, mailed_at=None, user__is_active=True)
    notice = waiting.select_related("user", "organisation").first()
    if notice is None:
        return None
    members = notice.organisation.memberships.filter(user=notice.user)
    return notice if members.exists() else None


def mail_notice(work: HeldWork, notice: Notice) -> None:
    """Send the mail, unless an earlier attempt may have done so.

    Raises
    ------
    WorkFailed
        The mail server did not take it.
    """
    message, own = build_mail(notice), Notice.objects.filter(pk=notice.pk)
    connection, is_begun = message.get_connection(), False
    try:
        # A server that cannot be reached took nothing.
        connection.open()
        if is_begun := bool(own.filter(mailing_at=None).update(mailing_at=work.begun_at)):
            connection.send_messages([message])
    except (OSError, SMTPException) as error:
        if is_begun and isinstance(error, _REFUSALS):
            own.update(mailing_at=None)
        raise WorkFailed(f"The mail server did not take it: {type(error).__name__}.") from error
    finally:
        # What it took it keeps, however it says goodbye.
        with suppress(OSError, SMTPException):
            connection.close()


def record_mail(_work: HeldWork, notice: Notice, _result: None, *, now: datetime) -> None:
    """Store that the mail is sent."""
    Notice.objects.filter(pk=notice.pk).update(mailed_at=now)


def build_mail(notice: Notice) -> EmailMessage:
    """The mail of a notice: its sentences, and addresses that need a sign-in."""
    subject = " ".join(f"[Finetender] {notice.title}".split())
    text = (
        f"{notice.text}\n\n{settings.PUBLIC_URL}{notice.path}\n\n"
        f"{notice.organisation.name}. Choose what is mailed to you:\n"
        f"{settings.PUBLIC_URL}{reverse('notice_settings')}\n"
    )
    return EmailMessage(subject, text, None, [notice.user.email])


def delete_old_notices(*, now: datetime) -> None:
    """Delete what was made long ago."""
    Notice.objects.filter(created_at__lt=now - KEPT_FOR).delete()
