"""A node installs what the key of its market signed, and nothing else."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from marketplace.auction.witnesses import keys
from marketplace.common.errors import UserError
from marketplace.fleet.releases import CONSTRAINTS, WHEEL, find_release
from tests.builders import NOW
from tests.unit.marketplace.api.web_server import serve
from workers.node import update
from workers.node.credentials import Credentials, StateDir, load_credentials, save_credentials

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def market(settings, tmp_path):
    """A market that serves a release, and its key."""
    settings.MARKET_KEY_DIR = tmp_path / "keys"
    settings.NODE_INSTALL_DIR = tmp_path / "dist"
    settings.NODE_INSTALL_DIR.mkdir()
    (settings.NODE_INSTALL_DIR / WHEEL).write_bytes(b"the wheel")
    (settings.NODE_INSTALL_DIR / CONSTRAINTS).write_bytes(b"torch==2.9.0")
    key = sign_anew()
    with serve() as url:
        yield url, key


def sign_anew() -> str:
    """As the worker does each minute; the key that signs."""
    keys.sign_release(find_release(), now=NOW)
    return keys.find_public_key()


@pytest.fixture
def joined(market, tmp_path):
    url, key = market
    state = StateDir(tmp_path / "state")
    save_credentials(state, Credentials(url, "gpu-1", "node_1", "t", 10.0, (), market_key=key))
    return state


@pytest.fixture
def installed(monkeypatch):
    """What ``pip`` would have installed, by the names of files."""
    found: list[dict[str, bytes]] = []

    def run(command, **_):
        found.append({Path(one).name: Path(one).read_bytes() for one in command[-2:]})
        return update.subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(update.subprocess, "run", run)
    monkeypatch.setattr(update, "RELEASE", "0.0.9")
    return found


GOOD = {CONSTRAINTS: b"torch==2.9.0", WHEEL: b"the wheel"}


def test_a_release_that_the_known_key_signed_is_installed(joined, installed):
    assert update.install_release(joined) is True
    assert installed == [GOOD]


def test_a_key_that_the_known_one_vouches_for_takes_its_place(joined, installed):
    for days in (1, 2):
        newest = keys.rotate_signing_key(now=NOW + timedelta(days=days)).public_key
    sign_anew()
    assert update.install_release(joined) is True
    assert installed == [GOOD]
    assert load_credentials(joined).market_key == newest
    assert update.install_release(joined) is True


@pytest.mark.parametrize("case", ["other key", "lost key", "no key", "changed file", "forged step"])
def test_what_another_key_signed_is_never_given_to_pip(
    case, joined, installed, monkeypatch, settings, caplog
):
    known = load_credentials(joined)
    if case == "lost key":
        (settings.MARKET_KEY_DIR / keys.KEY_FILE).unlink()
        sign_anew()
    elif case == "changed file":
        signed = keys.find_signed_release(find_release())
        (settings.NODE_INSTALL_DIR / WHEEL).write_bytes(b"not the wheel")
        find = "marketplace.api.internal.views.find_signed_release"
        monkeypatch.setattr(find, lambda release: replace(release, signature=signed.signature))
    elif case == "forged step":
        keys.rotate_signing_key(now=NOW + timedelta(days=1))
        sign_anew()
        keys.MarketKey.objects.exclude(vouched_by="").update(vouched_by="00" * 64)
    else:
        key = "" if case == "no key" else "11" * 32
        save_credentials(joined, replace(known, market_key=key))
    before = load_credentials(joined)
    with caplog.at_level(logging.ERROR):
        assert update.install_release(joined) is False
    assert installed == []
    assert load_credentials(joined) == before
    assert "is not signed by the key that this node knows" in caplog.text


def test_an_older_release_that_the_key_once_signed_is_not_installed_again(
    joined, installed, monkeypatch, settings, caplog
):
    older = keys.find_signed_release(find_release())
    (settings.NODE_INSTALL_DIR / WHEEL).write_bytes(b"the next wheel")
    sign_anew()
    newer = keys.find_signed_release(find_release())
    assert newer.serial == older.serial + 1
    assert update.install_release(joined) is True
    assert load_credentials(joined).release_serial == newer.serial
    # Whoever holds the web server serves what was right once, or says that it is the next.
    view = "marketplace.api.internal.views.find_signed_release"
    for served in (older, replace(older, serial=newer.serial + 1)):
        monkeypatch.setattr(view, lambda _, served=served: served)
        assert update.install_release(joined) is False
    monkeypatch.undo()
    assert len(installed) == 1
    assert "the release is an older one" in caplog.text
    assert "the release is not signed by the key" in caplog.text


def test_a_release_that_the_operator_goes_back_to_is_signed_as_a_later_one(joined, settings):
    first = keys.find_signed_release(find_release())
    for content in (b"the next wheel", b"the wheel"):
        (settings.NODE_INSTALL_DIR / WHEEL).write_bytes(content)
        sign_anew()
        sign_anew()
    again = keys.find_signed_release(find_release())
    assert (again.wheel, again.serial) == (first.wheel, first.serial + 2)
    keys.rotate_signing_key(now=NOW + timedelta(days=1))
    sign_anew()
    assert keys.find_signed_release(find_release()).serial == again.serial + 1


def test_the_web_server_gives_out_what_was_signed_and_makes_no_key(joined, settings, tmp_path):
    (settings.MARKET_KEY_DIR / keys.KEY_FILE).unlink()
    settings.MARKET_KEY_DIR = tmp_path / "none"
    assert keys.find_signed_release(find_release()).signature
    (settings.NODE_INSTALL_DIR / WHEEL).write_bytes(b"the next wheel")
    with pytest.raises(UserError, match="has not signed this release yet") as refused:
        keys.find_signed_release(find_release())
    assert refused.value.status == 503
    keys.ReleaseSignature.objects.all().delete()
    keys.MarketKey.objects.all().delete()
    with pytest.raises(UserError, match="has not made its key yet"):
        keys.find_public_key()
    assert not settings.MARKET_KEY_DIR.exists()
