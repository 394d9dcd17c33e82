"""What this app keeps of an organisation: its nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from marketplace.accounts.erasure import KeptData, register_kept_data
from marketplace.accounts.models import Subject, User
from marketplace.accounts.own_data import write_rows
from marketplace.fleet.models import JoinToken, Node, NodeStatus


def _list_needs(organisation_id: str) -> Iterator[str]:
    nodes = Node.objects.filter(provider__organisation=organisation_id)
    if nodes.exclude(status=NodeStatus.LEFT).exists():
        yield "It has nodes. Have them leave first."


def _mark(organisation_id: str, *, asked_by: User | None, now: datetime) -> None:
    """No machine joins for it any more."""
    tokens = JoinToken.objects.filter(provider__organisation=organisation_id, used_at=None)
    tokens.filter(revoked_at=None).update(revoked_at=now)


def _erase(organisation_id: str, *, now: datetime) -> None:
    """What nodes did stays, by their ids; what their machines said of themselves goes."""
    for node in Node.objects.filter(provider__organisation=organisation_id):
        node.name, node.facts = node.pk, {}
        node.save(update_fields=["name", "facts"])


def _list_own(organisation_id: str) -> Iterable[tuple[str, Callable[[], Iterable[bytes]]]]:
    nodes = Node.objects.filter(provider__organisation=organisation_id)
    yield "nodes.jsonl", write_rows(nodes, "name", "gpu_type_id", "status", "facts", "joined_at")


register_kept_data(
    KeptData(
        Subject.ORGANISATION,
        mark=_mark,
        list_needs=_list_needs,
        erase=_erase,
        list_own=_list_own,
    )
)
