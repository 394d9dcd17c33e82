"""Errands: side jobs of nodes beside their slices, from the choice of a node to the pay.

An errand waits, is put into the plan of a node, and is done once the node's answer has been
accepted. A node that says that it cannot, or that falls silent, is followed by another one. What is
special about a kind stands in its handler; see docs/how-to/errand.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from datetime import datetime, timedelta
from functools import cache
from http import HTTPStatus
from typing import Any, Generic, TypeVar

from django.db import transaction
from django.db.models import Q
from django.utils.module_loading import autodiscover_modules

from marketplace.common.errors import Conflict, NotFound, UserError
from marketplace.common.locks import advisory_lock
from marketplace.fleet.models import Node
from marketplace.fleet.selectors import list_trusted_nodes
from marketplace.jobs.locks import lock_errand
from marketplace.jobs.models import Artifact, Errand, ErrandKind, ErrandState
from marketplace.jobs.models.errands import errand_path, make_token
from marketplace.jobs.plans import add_to_plan
from marketplace.jobs.selectors import Blob, find_idlest_node
from marketplace.jobs.spooling import Content, SpooledFile, spool_upload, store_file
from workers.protocol.errands import PATH_ERRAND_BLOB, ErrandResult, ErrandSpec
from workers.protocol.job_spec import BlobRef
from workers.protocol.reports import Fault
from workers.protocol.wire import ProtocolError, from_json, to_json

E = TypeVar("E", bound=Errand)
_REASON_CHARS = 500


class ErrandHandler(Generic[E]):
    """What is special about one kind of errand.

    Methods from ``is_ready`` to ``pay`` are called while the errand is locked. What they change of
    it is saved after them.
    """

    kind: ErrandKind
    #: The kind's table, and what is loaded with its rows.
    model: type[E]
    related: tuple[str, ...] = ()
    #: The dataclass of a node's answer; unused where it delivers a file.
    result_type: type[Any] = object
    attempts_max = 3

    def load(self, errand_id: str) -> E:
        rows = self.model.objects.select_related("zone", "node__provider", *self.related)
        return rows.get(pk=errand_id)

    @property
    def file_bytes_max(self) -> int:
        """Bytes of the file that a node delivers; 0: it delivers none."""
        return 0

    def compose_file(self, errand: E, upload: SpooledFile) -> AbstractContextManager[SpooledFile]:
        """Refuse a node's file that is not what was asked for, or give what is stored of it.

        Raises
        ------
        UserError
        """
        return nullcontext(upload)

    def find_blob(self, errand: E, name: str) -> Blob | Artifact | None:
        """Find a file that the node needs."""
        return None

    def is_ready(self, errand: E, *, now: datetime) -> bool:
        """Say whether a node can be asked. Save here what must outlive a ``False``."""
        return True

    def choose_node(self, errand: E, *, now: datetime) -> Node | None:
        """Choose the idlest node that is heard, and another than was asked last if there is one."""
        nodes = list_trusted_nodes(errand.zone, verified_only=errand.verified_only)
        return find_idlest_node(nodes, last_asked_id=errand.node_id, now=now)

    def compute_patience(self, errand: E) -> timedelta:
        """Compute the time that ``errand.node`` has for its answer."""
        raise NotImplementedError

    def build_task(self, errand: E) -> Any:
        """Build the task that ``errand.node`` gets."""
        raise NotImplementedError

    def accept(self, errand: E, found: Any, *, now: datetime) -> bool:
        """Take an answer; ``False``: it says nothing of use. A file is stored already."""
        return True

    def fail(self, errand: E, *, now: datetime) -> None:
        """Undo what waits for the errand: no node did it."""

    def pay(self, errand: E, *, now: datetime) -> int:
        """Pay the node's provider for an accepted answer; micro-dollars."""
        return 0


_HANDLERS: dict[str, ErrandHandler[Any]] = {}


def register_handler(handler: ErrandHandler[Any]) -> None:
    """Make a kind known; its app's module ``errands`` calls this when it is imported."""
    _HANDLERS[handler.kind] = handler


@cache
def _get_handlers() -> Mapping[str, ErrandHandler[Any]]:
    autodiscover_modules("errands")
    return _HANDLERS


