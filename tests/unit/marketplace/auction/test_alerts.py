"""Who runs the market is told once when a part of it stops, and once when it works again."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseServer, StreamRequestHandler, ThreadingTCPServer

import pytest
from django.core import mail

from marketplace.accounts.models import User
from marketplace.auction import alerts
from marketplace.auction.alerts import SEND_AFTER, SENT_WITHIN, watch_market
from marketplace.auction.models import Alert
from marketplace.auction.probes import LANE_TASK
from marketplace.common.models import Heartbeat
from marketplace.common.outbound import FetchFailed
from tests import builders
from tests import market_builders as market
from tests.builders import NOW, PASSWORD

pytestmark = pytest.mark.django_db
LATER = NOW + SEND_AFTER


@pytest.fixture(autouse=True)
def zone(settings):
    settings.ALERT_MAILS = []
    User.objects.create_superuser("root@example.com", PASSWORD)
    made = market.zone()
    market.node(made)
    builders.beat_everything()
    return made


def silence_lane() -> None:
    Heartbeat.objects.filter(task=LANE_TASK).update(ok_at=NOW - timedelta(minutes=5))


def beat(at) -> None:
    Heartbeat.objects.update(ok_at=at)


def beat_all_but_the_lane(at) -> None:
    Heartbeat.objects.exclude(task=LANE_TASK).update(ok_at=at)


def test_nothing_is_sent_while_everything_works():
    watch_market(now=NOW)
    assert (Alert.objects.count(), mail.outbox) == (0, [])


def test_a_silent_lane_is_sent_once_and_its_return_once():
    silence_lane()
    watch_market(now=NOW)
    watch_market(now=NOW + timedelta(seconds=30))
    [message] = mail.outbox
    assert message.to == ["root@example.com"]
    assert message.subject.startswith("[Finetender] Decisions: The auction lane is silent")
    assert "Since 2" in message.body
    beat(LATER)
    watch_market(now=LATER)
    watch_market(now=LATER)
    [_, message] = mail.outbox
    assert message.subject == "[Finetender] Decisions works again."
    alert = Alert.objects.get()
    assert (alert.since_at, alert.ended_at) == (NOW - timedelta(minutes=5), LATER)


def test_what_works_again_within_a_minute_is_written_down_and_not_sent(zone):
    zone.nodes.update(status="offline")
    watch_market(now=NOW)
    zone.nodes.update(status="online")
    watch_market(now=NOW + SEND_AFTER / 2)
    beat(LATER)
    watch_market(now=LATER)
    assert mail.outbox == []
    assert Alert.objects.get().zone == zone.name


def test_several_are_one_message_to_the_mails_that_are_set_and_the_webhook(
    zone, settings, monkeypatch
):
    posted = []
    monkeypatch.setattr(alerts, "ask_stranger", lambda url, **kw: posted.append((url, kw["body"])))
    settings.ALERT_MAILS = ["oncall@example.org"]
    settings.ALERT_WEBHOOK = "http://chat.internal/hook"
    zone.nodes.update(status="offline")
    silence_lane()
    watch_market(now=NOW)
    beat_all_but_the_lane(LATER)
    watch_market(now=LATER)
    lines = [message.subject for message in mail.outbox]
    assert len(lines) == 2
    assert {address for message in mail.outbox for address in message.to} == {"oncall@example.org"}
    assert [url for url, _ in posted] == ["http://chat.internal/hook"] * 2
    assert "The auction lane is silent" in json.loads(posted[0][1])["text"]
    assert f"({zone.name}): No node runs." in json.loads(posted[1][1])["text"]


def test_what_could_not_be_sent_is_sent_when_its_claim_is_over(settings, monkeypatch):
    def fail(*_args, **_kwargs):
        raise FetchFailed("no answer")

    settings.ALERT_WEBHOOK = "https://chat.example/hook"
    monkeypatch.setattr(alerts, "ask_stranger", fail)
    silence_lane()
    watch_market(now=NOW)
    assert Alert.objects.get().begin_sent_at is None
    sent = []
    monkeypatch.setattr(alerts, "ask_stranger", lambda url, **_: sent.append(url))
    beat_all_but_the_lane(NOW + SENT_WITHIN)
    watch_market(now=NOW + SENT_WITHIN / 2)
    assert sent == []
    watch_market(now=NOW + SENT_WITHIN)
    assert len(sent) == 1
    assert Alert.objects.get().begin_sent_at == NOW + SENT_WITHIN


def test_another_that_looks_while_an_alert_is_sent_does_not_send_it(monkeypatch):
    sent = []

    def send(text, *, subject):
        watch_market(now=NOW)
        sent.append(text)

    monkeypatch.setattr(alerts, "_send", send)
    silence_lane()
    watch_market(now=NOW)
    assert len(sent) == 1


def test_alerts_are_kept_for_ninety_days():
    silence_lane()
    watch_market(now=NOW)
    beat(LATER)
    watch_market(now=LATER)
    beat(LATER + timedelta(days=91))
    watch_market(now=LATER + timedelta(days=91))
    assert Alert.objects.count() == 0


@contextmanager
def serve(server: BaseServer) -> Iterator[int]:
    """Answer in a thread; the port."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_address[1]  # type: ignore[misc]  # of TCP
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def build_mail_server(mails: list[str], *, refuses: list[bool]) -> ThreadingTCPServer:
    """One that takes every mail, or has no time while ``refuses`` has a member."""

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            self.say("421 busy" if refuses else "220 here")
            for line in self.rfile:
                word = line.split()[0].upper().decode()
                if word == "DATA":
                    self.say("354 go on")
                    mails.append(
                        "".join(part.decode() for part in iter(self.rfile.readline, b".\r\n"))
                    )
                self.say("221 bye" if word == "QUIT" else "250 well")

        def say(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

    return ThreadingTCPServer(("127.0.0.1", 0), Handler)


def build_webhook(posted: list[str]) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


def test_a_mail_server_and_a_webhook_get_the_alert_and_its_end_also_when_they_were_away(settings):
    mails: list[str] = []
    posted: list[str] = []
    refuses = [True]
    with ExitStack() as servers:
        port = servers.enter_context(serve(build_mail_server(mails, refuses=refuses)))
        hook = servers.enter_context(serve(build_webhook(posted)))
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", port
        settings.ALERT_WEBHOOK = f"http://127.0.0.1:{hook}/hook"
        silence_lane()
        watch_market(now=NOW)
        # The webhook is told meanwhile, and again with the mail: once too often, not too seldom.
        assert (mails, len(posted)) == ([], 1)
        refuses.clear()
        beat_all_but_the_lane(NOW + SENT_WITHIN)
        watch_market(now=NOW + SENT_WITHIN)
        beat(NOW + 2 * SENT_WITHIN)
        watch_market(now=NOW + 2 * SENT_WITHIN)
    [begun, ended] = mails
    assert "To: root@example.com" in begun
    assert "The auction lane is silent: no bid is decided." in begun
    assert "Subject: [Finetender] Decisions works again." in ended
    said = (
        "Decisions: The auction lane is silent: no bid is decided. Since "
        f"{NOW - timedelta(minutes=5):%Y-%m-%d %H:%M:%S} UTC."
    )
    assert [text.splitlines()[0] for text in posted] == [said, said, "Decisions works again."]
