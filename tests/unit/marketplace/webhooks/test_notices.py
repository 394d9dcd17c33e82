"""People are told once of what concerns them, in the app and by mail; chat rooms too."""

from __future__ import annotations

import json
import socketserver
import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.core import mail

from marketplace.accounts.models import Membership, Role
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.silent_nodes import TOLD_AFTER, note_silent_nodes
from marketplace.common.durable.kinds import get_kinds
from marketplace.common.durable.run import run_due_work
from marketplace.common.errors import UserError
from marketplace.common.models import DurableWork
from marketplace.fleet.models import Node, NodeStatus
from marketplace.jobs.models import EventKind, Job
from marketplace.jobs.services import add_job_event
from marketplace.webhooks import services
from marketplace.webhooks.models import MessageForm, Notice, WebhookMessage
from marketplace.webhooks.news import NOTICE_KINDS, News, write_words
from marketplace.webhooks.notices import MAIL, add_notices, set_mailed_kinds
from marketplace.webhooks.outbox import EVENT_TYPES, add_messages
from tests import builders, market_builders
from tests import job_builders as build
from tests.builders import NOW

pytestmark = pytest.mark.django_db


@pytest.fixture
def owner():
    return builders.organisation()


def member_of(organisation, role) -> Any:
    made = builders.user()
    Membership.objects.create(organisation=organisation, user=made, role=role, created_at=NOW)
    return made


def make_job(owner, **terms: Any) -> Job:
    zone = market_builders.zone()
    return build.job(zone, (0, market_builders.node(zone)), organisation=owner, **terms)


def news_of(owner, kind="job.succeeded", **more: Any) -> News:
    return News(owner.pk, kind, {"id": "ftjob-1", "message": "All is well."}, name="tone", **more)


def mail_due(*, now=NOW, **changed: Any) -> int:
    kind = replace(get_kinds()[MAIL], **changed) if changed else get_kinds()[MAIL]
    return run_due_work(kind, clock=lambda: now)


def kill(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_a_job_that_ends_is_told_to_those_who_work_and_once(owner):
    worker, viewer = member_of(owner, Role.MEMBER), member_of(owner, Role.VIEWER)
    for _ in range(2):
        add_notices(news=[news_of(owner)], now=NOW)
    told = {notice.user_id: notice for notice in Notice.objects.all()}
    assert set(told) == {builders.owner_of(owner).pk, worker.pk}
    assert viewer.pk not in told
    [_, notice] = told.values()
    assert (notice.title, notice.text) == ("tone is done", "All is well.")
    assert notice.path == "/jobs/ftjob-1"
    assert DurableWork.objects.filter(kind=MAIL).count() == 2


def test_who_began_it_is_told_alone_while_they_may(owner):
    worker = member_of(owner, Role.MEMBER)
    add_notices(news=[news_of(owner, person_id=worker.pk)], now=NOW)
    assert [notice.user_id for notice in Notice.objects.all()] == [worker.pk]
    Membership.objects.filter(user=worker).update(role=Role.VIEWER)
    add_notices(news=[news_of(owner, "job.failed", person_id=worker.pk)], now=NOW)
    assert Notice.objects.get(kind="job.failed").user_id == builders.owner_of(owner).pk


@pytest.mark.parametrize(
    ("kind", "data", "is_late"),
    [
        (EventKind.SUCCEEDED, {}, False),
        (EventKind.FAILED, {}, False),
        (EventKind.SETTLED, {"late_s": 4.0}, True),
    ],
)
def test_the_events_of_a_job_become_notices(owner, kind, data, is_late):
    job = make_job(owner)
    add_job_event(job=job, kind=EventKind.SETTLED, message="Settled.", now=NOW)
    assert not Notice.objects.exists()
    add_job_event(job=job, kind=kind, message="So it went.", now=NOW, data=data)
    notice = Notice.objects.get()
    assert notice.kind == ("job.late" if is_late else f"job.{kind}")
    assert (notice.about, notice.text) == (job.pk, "So it went.")


def test_a_mail_is_sent_once_and_says_no_secret(owner):
    add_notices(news=[news_of(owner)], now=NOW)
    assert mail_due() == 1
    assert mail_due() == 0
    [sent] = mail.outbox
    assert sent.to == [builders.owner_of(owner).email]
    assert sent.subject == "[Finetender] tone is done"
    assert sent.body == (
        f"All is well.\n\n{settings.PUBLIC_URL}/jobs/ftjob-1\n\n{owner.name}. Choose what is mailed"
        f" to you:\n{settings.PUBLIC_URL}/notices/settings\n"
    )
    assert Notice.objects.get().mailed_at == NOW


@pytest.mark.parametrize("when", ["before the end", "after sending"])
def test_a_mail_whose_worker_is_killed_is_not_sent_twice(owner, when):
    add_notices(news=[news_of(owner)], now=NOW)
    kind = get_kinds()[MAIL]

    def send_and_die(work: Any, notice: Any) -> None:
        kind.do(work, notice)
        raise KeyboardInterrupt

    changed: dict[str, Any] = {"apply": kill} if when == "before the end" else {"do": send_and_die}
    with pytest.raises(KeyboardInterrupt):
        mail_due(**changed)
    assert len(mail.outbox) == 1
    assert mail_due(now=NOW + kind.lease) == 1
    assert len(mail.outbox) == 1
    assert not DurableWork.objects.filter(kind=MAIL).exists()


class _Letters(socketserver.StreamRequestHandler):
    """A mail server that takes letters, and then ends as its name says."""

    server: _MailServer

    def handle(self) -> None:
        self.say("220 here")
        for line in iter(self.rfile.readline, b""):
            verb = line[:4].upper().decode().strip()
            if verb == "QUIT":
                return
            if verb == "MAIL" and self.server.end == "refuses":
                self.say("451 later")
            elif verb == "DATA":
                self.say("354 go on")
                while self.rfile.readline() not in (b".\r\n", b""):
                    pass
                self.server.taken += 1
                if self.server.end == "says nothing":
                    return
                self.say("250 taken")
            else:
                self.say("250 yes")

    def say(self, words: str) -> None:
        self.wfile.write(f"{words}\r\n".encode())


class _MailServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    end = ""
    taken = 0


@pytest.fixture
def mail_server(settings):
    with _MailServer(("127.0.0.1", 0), _Letters) as server:
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", server.server_address[1]
        settings.EMAIL_TIMEOUT = 60
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("end", "taken"),
    [
        # It takes the letter, and hangs up before its word or at the goodbye.
        ("says nothing", 1),
        ("", 1),
        ("refuses", 0),
    ],
)
def test_a_mail_that_a_server_may_have_taken_is_not_sent_again(owner, mail_server, end, taken):
    add_notices(news=[news_of(owner)], now=NOW)
    mail_server.end = end
    assert mail_due() == 1
    assert mail_server.taken == taken
    mail_server.end = ""
    for work in DurableWork.objects.filter(kind=MAIL):
        assert mail_due(now=work.due_at) == 1
    assert mail_server.taken == 1
    assert not DurableWork.objects.filter(kind=MAIL).exists()


