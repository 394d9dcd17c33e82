"""Whether the market's own key vouches for a release, before any of it is installed."""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from workers.protocol.release_signing import NodeRelease, build_release_text, build_succession_text


class ReleaseError(Exception):
    """The release is not the market's last; the text is a clause without a full stop."""


def check_release(release: NodeRelease, *, key: str, serial: int) -> str:
    """Refuse what neither the key that the node knows signed nor one that it vouches for.

    So is a release refused that was signed before the last one that the node saw.

    Returns
    -------
    str
        The key to remember from now on, in hex.

    Raises
    ------
    ReleaseError
    """
    for step in release.succession:
        if step.old == key:
            text = build_succession_text(old=key, new=step.new)
            _verify(step.signature, text, key=key, what="the market's next key")
            key = step.new
    _verify(release.signature, build_release_text(release), key=key, what="the release")
    if release.serial < serial:
        raise ReleaseError(
            f"the release is an older one: its serial is {release.serial}, and this node knows "
            f"{serial}"
        )
    return key


def _verify(signature: str, text: bytes, *, key: str, what: str) -> None:
    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key))
        public.verify(bytes.fromhex(signature), text)
    except (ValueError, InvalidSignature):
        raise ReleaseError(f"{what} is not signed by the key that this node knows") from None
