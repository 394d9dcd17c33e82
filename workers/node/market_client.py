"""The node's side of HTTPS: messages, downloads and uploads that survive a bad network.

Connection errors and answers of 500 and above are tried again, with growing and
randomised pauses; an answer of 400 to 499 never is. The node's token goes to the
market's own host only.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, TypeVar

import httpx

from workers.node.backoff import Backoff
from workers.protocol.blobs import hash_file
from workers.protocol.job_spec import BlobRef
from workers.protocol.wire import dumps, from_json

log = logging.getLogger(__name__)

T = TypeVar("T")

_CHUNK_BYTES = 256 * 1024
#: Of an answer that is a message; a file is read up to the size that it should have.
ANSWER_BYTES_MAX = 8 * 1024 * 1024
#: Answers that mean this node is not one of the market's any more.
SENT_AWAY = frozenset({401, 403, 404, 410})
#: Clocks that differ by less are taken to agree: the market tells its time in whole seconds.
_CLOCK_TOLERANCE_S = 2.0


class MarketError(Exception):
    """A call to the market failed; the text is one sentence."""


class MarketUnreachableError(MarketError):
    """The market did not answer, or only with faults of its own, until patience ended."""


class MarketRefusal(MarketError):
    """The market said no; asking again would not help."""

    def __init__(self, message: str, *, status: int, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        #: The ``code`` of its problem document.
        self.code = code


class CorruptBlobError(MarketError):
    """What arrived is not what the market described."""


class ShuttingDownError(MarketError):
    """The node is shutting down and gave up waiting."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long and how often a call is tried."""

    #: Seconds from the first try after which no further one starts.
    total_s: float = 60.0
    first_pause_s: float = 0.25
    longest_pause_s: float = 15.0