def test_a_mail_waits_for_a_server_that_is_away(owner, settings):
    add_notices(news=[news_of(owner)], now=NOW)
    usual = settings.EMAIL_BACKEND
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", 1
    settings.EMAIL_HOST_PASSWORD = "hunter2"
    assert mail_due() == 1
    work = DurableWork.objects.get(kind=MAIL)
    assert "hunter2" not in work.last_error
    settings.EMAIL_BACKEND = usual
    assert mail_due(now=work.due_at) == 1
    assert len(mail.outbox) == 1


def test_people_choose_what_is_mailed_and_what_was_left_is_not(owner):
    person = builders.owner_of(owner)
    set_mailed_kinds(user=person, organisation=owner, kinds=["job.failed"])
    add_notices(news=[news_of(owner), news_of(owner, "job.failed")], now=NOW)
    assert Notice.objects.count() == 2
    mail_due()
    assert [sent.subject for sent in mail.outbox] == ["[Finetender] tone failed"]
    with pytest.raises(UserError, match=r"job\.opened"):
        set_mailed_kinds(user=person, organisation=owner, kinds=["job.opened"])
    worker = member_of(owner, Role.MEMBER)
    add_notices(news=[news_of(owner, person_id=worker.pk)], now=NOW)
    Membership.objects.filter(user=worker).delete()
    mail_due()
    assert len(mail.outbox) == 1


def test_a_name_makes_no_second_header(owner):
    news = News(owner.pk, "job.failed", {"id": "j", "message": "x"}, name="a\nBcc: all@x.example")
    add_notices(news=[news], now=NOW)
    mail_due()
    [sent] = mail.outbox
    assert sent.subject == "[Finetender] a Bcc: all@x.example failed"
    assert "\nBcc" not in sent.message().as_string()


def test_refused_bids_are_told_once_a_day_and_reason():
    owner, zone = builders.organisation(usd="10"), market_builders.zone()
    market_builders.node(zone)
    for _ in range(2):
        market_builders.bid(owner, zone, price_micros=1)
    decide_pending_bids(zone=zone, now=NOW)
    notice = Notice.objects.get(kind="bid.refused")
    assert notice.text.startswith("Its limit was not above the price. The price was $")
    assert notice.text.endswith(". Further refusals for this reason bring no notice today.")
    assert not DurableWork.objects.filter(kind=MAIL).exists()