def build_blob_ref(errand: Errand, name: str, file: Any) -> BlobRef:
    """Name a file for the node; ``file`` has ``sha256`` and ``bytes``."""
    url = PATH_ERRAND_BLOB.format(token=errand.token, name=name)
    return BlobRef(url=url, sha256=file.sha256, bytes=file.bytes)


def hand_out_errands(*, now: datetime) -> int:
    """Ask nodes for the errands that wait; how many were asked for."""
    waiting = Errand.objects.filter(state=ErrandState.WAITING).order_by("created_at", "pk")
    ids = list(waiting.values_list("pk", flat=True))
    return sum(hand_out_errand(errand_id=errand_id, now=now) for errand_id in ids)


def hand_out_errand(*, errand_id: str, now: datetime) -> bool:
    """Put an errand into the plan of a node, or give it up where none was found in time."""
    with transaction.atomic():
        errand = _lock(pk=errand_id, state=ErrandState.WAITING)
        if errand is None:
            return False
        handler = _get_handlers()[errand.kind]
        is_ready = handler.is_ready(errand, now=now)
        if errand.gives_up_at is not None and now >= errand.gives_up_at:
            _fail(errand, now=now)
            return False
        node = handler.choose_node(errand, now=now) if is_ready else None
        if node is None:
            return False
        if errand.attempts:
            errand.token = make_token()
        errand.node, errand.state = node, ErrandState.ASKED
        errand.attempts += 1
        errand.asked_at, errand.expires_at = now, now + handler.compute_patience(errand)
        errand.task = to_json(handler.build_task(errand))
        until = errand.expires_at.timestamp()
        spec = ErrandSpec(errand.kind, errand.token, until, errand.task)
        # A dispatch at the same moment would make a plan without the errand.
        with advisory_lock("jobs.dispatch", errand.zone_id, wait=True):
            if not add_to_plan(errand.zone, node, spec, now=now):
                return False
            errand.save()
    return True


def find_errand_blob(*, node: Node, token: str, name: str, now: datetime) -> Blob | Artifact:
    """Find a file that a node needs for an errand that it does now.

    Raises
    ------
    NotFound
        ``unknown_blob``.
    """
    asked = Errand.objects.filter(
        token=token, node=node, state=ErrandState.ASKED, expires_at__gt=now
    ).first()
    if asked is not None and (not asked.verified_only or node.provider.verified_at is not None):
        handler = _get_handlers()[asked.kind]
        found = handler.find_blob(handler.load(asked.pk), name)
        if found is not None:
            return found
    raise NotFound("unknown_blob", f"This errand has no file {name[:80]!r}.")


def find_file_limit(*, node: Node, token: str, now: datetime) -> int:
    """Bytes of the file that a node may send now, or again; 0: it was asked for none."""
    asked = Q(state=ErrandState.ASKED, expires_at__gte=now) | Q(state=ErrandState.DONE)
    errand = Errand.objects.filter(asked, token=token, node=node).first()
    return 0 if errand is None else _get_handlers()[errand.kind].file_bytes_max


def take_result(*, node: Node, token: str, result: ErrandResult, now: datetime) -> None:
    """Take a node's answer, once and in time, and pay for it. A repeated one changes nothing.

    Raises
    ------
    NotFound
        ``unknown_errand``: nothing of the kind was asked of this node.
    Conflict
        ``errand_over``: the answer came too late. Nothing of it is stored.
    UserError
        ``invalid_message``.
    """
    with transaction.atomic():
        errand = _lock_asked(node=node, token=token, now=now)
        if errand is None:
            return
        if result.found is None:
            _give_back(errand, reason=_read_reason(result), now=now)
            return
        try:
            found = from_json(_get_handlers()[errand.kind].result_type, result.found)
        except ProtocolError as error:
            raise UserError("invalid_message", f"{error}.") from None
        _take(errand, found, now=now)


