"""Signed heads: what a market says of its log, in a form that it cannot take back.

A head names one position of a zone's log and the hash of the entry there, and with it
everything up to there. The market signs it (Ed25519, RFC 8032) and gives it away: to
witnesses, and as the receipt of a bid. Two heads of one position with different hashes
prove that the market showed two histories.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from .canonical_json import read_hex, serialize_canonical

#: Part of every signed text, so that no signature made for something else is one of a head.
HEAD_FORMAT = "finetender-head-1"
RECEIPT_FORMAT = "finetender-receipt-1"

#: Makes the signature of a text.
Sign = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class Head:
    """A position of a zone's log, and the hash of the entry there."""

    zone: str
    #: 0 for the rules that the log begins with.
    position: int
    hash: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """The bid that an entry of the log has received."""

    bid_id: str
    #: SHA-256 of the bid as it will be decided, its amount committed to.
    sealed: str


@dataclass(frozen=True, slots=True)
class SignedHead:
    """A head with the market's signature."""

    head: Head
    #: ISO 8601, by the market's clock; nothing is ordered by it.
    signed_at: str
    #: 32 bytes, in hex.
    public_key: str
    #: 64 bytes, in hex.
    signature: str
    #: What else the signature covers, where the head is given for a bid.
    receipt: Receipt | None = None


def sign_head(
    head: Head, *, signed_at: str, public_key: str, sign: Sign, receipt: Receipt | None = None
) -> SignedHead:
    """Sign a head, or a bid's receipt at that head."""
    unsigned = SignedHead(head, signed_at, public_key, "", receipt)
    return SignedHead(head, signed_at, public_key, sign(_text_of(unsigned)).hex(), receipt)


def has_valid_signature(signed: SignedHead) -> bool:
    """Whether the key that a head names made its signature."""
    return is_signed(_text_of(signed), key=signed.public_key, signature=signed.signature)


def is_signed(text: bytes, *, key: str, signature: str) -> bool:
    """Whether a key signed a text; key and signature in hex, which has one form only."""
    try:
        public_key = Ed25519PublicKey.from_public_bytes(read_hex(key, length=32))
        public_key.verify(read_hex(signature, length=64), text)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def signed_head_to_json(signed: SignedHead) -> dict[str, Any]:
    """Give a signed head as plain JSON values."""
    return {**_body(signed), "signature": signed.signature}


def signed_head_from_json(data: Mapping[str, Any]) -> SignedHead:
    """Read what ``signed_head_to_json`` wrote; the signature is taken as it stands.

    Raises
    ------
    ValueError
        If it is not a signed head.
    """
    try:
        kind = data["format"]
        if kind not in (HEAD_FORMAT, RECEIPT_FORMAT):
            raise ValueError(f"the format {kind!r} is not that of a signed head")
        return SignedHead(
            head=Head(_get(data, "zone"), _get_position(data), _get(data, "hash")),
            signed_at=_get(data, "signed_at"),
            public_key=_get(data, "public_key"),
            signature=_get(data, "signature"),
            receipt=Receipt(_get(data, "bid_id"), _get(data, "sealed"))
            if kind == RECEIPT_FORMAT
            else None,
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"a signed head has no {error}") from error


def _get(data: Mapping[str, Any], name: str) -> str:
    """Give a text as it stands: what is read into another one is not what was signed."""
    text = data[name]
    if not isinstance(text, str):
        raise ValueError(f"its {name} is no text")
    return text


def _get_position(data: Mapping[str, Any]) -> int:
    position = data["position"]
    if isinstance(position, bool) or not isinstance(position, int) or position < 0:
        raise ValueError("its position is no whole number from 0 on")
    return position


def _text_of(signed: SignedHead) -> bytes:
    return serialize_canonical(_body(signed)).encode()


def _body(signed: SignedHead) -> dict[str, Any]:
    head, receipt = signed.head, signed.receipt
    return {
        "format": HEAD_FORMAT if receipt is None else RECEIPT_FORMAT,
        "zone": head.zone,
        "position": head.position,
        "hash": head.hash,
        "signed_at": signed.signed_at,
        "public_key": signed.public_key,
        **({} if receipt is None else {"bid_id": receipt.bid_id, "sealed": receipt.sealed}),
    }