def test_a_person_of_two_organisations_is_told_of_both():
    first, second = builders.organisation(), builders.organisation()
    person = builders.owner_of(first)
    Membership.objects.create(organisation=second, user=person, role=Role.OWNER, created_at=NOW)
    for owner in (first, second):
        # As bids of both in one zone are refused on one day.
        add_notices(news=[news_of(owner, person_id=person.pk, about="zone:price:day")], now=NOW)
    told = Notice.objects.filter(user=person)
    assert {notice.organisation_id for notice in told} == {first.pk, second.pk}


def test_a_channel_that_hears_of_each_refused_bid_reads_no_other_promise():
    owner, zone = builders.organisation(usd="10"), market_builders.zone()
    services.create_endpoint(
        organisation=owner,
        created_by=builders.owner_of(owner),
        url="https://8.8.8.8/services/T0/B0/secret",
        events=["bid.refused"],
        form=MessageForm.SLACK,
        now=NOW,
    )
    market_builders.node(zone)
    for _ in range(2):
        market_builders.bid(owner, zone, price_micros=1)
    decide_pending_bids(zone=zone, now=NOW)
    texts = [json.loads(message.body)["text"] for message in WebhookMessage.objects.all()]
    assert len(texts) == 2
    assert all("bring no notice" not in text for text in texts)


def test_amounts_are_said_as_on_pages():
    paid = News("org-1", "payout.paid", {"id": "po-1", "amount": "1234.500000"})
    lost = {"id": "bid-1", "reason": "price", "posted_price": "0.012000"}
    assert _text(paid) == "$1,234.50 is on your account."
    assert _text(News("org-1", "bid.refused", lost)).startswith(
        "Its limit was not above the price. The price was $0.012."
    )


def _text(news: News) -> str:
    words = write_words(news)
    assert words is not None
    return words.text


def test_a_silent_node_is_told_once_for_each_silence():
    zone = market_builders.zone()
    node = market_builders.node(zone, last_heartbeat_at=NOW)
    owner = node.provider.organisation
    services.create_endpoint(
        organisation=owner,
        created_by=builders.owner_of(owner),
        url="https://8.8.8.8/hook",
        events=["node.silent"],
        now=NOW,
    )
    Node.objects.update(status=NodeStatus.OFFLINE)
    assert note_silent_nodes(now=NOW + TOLD_AFTER - timedelta(seconds=1)) == 0
    assert note_silent_nodes(now=NOW + TOLD_AFTER) == 1
    assert note_silent_nodes(now=NOW + 2 * TOLD_AFTER) == 0
    Node.objects.update(last_heartbeat_at=NOW + 3 * TOLD_AFTER)
    assert note_silent_nodes(now=NOW + 4 * TOLD_AFTER) == 1
    assert [notice.title for notice in Notice.objects.all()] == [f"{node.name} is silent"] * 2
    assert {notice.user_id for notice in Notice.objects.all()} == {builders.owner_of(owner).pk}
    assert WebhookMessage.objects.filter(type="node.silent").count() == 2


def add_channel(owner, form):
    return services.create_endpoint(
        organisation=owner,
        created_by=builders.owner_of(owner),
        url="https://8.8.8.8/services/T0/B0/secret",
        events=["job.succeeded", "job.late"],
        form=form,
        now=NOW,
    )[0]


def test_a_slack_channel_reads_a_sentence_in_which_names_are_only_text(owner):
    add_channel(owner, MessageForm.SLACK)
    add_messages(news=[news_of(owner)._replace(name="<!channel> & co")], now=NOW)
    body = json.loads(WebhookMessage.objects.get().body)
    url = f"{settings.PUBLIC_URL}/jobs/ftjob-1"
    text = f"*&lt;!channel&gt; &amp; co is done*\nAll is well.\n<{url}|Open>"
    assert body == {"text": text}


def test_a_teams_channel_reads_a_card(owner):
    endpoint = add_channel(owner, MessageForm.TEAMS)
    add_messages(news=[news_of(owner)._replace(name="[x](http://evil)")], now=NOW)
    [attachment] = json.loads(WebhookMessage.objects.get().body)["attachments"]
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    card = attachment["content"]
    assert [part["text"] for part in card["body"]] == ["(x)(http://evil) is done", "All is well."]
    assert card["actions"][0]["url"] == f"{settings.PUBLIC_URL}/jobs/ftjob-1"
    test = services.send_test(endpoint=endpoint, now=NOW)
    assert "A test" in json.loads(test.body)["attachments"][0]["content"]["body"][0]["text"]


def test_a_channel_is_told_only_what_people_are(owner):
    with pytest.raises(UserError, match=r"job\.checkpointed is not one"):
        services.create_endpoint(
            organisation=owner,
            created_by=builders.owner_of(owner),
            url="https://8.8.8.8/hook",
            events=["job.checkpointed"],
            form=MessageForm.SLACK,
            now=NOW,
        )
    assert set(NOTICE_KINDS) <= set(EVENT_TYPES)
