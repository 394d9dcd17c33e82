"""The key that the market signs its log's heads and its receipts with.

The private key is one file that only the market's own user may read. The lane and the
worker sign; the web server needs no more than the public keys, which are rows. Each
process reads the file again when it was replaced, so a key can be changed while the
market runs.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.conf import settings
from django.db import transaction
from django.db.models import Max

from marketplace.auction.models import MarketKey, ReleaseSignature
from marketplace.common.errors import MarketFault, UserError
from marketplace.common.queue import enqueue
from workers.protocol.release_signing import (
    KeySuccession,
    NodeRelease,
    build_release_text,
    build_succession_text,
)

KEY_FILE = "market-signing.key"
#: What a worker does for web processes, which have no private key.
SIGN_RELEASE = "auction.release_sign"
_NOT_YET = (
    "The market has not {} yet; its worker does so each minute. Try again in a minute, and tell "
    "the market's operator where that does not help."
)


class KeyUnusable(MarketFault):
    """The file of the market's key cannot be signed with."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    """The market's key, ready to sign."""

    #: 32 bytes, in hex.
    public_key: str
    sign: Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class _LoadedKey:
    """A key that this process has read, and the file it was read from."""

    path: Path
    inode: int
    modified_ns: int
    key: SigningKey


_loaded: _LoadedKey | None = None


def load_signing_key(*, now: datetime) -> SigningKey:
    """The market's key; the first caller makes it and records its public part.

    Not for the web server, which has no private key and must not make a second one.

    Raises
    ------
    KeyUnusable
        The file is not a key, or others than its owner may read it.
    """
    global _loaded
    path = _key_path()
    if not path.exists():
        _create_key_file(path)
    found = path.stat()
    if (
        _loaded is not None
        and _loaded.path == path
        and (_loaded.inode, _loaded.modified_ns) == (found.st_ino, found.st_mtime_ns)
    ):
        return _loaded.key
    key = _signing_key(_read_key_file(path))
    _record_public_key(key.public_key, vouched_by="", now=now)
    _loaded = _LoadedKey(path, found.st_ino, found.st_mtime_ns, key)
    return key


def find_signing_key(*, now: datetime) -> SigningKey | None:
    """The market's key where this process has it; none is made.

    Raises
    ------
    KeyUnusable
        As ``load_signing_key``.
    """
    return load_signing_key(now=now) if _key_path().exists() else None


def rotate_signing_key(*, now: datetime) -> SigningKey:
    """Replace the market's key; the old one signs the new one and is then destroyed.

    What the old key signed stays valid: public keys stay listed.

    Raises
    ------
    KeyUnusable
        As ``load_signing_key``.
    """
    old = load_signing_key(now=now)
    private = Ed25519PrivateKey.generate()
    new = _signing_key(private)
    vouched_by = old.sign(build_succession_text(old=old.public_key, new=new.public_key)).hex()
    with transaction.atomic():
        _record_public_key(new.public_key, vouched_by=vouched_by, now=now)
        # Last: if this fails nothing is recorded, and the old key stays.
        _write_key_file(_key_path(), private, replace=True)
    return new


def find_public_key() -> str:
    """The key that signs now, in hex, as processes know it that have no private key.

    Raises
    ------
    UserError
        ``no_market_key`` (503): there is none yet.
    """
    key = MarketKey.objects.filter(retired_at=None).first()
    if key is None:
        enqueue(SIGN_RELEASE)
        raise UserError("no_market_key", _NOT_YET.format("made its key"), status=503)
    return key.public_key


def sign_release(release: NodeRelease, *, now: datetime) -> None:
    """Sign a release of the node, unless the key did so last; ``find_signed_release`` finds it.

    The serial follows the clock, so that a database put back gives out none that nodes know.

    Raises
    ------
    KeyUnusable
    """
    key, digest = load_signing_key(now=now), _hash_release(release)
    # This process may have known the key before a database was put back that does not.
    _record_public_key(key.public_key, vouched_by="", now=now)
    last = ReleaseSignature.objects.filter(key=key.public_key).order_by("-serial").first()
    if last is not None and last.text_sha256 == digest:
        return
    highest = ReleaseSignature.objects.aggregate(highest=Max("serial"))["highest"] or 0
    serial = max(int(now.timestamp()), highest + 1)
    signature = key.sign(build_release_text(replace(release, serial=serial))).hex()
    ReleaseSignature.objects.get_or_create(
        key_id=key.public_key,
        serial=serial,
        defaults={"text_sha256": digest, "signature": signature},
    )


def find_signed_release(release: NodeRelease) -> NodeRelease:
    """A release of the node as the market's key vouches for it.

    Raises
    ------
    UserError
        ``release_not_signed`` (503): the worker has not signed it yet.
    """
    rows = list_public_keys()
    found = _find_last_signature()
    if found is None or found.text_sha256 != _hash_release(release):
        enqueue(SIGN_RELEASE)
        said = _NOT_YET.format("signed this release")
        raise UserError("release_not_signed", said, status=503)
    succession = tuple(
        KeySuccession(old.public_key, new.public_key, new.vouched_by)
        for old, new in pairwise(rows)
        if new.vouched_by
    )
    return replace(release, serial=found.serial, signature=found.signature, succession=succession)


def find_release_serial() -> int:
    """The serial of the release that was signed last, which a node that joins begins with."""
    found = _find_last_signature()
    return found.serial if found else 0


def _find_last_signature() -> ReleaseSignature | None:
    signed = ReleaseSignature.objects.filter(key__retired_at=None)
    return signed.order_by("-serial").first()


def _hash_release(release: NodeRelease) -> str:
    return hashlib.sha256(build_release_text(replace(release, serial=0))).hexdigest()


def list_public_keys() -> list[MarketKey]:
    """All keys that ever signed for this market, the oldest first."""
    return list(MarketKey.objects.order_by("created_at", "public_key"))


def _key_path() -> Path:
    return Path(settings.MARKET_KEY_DIR) / KEY_FILE


def _create_key_file(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write_key_file(path, Ed25519PrivateKey.generate(), replace=False)


def _write_key_file(path: Path, private: Ed25519PrivateKey, *, replace: bool) -> None:
    """Write a key whole or not at all; without ``replace``, the first of several writers wins."""
    text = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    part = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            part.replace(path)
            return
        try:
            path.hardlink_to(part)
        except FileExistsError:
            return
    finally:
        part.unlink(missing_ok=True)


def _read_key_file(path: Path) -> Ed25519PrivateKey:
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise KeyUnusable(f"{path} can be read by others than its owner; chmod 600 it")
    try:
        private = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except ValueError as error:
        raise KeyUnusable(f"{path} holds no private key: {error}") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise KeyUnusable(f"{path} holds a key that is not Ed25519")
    return private


def _signing_key(private: Ed25519PrivateKey) -> SigningKey:
    return SigningKey(public_key=private.public_key().public_bytes_raw().hex(), sign=private.sign)


def _record_public_key(public_key: str, *, vouched_by: str, now: datetime) -> None:
    """List a key as the one in use; the one before is in use no longer."""
    with transaction.atomic():
        _, is_new = MarketKey.objects.get_or_create(
            public_key=public_key, defaults={"created_at": now, "vouched_by": vouched_by}
        )
        if is_new:
            others = MarketKey.objects.filter(retired_at=None).exclude(public_key=public_key)
            others.update(retired_at=now)
