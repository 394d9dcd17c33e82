"""Who checks: a node of a provider that has no part in the work, nor in its job."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime
from typing import Any, TypeVar

from django.db.models import QuerySet

from marketplace.accounts.selectors import share_members
from marketplace.checks.models import FaultCheck, SpotCheck
from marketplace.fleet.models import Node
from marketplace.fleet.selectors import is_node_silent, list_trusted_nodes
from marketplace.jobs.selectors import find_idlest_node

#: Either kind of check of a slice.
C = TypeVar("C", SpotCheck, FaultCheck)
#: What is loaded with either, to choose who checks.
RELATED = ("job__dataset", "job__validation_dataset", "slice__node__provider", "confirms__node")


def build_confirmation(check: C, *, now: datetime, **more: Any) -> C:
    """Build the check by which a third provider is to confirm a first opinion; it is not stored."""
    return type(check)(
        kind=check.kind,
        key=f"{check.key}:again",
        zone=check.zone,
        verified_only=check.verified_only,
        job=check.job,
        slice=check.slice,
        confirms=check,
        from_step=check.from_step,
        created_at=now,
        **more,
    )


def find_checker(check: SpotCheck, *, now: datetime) -> Node | None:
    """A node that is there, of a provider that has no part in the check; the idlest one.

    It sees the job's data, and so is one that the job's owner would have it run on. A result is
    measured by one that is drawn, of a verified provider if any is there: owners can bring such
    checks about, and nodes that are kept idle for them must not get them.
    """
    first = check.confirms
    taken = {check.checked_node.provider_id}
    if first is not None and first.node is not None:
        taken.add(first.node.provider_id)
    there = list_trusted_nodes(check.zone, verified_only=check.verified_only)
    others = leave_out_friends(check, there.exclude(provider__in=taken))
    if check.claimed_score is None:
        # another release of PyTorch sums in another order
        alike = [n for n in others if _get_release(n) == _get_release(check.checked_node)]
        others = alike or others
        return find_idlest_node(others, last_asked_id=check.node_id, now=now)
    return draw_checker(check, others, now=now)


def draw_checker(
    check: SpotCheck | FaultCheck, nodes: Iterable[Node], *, now: datetime
) -> Node | None:
    """A node that is heard, of a verified provider if any is; nobody can foresee which one."""
    heard = [node for node in nodes if not is_node_silent(node, now)]
    verified = [node for node in heard if node.provider.verified_at is not None]
    return min(
        verified or heard,
        key=lambda node: (node.pk == check.node_id, _draw(f"{check.id}\0{node.pk}")),
        default=None,
    )


def _get_release(node: Node) -> str:
    """Of PyTorch, without the build."""
    return str(node.facts.get("torch_version", "")).partition("+")[0]


def _draw(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def leave_out_friends(check: SpotCheck | FaultCheck, nodes: QuerySet[Node]) -> list[Node]:
    """Nodes of providers without a person in common with the job's owner or the node's provider."""
    parties = (check.job.organisation_id, check.checked_node.provider.organisation.pk)
    there = list(nodes.select_related("provider__organisation", "zone"))
    owners = {node.provider.organisation.pk for node in there}
    strangers = {
        owner for owner in owners if not any(share_members(owner, party) for party in parties)
    }
    return [node for node in there if node.provider.organisation.pk in strangers]
