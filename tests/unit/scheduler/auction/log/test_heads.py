"""Signed heads: what the signature covers, and what it does not let pass."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from scheduler.public_log.heads import (
    Head,
    Receipt,
    SignedHead,
    has_valid_signature,
    sign_head,
    signed_head_from_json,
    signed_head_to_json,
)

KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
OTHER = Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32)
HEAD = Head(zone="a", position=7, hash="ab" * 32)


def signed(head: Head = HEAD, *, receipt: Receipt | None = None) -> SignedHead:
    return sign_head(
        head,
        signed_at="2026-01-01T00:00:00+00:00",
        public_key=KEY.public_key().public_bytes_raw().hex(),
        sign=KEY.sign,
        receipt=receipt,
    )


@pytest.mark.parametrize("receipt", [None, Receipt(bid_id="bid_1", sealed="cd" * 32)])
def test_a_signed_head_comes_back_from_json_and_its_signature_holds(
    receipt: Receipt | None,
) -> None:
    made = signed(receipt=receipt)
    back = signed_head_from_json(signed_head_to_json(made))
    assert back == made
    assert has_valid_signature(back)


def test_the_signature_covers_every_field() -> None:
    made = signed(receipt=Receipt(bid_id="bid_1", sealed="cd" * 32))
    for altered in (
        replace(made, head=replace(HEAD, zone="b")),
        replace(made, head=replace(HEAD, position=8)),
        replace(made, head=replace(HEAD, hash="ac" * 32)),
        replace(made, signed_at="2026-01-01T00:00:01+00:00"),
        replace(made, public_key=OTHER.public_key().public_bytes_raw().hex()),
        replace(made, receipt=Receipt(bid_id="bid_2", sealed="cd" * 32)),
        replace(made, receipt=Receipt(bid_id="bid_1", sealed="ce" * 32)),
        replace(made, receipt=None),
        replace(made, signature=signed().signature),
        replace(made, signature="not hex"),
    ):
        assert not has_valid_signature(altered)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({}, "no 'format'"),
        ({"format": "finetender-head-2"}, "is not that of a signed head"),
        ({"format": "finetender-head-1", "zone": "a", "position": 1}, "no 'hash'"),
        ({**signed_head_to_json(signed()), "position": "x"}, "no whole number"),
    ],
)
def test_what_is_not_a_signed_head_is_refused_with_its_fault(
    data: dict[str, object], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        signed_head_from_json(data)