class MarketClient:
    """One market, one node's token; safe to use from several threads."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        patience: Patience | None = None,
        timeout_s: float = 30.0,
        stopping: threading.Event | None = None,
    ) -> None:
        parsed = httpx.URL(url)
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise MarketError(f"{url} is no web address. Write it like https://market.example.com")
        if parsed.scheme == "http" and parsed.host not in ("localhost", "127.0.0.1", "::1"):
            log.warning("%s is not encrypted: the node's token travels in the clear", url)
        self._patience = patience or Patience()
        self._stopping = stopping or threading.Event()
        headers = {"User-Agent": "finetender-node", "Accept": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self._http = httpx.Client(
            base_url=url.rstrip("/"),
            headers=headers,
            timeout=httpx.Timeout(timeout_s, connect=min(10.0, timeout_s)),
            follow_redirects=False,
        )
        #: Seconds the market's clock is ahead of ours.
        self.clock_offset_s = 0.0

    def close(self) -> None:
        self._http.close()

    def use_token(self, token: str) -> None:
        """Bear this token from the next call on."""
        self._http.headers["Authorization"] = f"Bearer {token}"

    def __enter__(self) -> MarketClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def market_time(self) -> float:
        """Unix seconds as the market counts them, as far as we know."""
        return time.time() + self.clock_offset_s

    def post(
        self, path: str, message: Any, reply: type[T], *, patience: Patience | None = None
    ) -> T:
        """Send a message and read the answer to it.

        Raises
        ------
        MarketUnreachableError, MarketRefusal
        """
        body = dumps(message).encode()
        response = self._try(lambda: self._post_once(path, body), path, patience)
        try:
            return from_json(reply, response.json(), ignores_unknown=True)
        except (ValueError, RecursionError) as error:
            raise MarketRefusal(
                f"The market's answer to {path} is not understood: {error}. "
                "Install the same version on both.",
                status=response.status_code,
            ) from None

    def send(self, path: str, message: Any, *, patience: Patience | None = None) -> None:
        """``post`` when the answer holds nothing."""
        body = dumps(message).encode()
        self._try(lambda: self._post_once(path, body), path, patience)

    def upload(
        self,
        path: str,
        file: Path,
        *,
        content_type: str = "application/octet-stream",
        patience: Patience | None = None,
    ) -> None:
        """PUT a file, streamed, with its length and hash in the headers."""
        digest = hash_file(file)
        size = file.stat().st_size
        headers = {
            "Content-Type": content_type,
            "Content-Length": str(size),
            "X-Content-SHA256": digest,
        }
        self._try(lambda: self._put_once(path, file, headers), path, patience)

    def download(self, blob: BlobRef, target: Path, *, patience: Patience | None = None) -> None:
        """Fetch a blob to ``target``, which exists only once it is whole and verified.

        A part left by an earlier try is continued.

        Raises
        ------
        CorruptBlobError
            When two downloads in a row do not have the promised hash.
        """
        if not blob.url.startswith("/") or blob.url.startswith("//"):
            raise CorruptBlobError(f"{blob.url} is not on the market's own host; not fetched.")
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f"{target.name}.part")
        for _ in range(2):
            self._try(lambda: self._download_once(blob, part), blob.url, patience)
            if part.stat().st_size == blob.bytes and hash_file(part) == blob.sha256:
                part.replace(target)
                return
            part.unlink()
        raise CorruptBlobError(
            f"{blob.url} arrived twice with another hash than the market promised."
        )

    def _post_once(self, path: str, body: bytes) -> httpx.Response:
        headers = {"Content-Type": "application/json"}
        with self._http.stream("POST", path, content=body, headers=headers) as response:
            return _read_bounded(path, response)

    def _put_once(self, path: str, file: Path, headers: dict[str, str]) -> httpx.Response:
        with self._http.stream("PUT", path, content=_chunks(file), headers=headers) as response:
            return _read_bounded(path, response)

    def _download_once(self, blob: BlobRef, part: Path) -> httpx.Response:
        have = part.stat().st_size if part.exists() else 0
        if have > blob.bytes:
            part.unlink()
            have = 0
        # A compressed answer has no bytes to continue from.
        headers = {"Accept": "*/*", "Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
        if have == blob.bytes and have:
            return httpx.Response(200)
        with self._http.stream("GET", blob.url, headers=headers) as response:
            if response.status_code == 416:
                part.unlink(missing_ok=True)
                return httpx.Response(503)
            if response.status_code >= 300:
                return _read_bounded(blob.url, response)
            continued = response.status_code == 206 and have > 0
            with part.open("ab" if continued else "wb") as file:
                size = have if continued else 0
                for chunk in response.iter_bytes(_CHUNK_BYTES):
                    size += len(chunk)
                    if size > blob.bytes:
                        break
                    file.write(chunk)
                    self._check_stopping()
        return response

    def _try(
        self, call: Callable[[], httpx.Response], path: str, patience: Patience | None
    ) -> httpx.Response:
        patience = patience or self._patience
        ends_at = time.monotonic() + patience.total_s
        backoff = Backoff(first_s=patience.first_pause_s, longest_s=patience.longest_pause_s)
        while True:
            self._check_stopping()
            try:
                response = call()
            except httpx.TransportError as error:
                problem = _describe_transport(error)
            else:
                self._learn_clock(response)
                if response.status_code < 300:
                    return response
                if response.status_code < 500:
                    raise _refusal(path, response)
                problem = f"answer {response.status_code}."
            wait = backoff.next_wait_s()
            if time.monotonic() + wait > ends_at:
                raise MarketUnreachableError(f"{self._http.base_url}{path}: {problem}")
            log.info("%s: %s Trying again in %.1f s.", path, problem, wait)
            if self._stopping.wait(wait):
                raise ShuttingDownError("The node is shutting down.")

    def _check_stopping(self) -> None:
        if self._stopping.is_set():
            raise ShuttingDownError("The node is shutting down.")

    def _learn_clock(self, response: httpx.Response) -> None:
        with suppress(ValueError, TypeError, KeyError):
            market_time = parsedate_to_datetime(response.headers["date"]).timestamp() + 0.5
            offset = market_time - time.time()
            self.clock_offset_s = offset if abs(offset) > _CLOCK_TOLERANCE_S else 0.0


def _read_bounded(path: str, response: httpx.Response) -> httpx.Response:
    """The response with its content, once that is known to be a message's size."""
    content = bytearray()
    for chunk in response.iter_bytes(_CHUNK_BYTES):
        content += chunk
        if len(content) > ANSWER_BYTES_MAX:
            raise MarketRefusal(
                f"The market's answer to {path} has more than {ANSWER_BYTES_MAX:,} bytes.",
                status=response.status_code,
            )
    return httpx.Response(
        response.status_code, headers=_keep_headers(response), content=bytes(content)
    )


def _keep_headers(response: httpx.Response) -> list[tuple[str, str]]:
    """Without those of how the content travelled: it is read."""
    travel = ("content-encoding", "content-length", "transfer-encoding")
    return [(name, value) for name, value in response.headers.multi_items() if name not in travel]


def _describe_transport(error: httpx.TransportError) -> str:
    """What kept a call from the market, and what to look at."""
    said = f"no answer ({type(error).__name__}: {error})."
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return (
            f"{said} Its certificate cannot be verified: check the address and this machine's "
            "clock. For an authority of your own, set SSL_CERT_FILE to a file with its certificate."
        )
    if isinstance(error, httpx.ProxyError):
        return f"{said} The proxy that HTTPS_PROXY names refuses: check it, and NO_PROXY."
    if isinstance(error, httpx.ConnectError):
        return f"{said} Check the address, this machine's network, and HTTPS_PROXY."
    return said


def _refusal(path: str, response: httpx.Response) -> MarketRefusal:
    code, detail = "", ""
    with suppress(ValueError, AttributeError):
        problem = response.json()
        code = str(problem.get("code") or "")
        detail = str(problem.get("detail") or problem.get("title") or "")
    if response.status_code < 400:
        detail = f"The market redirects {path}. Use the address it redirects to."
    elif not detail:
        detail = f"The market refused {path} with status {response.status_code}."
        if response.status_code == 404:
            detail += " Check that the address is a market's, without a path after its host."
    return MarketRefusal(detail, status=response.status_code, code=code)


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK_BYTES):
            yield chunk