def take_file(
    *, node: Node, token: str, content: Content, now: datetime, sha256: str | None = None
) -> str:
    """Store a node's file, once and in time, and pay for it; gives its SHA-256.

    Raises
    ------
    NotFound
        ``unknown_errand``: this node was not asked for a file.
    Conflict
        ``errand_over``: the file came too late, or another one was taken. Nothing of it is stored.
    UserError
        ``file_empty``, ``file_too_large``, ``file_damaged``, or as the kind refuses the file:
        then the node's attempt has failed.
    """
    asked = Errand.objects.filter(token=token, node=node).first()
    if asked is None or not _get_handlers()[asked.kind].file_bytes_max:
        raise _unknown()
    limit = find_file_limit(node=node, token=token, now=now)
    if not limit:
        raise _over()
    handler = _get_handlers()[asked.kind]
    errand = handler.load(asked.pk)
    with ExitStack() as stack:
        spooled = spool_upload(content, limit_bytes=limit, what="The file", sha256=sha256)
        upload = stack.enter_context(spooled)
        try:
            made = stack.enter_context(handler.compose_file(errand, upload))
        except UserError as refusal:
            # Another try would draw other rows to compare, until a wrong file passes.
            if refusal.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                _take_back(node=node, token=token, now=now)
            raise
        if errand.state == ErrandState.DONE and errand.sha256 == made.sha256:
            return made.sha256
        with store_file(errand_path(errand, ""), made.file) as name, transaction.atomic():
            held = _lock_asked(node=node, token=token, now=now)
            if held is None:
                raise _over()
            held.file.name, held.sha256, held.bytes = name, made.sha256, made.bytes
            _take(held, None, now=now)
        return made.sha256


def sweep_errands(*, now: datetime) -> None:
    """Take errands back from nodes that did not answer in time."""
    late = Errand.objects.filter(state=ErrandState.ASKED, expires_at__lte=now)
    for errand_id in list(late.values_list("pk", flat=True)):
        with transaction.atomic():
            errand = _lock(pk=errand_id, state=ErrandState.ASKED, expires_at__lte=now)
            if errand is not None:
                _give_back(errand, reason="", now=now)


def _lock(**wanted: object) -> Any:
    """The row of the errand's kind; the row that all kinds share is locked."""
    errand = lock_errand(**wanted)
    return None if errand is None else _get_handlers()[errand.kind].load(errand.pk)


def _lock_asked(*, node: Node, token: str, now: datetime) -> Any:
    """The errand that a node does now, locked; ``None``: the node's answer was taken before."""
    errand = _lock(token=token, node=node)
    if errand is None:
        raise _unknown()
    is_late = errand.expires_at is None or now > errand.expires_at
    if is_late and errand.state != ErrandState.DONE:
        raise _over()
    return errand if errand.state == ErrandState.ASKED else None


def _take(errand: Any, found: Any, *, now: datetime) -> None:
    handler = _get_handlers()[errand.kind]
    if not handler.accept(errand, found, now=now):
        _give_back(errand, reason="", now=now)
        return
    errand.state, errand.ended_at, errand.reason = ErrandState.DONE, now, ""
    errand.paid_micros = handler.pay(errand, now=now)
    errand.save()


def _take_back(*, node: Node, token: str, now: datetime) -> None:
    """Let another node be asked than one whose file was refused."""
    with transaction.atomic():
        errand = _lock(token=token, node=node, state=ErrandState.ASKED)
        if errand is not None:
            _give_back(errand, reason="", now=now)


def _give_back(errand: Any, *, reason: str, now: datetime) -> None:
    """Let another node be asked, unless enough of them were."""
    errand.state, errand.reason = ErrandState.WAITING, reason
    if errand.attempts >= _get_handlers()[errand.kind].attempts_max:
        _fail(errand, now=now)
    else:
        errand.save()


def _fail(errand: Any, *, now: datetime) -> None:
    errand.state, errand.ended_at = ErrandState.FAILED, now
    _get_handlers()[errand.kind].fail(errand, now=now)
    errand.save()


def _read_reason(result: ErrandResult) -> str:
    """Why the errand itself cannot be done. What failed on one node says nothing of it."""
    is_told = result.fault is Fault.USER
    return result.reason.replace("\0", "")[:_REASON_CHARS] if is_told else ""


def _unknown() -> NotFound:
    return NotFound("unknown_errand", "This node was not asked that.")


def _over() -> Conflict:
    return Conflict("errand_over", "This errand is done, or its time is over.")
