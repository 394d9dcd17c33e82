"""The market's key: made once, for its owner's eyes, and replaced by one it vouches for."""

from __future__ import annotations

import stat
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from django.core.management import call_command

from marketplace.auction.models import MarketKey
from marketplace.auction.witnesses import keys
from tests.builders import NOW
from workers.protocol.release_signing import build_succession_text

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, settings: Any) -> Path:
    settings.MARKET_KEY_DIR = tmp_path / "keys"
    return settings.MARKET_KEY_DIR


def verify(public_key: str, signature: bytes, text: bytes) -> None:
    Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key)).verify(signature, text)


def test_the_first_who_needs_it_makes_the_key_and_all_use_it(folder: Path) -> None:
    key = keys.load_signing_key(now=NOW)
    verify(key.public_key, key.sign(b"text"), b"text")
    path = folder / keys.KEY_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert list(folder.iterdir()) == [path]
    assert keys.load_signing_key(now=NOW + timedelta(days=1)).public_key == key.public_key
    [row] = keys.list_public_keys()
    assert (row.public_key, row.created_at, row.retired_at, row.vouched_by) == (
        key.public_key,
        NOW,
        None,
        "",
    )


def test_of_many_who_make_the_key_at_once_one_does(folder: Path) -> None:
    folder.mkdir()
    path = folder / keys.KEY_FILE
    together = threading.Barrier(8)

    def make() -> None:
        together.wait()
        keys._create_key_file(path)

    made = [threading.Thread(target=make) for _ in range(8)]
    for thread in made:
        thread.start()
    for thread in made:
        thread.join()
    assert list(folder.iterdir()) == [path]
    assert keys.load_signing_key(now=NOW).public_key == keys.list_public_keys()[0].public_key


def test_a_key_that_others_may_read_is_not_used(folder: Path) -> None:
    keys.load_signing_key(now=NOW)
    path = folder / keys.KEY_FILE
    path.write_bytes(path.read_bytes())
    path.chmod(0o640)
    keys._loaded = None
    with pytest.raises(keys.KeyUnusable, match="chmod 600"):
        keys.load_signing_key(now=NOW)


@pytest.mark.parametrize("text", ["", "no key", "-----BEGIN PRIVATE KEY-----\n"])
def test_a_file_that_is_no_key_is_not_used(folder: Path, text: str) -> None:
    folder.mkdir()
    path = folder / keys.KEY_FILE
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(keys.KeyUnusable, match="holds no private key"):
        keys.load_signing_key(now=NOW)
    assert not MarketKey.objects.exists()


def test_a_new_key_is_signed_by_the_one_it_replaces(folder: Path) -> None:
    old = keys.load_signing_key(now=NOW)
    later = NOW + timedelta(days=30)
    new = keys.rotate_signing_key(now=later)
    assert new.public_key != old.public_key
    assert keys.load_signing_key(now=later).public_key == new.public_key
    first, second = keys.list_public_keys()
    assert (first.public_key, first.retired_at) == (old.public_key, later)
    assert (second.public_key, second.retired_at) == (new.public_key, None)
    text = build_succession_text(old=old.public_key, new=new.public_key)
    verify(old.public_key, bytes.fromhex(second.vouched_by), text)
    with pytest.raises(InvalidSignature):
        verify(new.public_key, bytes.fromhex(second.vouched_by), text)
    assert list(folder.iterdir()) == [folder / keys.KEY_FILE]


def test_a_rotation_that_fails_leaves_the_old_key(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = keys.load_signing_key(now=NOW)

    def full(*_: object, **__: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(keys, "_write_key_file", full)
    with pytest.raises(OSError, match="full"):
        keys.rotate_signing_key(now=NOW)
    assert keys.load_signing_key(now=NOW).public_key == old.public_key
    assert [row.retired_at for row in keys.list_public_keys()] == [None]


def test_the_command_lists_the_keys_and_replaces_the_one_in_use(
    capsys: pytest.CaptureFixture[str],
) -> None:
    call_command("auction_key")
    assert capsys.readouterr().out.count("in use") == 1
    call_command("auction_key", "--rotate")
    said = capsys.readouterr().out.splitlines()
    assert [line.rsplit(", ", 1)[1].split()[0] for line in said] == ["until", "in"]
